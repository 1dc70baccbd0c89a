"""A sync fails, the daemon stops and is started again; then the power goes.

Linux drops what a failed sync should have written, and shows it all the same.  A start that
believed what it sees would promise it once more, and lose it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.crash.machine import Machine
from tests.crash.replay import Replay
from tests.crash.shim import Fault
from tests.crash.workload import Workload


class Day:
    """A life whose syncs fail from one on, and the beginning of the next."""

    def __init__(self, machine: Machine, folder: Path) -> None:
        self._machine = machine
        self._folder = folder

    def broken(self, fault: Fault, *changes: str) -> list[str]:
        """The promises that are lost with the power at any act after the failure."""
        machine = self._machine
        machine.wipe()
        machine.changes = ["hurry"]
        with Workload(machine, seed=0) as workload:
            if not workload.run(fault):
                self._start_again(workload, changes)
        records = list(machine.log.records())
        failed = next(index for index, record in enumerate(records) if record.kind == "e")
        replay = Replay(records, machine.data, self._folder, nowhere_port=workload.nowhere_port)
        replay.run(failed, every_write=3)
        return replay.broken

    def _start_again(self, workload: Workload, changes: Sequence[str]) -> None:
        """Let it say once more what it has."""
        machine = self._machine
        assert machine.ended() == 1
        self._check_words()
        workload.hang_up()
        machine.changes = ["hurry", *changes]
        assert machine.start(), machine.said()
        control = machine.connect()
        workload.ask_again(control)
        workload.send_again(control)
        machine.kill()

    def _check_words(self) -> None:
        """One line says what has happened and what to do; there is no traceback."""
        (event,) = [each for each in self._machine.events() if each["level"] == "critical"]
        assert event["event"] in ("storage_failed", "start_failed")
        words = str(event["reason"])
        assert "I/O error" in words or "Input/output error" in words


@pytest.fixture
def day(machine: Machine, folder: Path) -> Day:
    return Day(machine, folder)


# Those from 10 on come after the first start.
@pytest.mark.parametrize("at", [1, 4, 8, *range(10, 48, 4)])
def test_after_a_failed_sync_nothing_is_promised_that_the_power_can_take(day: Day, at: int):
    assert day.broken(Fault("eio", at, "s", times=0)) == []


@pytest.mark.parametrize("at", range(11, 47, 5))
def test_a_single_failed_sync_does_no_more_harm(day: Day, at: int):
    """That of a checkpoint is not even noticed: what it should have brought into the database is
    in the log, and the next checkpoint brings it again."""
    assert day.broken(Fault("eio", at, "s")) == []


@pytest.mark.timeout(180)
def test_without_writing_the_log_again_it_would_be_lost(day: Day):
    """Not always: a checkpoint at the start may save it by chance."""
    assert any(
        "is lost" in broken
        for at in range(12, 46)
        for broken in day.broken(Fault("eio", at, "s", times=0), "trust_the_log")
    )


@pytest.mark.parametrize("at", [1, 2, 3])
def test_a_folder_that_cannot_be_synced_keeps_the_daemon_from_starting(machine: Machine, at: int):
    """SQLite does not mind; but the name of the log would be lost with the power."""
    assert not machine.start(Fault("eio", at, "d", times=0))
    assert machine.ended() == 1
    (event,) = [each for each in machine.events() if each["level"] == "critical"]
    assert event["event"] == "start_failed"
