"""Save the state of a job repeatedly, and die each time at the next change of a file.

`python -m tests.pipeline.dying_states audit|traffic FOLDER` prints a list of [exit of the run,
state after the run, state after the next run, names of files after it], for each such change.
Each run is a fork of a process that has only imported the modules, which is fast.

"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd

from pipeline.jobs.audit.state import State
from pipeline.jobs.incremental.memory import Memory

CHANGES = ("open", "os.rename", "os.remove", "os.rmdir", "os.mkdir", "shutil.rmtree")


def save(kind: str, folder: Path, value: int) -> None:
    frame = pd.DataFrame({"source": [value], "number": [7]})
    if kind == "audit":
        state = State.load(folder / "state")
        state.files.add(f"file {value}")
        state.streams = frame
        state.save(folder / "state")
    else:
        memory = Memory.load(folder, "traffic")
        memory.stage("streams", frame)
        memory.commit([])


def known(kind: str, folder: Path) -> list[Any]:
    """Return the files that a job has read, and one of its tables."""
    if kind == "audit":
        state = State.load(folder / "state")
        streams = pd.DataFrame() if state.streams is None else state.streams
        return [sorted(state.files), streams.to_dict("records")]
    memory = Memory.load(folder, "traffic")
    return [sorted(memory.files), memory.read("streams", pd.DataFrame()).to_dict("records")]


def dies_at(number: int) -> None:
    """Make this process kill itself at change number `number`."""
    counted = 0

    def count(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal counted
        if event not in CHANGES:
            return
        if event == "open" and not (
            isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR)
        ):
            return
        counted += 1
        if counted == number:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(count)


def forked(work: Callable[[], Any]) -> tuple[int, Any]:
    """Run `work` in a fork; return its exit (a signal is negative) and its result."""
    out, into = os.pipe()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.write(into, json.dumps(work()).encode())
            code = 0
        finally:
            os._exit(code)
    os.close(into)
    with os.fdopen(out, "rb") as reader:
        reported = reader.read()
    _, status = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(status), json.loads(reported) if reported else None


def main(kind: str, root: Path) -> None:
    rows = []
    ended = -signal.SIGKILL
    while ended == -signal.SIGKILL:
        number = len(rows) + 1
        folder = root / str(number)
        folder.mkdir()
        assert forked(lambda: save(kind, folder, 1))[0] == 0  # noqa: B023  # called at once

        def run() -> None:
            dies_at(number)  # noqa: B023
            save(kind, folder, 2)  # noqa: B023

        ended, _ = forked(run)
        then = forked(lambda: known(kind, folder))[1]  # noqa: B023
        assert forked(lambda: save(kind, folder, 3))[0] == 0  # noqa: B023
        after = forked(lambda: known(kind, folder))[1]  # noqa: B023
        rows.append([ended, then, after, len([*folder.rglob("*")])])
    print(json.dumps(rows))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
