"""Run a job whose disk becomes full at some point; then run it again with enough room.

`unshare --mount python -m tests.pipeline.full_disks JOB LOGS FOLDER KB...` prints the table before,
and a list of [exit code and output of the run, table after it, table after the next run], for each
number of KB that are free beside the last results.  The disk is a tmpfs, in a mount namespace of
this process.  Each run is a fork of a process that has only imported the modules.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from qmd.cli import main
from tests.pipeline.dying_runs import half_of, table
from tests.pipeline.dying_states import forked

BLOCK = 4096


def mount(folder: Path, size: int, *more: str) -> None:
    options = ",".join([f"size={size}", *more])
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "none", str(folder)], check=True)


def run(job: str, logs: Path, out: Path) -> tuple[int, str]:
    words = ["pipeline", "run", job, "--input", str(logs), "--output", str(out)]
    done = CliRunner().invoke(main, [*words, "--engine", "embedded"])
    return done.exit_code, done.output


def work(job: str, logs: Path, folder: Path, free_kb: list[int]) -> list[Any]:
    first, rows = folder / "first", []
    half = half_of(logs, folder)

    def child(does: Callable[[], Any]) -> Any:
        ended, value = forked(does)
        assert ended == 0
        return value

    code, said = child(lambda: run(job, half, first))
    assert code in (0, 1), said
    disk = folder / "disk"
    disk.mkdir()
    out = disk / "out"
    for kb in free_kb:
        mount(disk, 1 << 28)
        shutil.copytree(first, out, symlinks=True)
        room = os.statvfs(disk)
        used = (room.f_blocks - room.f_bfree) * BLOCK
        mount(disk, used + kb * 1024, "remount")
        died = child(lambda: run(job, logs, out))
        then = child(lambda: table(job, out))
        mount(disk, 1 << 28, "remount")
        again = child(lambda: run(job, logs, out))
        assert again[0] in (0, 1), again
        rows.append([died, then, child(lambda: table(job, out))])
        subprocess.run(["umount", str(disk)], check=True)
    return [child(lambda: table(job, first)), rows]


if __name__ == "__main__":
    job, logs, folder, *free = sys.argv[1:]
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    print(json.dumps(work(job, Path(logs), Path(folder), list(map(int, free)))))
