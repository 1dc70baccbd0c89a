"""Run a job, and die at a change of a file in the middle of it; then run it again.

`python -m tests.pipeline.dying_runs JOB ENGINE LOGS FOLDER NUMBER...` prints a list of [exit of the
run, table after it, table after the next run], for a death at each of the numbered changes.  Each
run is a fork of a process that has only imported the modules.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pandas as pd
from click.testing import CliRunner

from qmd.cli import main
from tests.pipeline.dying_states import dies_at, forked

TABLE = {
    "audit": "findings",
    "traffic": "queues",
    "latency": "by_route",
    "dead-letters": "groups",
}


def run(job: str, engine: str, logs: Path, out: Path) -> int:
    words = ["pipeline", "run", job, "--input", str(logs), "--output", str(out), "--engine", engine]
    done = CliRunner().invoke(main, words)
    if done.exit_code not in (0, 1):
        raise RuntimeError(done.output)
    return done.exit_code


def table(job: str, out: Path) -> list[str]:
    """Return the rows of the job's main table, as another program reads them."""
    if not (out / "report.html").exists():
        return []
    frame = pd.read_parquet(out / f"{TABLE[job]}.parquet").astype(str)
    return sorted(frame.agg("|".join, axis=1)) if len(frame) else []


def half_of(logs: Path, folder: Path) -> Path:
    """Return a folder with half of the files."""
    half = folder / "half"
    half.mkdir(parents=True)
    for path in sorted(logs.rglob("*.parquet"))[::2]:
        shutil.copy(path, half / f"{path.parent.name}-{path.name}")
    return half


def work(job: str, engine: str, logs: Path, folder: Path, numbers: list[int]) -> list[Any]:
    first, rows = folder / "first", []
    half = half_of(logs, folder)
    assert forked(lambda: run(job, engine, half, first))[0] == 0
    for number in numbers:
        out = folder / str(number)
        shutil.copytree(first, out, symlinks=True)

        def dying() -> int:
            dies_at(number)  # noqa: B023
            return run(job, engine, logs, out)  # noqa: B023

        ended, _ = forked(dying)
        then = forked(lambda: table(job, out))[1]  # noqa: B023
        forked(lambda: run(job, engine, logs, out))  # noqa: B023
        rows.append([ended, then, forked(lambda: table(job, out))[1]])  # noqa: B023
        shutil.rmtree(out)
    return [forked(lambda: table(job, first))[1], rows]


if __name__ == "__main__":
    job, engine, logs, folder, *numbers = sys.argv[1:]
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    print(json.dumps(work(job, engine, Path(logs), Path(folder), list(map(int, numbers)))))
