"""A sync fails, the daemon stops and restarts, and then the power is lost.

Linux drops the writes of a failed sync, and still shows them.  A start that trusted the visible
bytes would confirm them again and lose them.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tests.crash.machine import Machine
from tests.crash.replay import Replay
from tests.crash.shim import Fault
from tests.crash.workload import Lost, Workload


def broken_after_a_failed_sync(
    machine: Machine, folder: Path, fault: Fault, *, changes: Sequence[str] = ()
) -> list[str]:
    """Return the promises that a loss of power at any act after the failure breaks.

    A daemon that stops is started again with `changes`, and reports its messages once more.
    Raises Lost when it does not stop as it must.
    """
    machine.wipe()
    machine.changes = ["hurry"]
    with Workload(machine, seed=0) as workload:
        if not workload.run(fault):
            _start_again(machine, workload, changes)
    machine.changes = ["hurry"]
    records = list(machine.log.records())
    failed = next(
        (index for index, record in enumerate(records) if record.kind == "e"), len(records)
    )
    replay = Replay(records, machine.data, folder, nowhere_port=workload.nowhere_port)
    replay.run(failed, every_write=3)
    return replay.broken


def _start_again(machine: Machine, workload: Workload, changes: Sequence[str]) -> None:
    code = machine.ended()
    events = [each for each in machine.events() if each["level"] == "critical"]
    if code != 1 or len(events) != 1:
        raise Lost(f"it ended with {code}, and said: {machine.said()}")
    words = str(events[0]["reason"])
    if "I/O error" not in words and "Input/output error" not in words:
        raise Lost(f"it does not say what happened: {words}")
    workload.hang_up()
    machine.changes = ["hurry", *changes]
    if not machine.start():
        raise Lost(f"it does not start again: {machine.said()}")
    control = machine.connect()
    workload.ask_again(control)
    workload.send_again(control)
    workload.promise_more(control)
    machine.kill()
