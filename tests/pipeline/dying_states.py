"""Save the state of a job, and keep the files as they are before each change of a file.

A process that is killed there leaves exactly these files.  `python -m tests.pipeline.dying_states
audit|traffic FOLDER EVERY` prints a list of [state that such a death leaves, state after the next
run, number of files then], for a run that does not die, and before that for every EVERY-th change
and for the last `END`: those of the commit and after it.
"""

from __future__ import annotations

import json
import os
import shutil
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


def before_each_change(act: Callable[[], object]) -> None:
    """Call `act` in this process before each change of a file, from now on."""

    def look(event: str, arguments: tuple[Any, ...]) -> None:
        if event not in CHANGES:
            return
        if event == "open" and not (
            isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR)
        ):
            return
        act()

    sys.addaudithook(look)


def dies_at(number: int) -> None:
    """Make this process kill itself at change number `number`."""
    left = number

    def count() -> None:
        nonlocal left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    before_each_change(count)


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


END = 24


def copies(kind: str, root: Path) -> list[Path]:
    """Save twice; return copies of the files before each change of the second time, and after."""
    folder, found, is_saving = root / "live", list[Path](), False
    save(kind, folder, 1)

    def copy() -> None:
        nonlocal is_saving
        if is_saving:
            is_saving = False  # the changes of the copy itself do not count
            found.append(root / str(len(found) + 1))
            shutil.copytree(folder, found[-1], symlinks=True)
            is_saving = True

    before_each_change(copy)
    is_saving = True
    save(kind, folder, 2)
    copy()
    is_saving = False
    return found


def main(kind: str, root: Path, every: int) -> None:
    rows = []
    found = copies(kind, root)
    for folder in [*found[:-END:every], *found[-END:]]:
        then = known(kind, folder)
        save(kind, folder, 3)
        rows.append([then, known(kind, folder), len([*folder.rglob("*")])])
        shutil.rmtree(folder)
    print(json.dumps(rows))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
