"""The audit of a fleet against DuckDB, on the same files in one run.

    python -m benchmarks.bench_audit [--events MILLIONS] [--rounds N] [--folder DIR] [--json]

DuckDB asks for the same findings in one query over every message, with two threads and in a process
of its own; the audit runs in local[2].  Both are measured warm, by turns, and the median of the
quotients counts.  The peak is of this process, Java and all Python workers together, at one moment
while the audit ran; what they share counts once.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

EVENTS_PER_MESSAGE = 5
HEAP = os.environ.get("HEAP", "768m")  # of Java
FAULTS = "lost=20,acked_not_stored=20,duplicated=20,reordered=20,delayed=20,gap=20,delivered_dead=20,expired=200"  # noqa: E501


def measure(events: int, rounds: int, folder: Path) -> dict[str, Any]:
    """All figures by name."""
    from pipeline.generator import Fleet, generate, parse_faults

    begun = time.monotonic()
    fleet = Fleet(
        hosts=200,
        streams=2000,
        messages=events // EVENTS_PER_MESSAGE,
        plain_share=0.0,
        faults=parse_faults(FAULTS),
    )
    truth = generate(fleet, folder / "logs")
    figures: dict[str, Any] = {"load_average": round(os.getloadavg()[0], 1)}
    figures["events"] = truth["events"]
    figures["generated_in_s"] = round(time.monotonic() - begun, 1)

    from pipeline.events import find_files
    from pipeline.jobs.audit import audit
    from pipeline.jobs.state import State
    from pipeline.session import spark_session

    spark = spark_session("bench audit", conf={"spark.driver.memory": HEAP})
    spark.sparkContext.setLogLevel("ERROR")
    files = find_files([str(folder / "logs")])
    ours: list[float] = []
    theirs: list[float] = []
    peak = Peak()
    for _ in range(rounds + 1):  # the first one warms both up
        with peak:
            begun = time.monotonic()
            result = audit(spark, files, State())
            ours.append(time.monotonic() - begun)
        opinion = asked(folder / "logs")
        theirs.append(opinion["seconds"])
    wanted = Counter(each["kind"] for each in truth["findings"])
    figures["finds_the_truth"] = Counter(result.counts) == wanted
    figures["duckdb_finds_the_truth"] = opinion["kinds"] == wanted
    figures["audit_s"] = [round(each, 1) for each in ours[1:]]
    figures["duckdb_s"] = [round(each, 1) for each in theirs[1:]]
    quotients = [a / b for a, b in zip(ours[1:], theirs[1:], strict=True)]
    figures["times_duckdb"] = round(statistics.median(quotients), 2)
    figures["peak_mb"] = peak.most_mb
    spark.stop()
    return figures


def asked(folder: Path) -> dict[str, Any]:
    """What DuckDB says: its memory is not to count as ours."""
    command = [sys.executable, "-m", "tests.pipeline.second_opinion", str(folder)]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    told: dict[str, Any] = json.loads(said)
    return told


class Peak:
    """`with peak:` how much memory all processes have at most, together."""

    def __init__(self) -> None:
        self.most_mb = 0
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> None:
        self._ended.clear()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        assert self._thread is not None
        self._thread.join()

    def _watch(self) -> None:
        me = os.getpid()
        while not self._ended.wait(0.5):
            total = sum(memory_mb(pid) for pid in (me, *children(me)))
            self.most_mb = max(self.most_mb, round(total))


def memory_mb(pid: int) -> float:
    """What a process has in memory; what it shares, in parts."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:  # it has just ended
        return 0.0
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith("Pss:")), 0.0)


def children(pid: int) -> list[int]:
    """Processes that it started, and those that these started."""
    found = []
    with contextlib.suppress(OSError):  # it has just ended
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in map(int, (task / "children").read_text().split()):
                found += [child, *children(child)]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--events", type=float, default=5.0, help="in millions")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", type=Path, help="where to; it is removed  [default: temporary]")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="qmd-audit-", dir=given.folder))
    try:
        figures = measure(int(given.events * 1e6), given.rounds, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if given.json:
        print(json.dumps(figures))
        return
    for name, value in figures.items():
        print(f"{name:24} {value}")


if __name__ == "__main__":
    main()
