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
import pyarrow as pa

from pipeline.jobs.audit.state import State
from pipeline.jobs.incremental.memory import Memory
from pipeline.results.runs import Results

CHANGES = (
    "open",
    "os.rename",
    "os.remove",
    "os.rmdir",
    "os.mkdir",
    "shutil.rmtree",
    "os.link",
    "os.symlink",
)


def save(kind: str, folder: Path, value: int) -> None:
    """Publish a run with a table, a page and a state that all contain `value`."""
    results = Results(folder)
    results.publish()
    draft = results.begin(kind)
    frame = pd.DataFrame({"source": [value], "number": [7]})
    draft.put_table("values", pa.Table.from_pandas(frame, preserve_index=False))
    draft.put_page("report.html", f"page {value}")
    if kind == "audit":
        state = State.load(draft)
        state.files.add(f"file {value}")
        state.streams = frame
        state.save(draft)
    else:
        memory = Memory.load(draft)
        memory.stage("streams", frame)
        memory.save([])
    draft.commit()


def known(kind: str, folder: Path) -> list[Any]:
    """Return the files that a job has read, one of its tables, and what other programs read."""
    draft = Results(folder).begin(kind)
    if kind == "audit":
        state = State.load(draft)
        files, streams = state.files, state.streams
    else:
        memory = Memory.load(draft)
        files, streams = memory.files, memory.read("streams", pd.DataFrame())
    streams = pd.DataFrame() if streams is None else streams
    shown = [
        pd.read_parquet(folder / "values.parquet").source.to_list(),
        (folder / "report.html").read_text(),
    ]
    return [sorted(files), streams.to_dict("records"), shown]


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
