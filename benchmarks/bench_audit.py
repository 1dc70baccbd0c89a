"""The audit of a fleet against DuckDB, on the same files in one run.

    python -m benchmarks.bench_audit [--events MILLIONS] [--rounds N] [--folder DIR] [--json]

DuckDB asks for the same findings in one query over every message, with two threads; the audit runs
in local[2] with a heap of 1 GB.  Both are measured warm, by turns, and the median of the quotients
counts.  The peak is that of Java and of the Python workers.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

EVENTS_PER_MESSAGE = 5
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
    from tests.pipeline.second_opinion import second_opinion

    spark = spark_session("bench audit", conf={"spark.driver.memory": "1g"})
    spark.sparkContext.setLogLevel("ERROR")
    files = find_files([str(folder / "logs")])
    ours: list[float] = []
    theirs: list[float] = []
    for _ in range(rounds + 1):  # the first one warms both up
        begun = time.monotonic()
        result = audit(spark, files, State())
        ours.append(time.monotonic() - begun)
        begun = time.monotonic()
        opinion = second_opinion(folder / "logs")
        theirs.append(time.monotonic() - begun)
    wanted = Counter(each["kind"] for each in truth["findings"])
    figures["finds_the_truth"] = Counter(result.counts) == wanted
    figures["duckdb_finds_the_truth"] = Counter(kind for kind, *_ in opinion.elements()) == wanted
    figures["audit_s"] = [round(each, 1) for each in ours[1:]]
    figures["duckdb_s"] = [round(each, 1) for each in theirs[1:]]
    quotients = [a / b for a, b in zip(ours[1:], theirs[1:], strict=True)]
    figures["times_duckdb"] = round(statistics.median(quotients), 2)
    java = spark.sparkContext._gateway.proc.pid
    figures["peak_java_mb"] = peak_mb(java)
    figures["peak_workers_mb"] = sum(peak_mb(pid) for pid in children(java))
    spark.stop()
    return figures


def peak_mb(pid: int) -> int:
    """The most that a process has had in memory."""
    status = Path(f"/proc/{pid}/status").read_text()
    lines = [line for line in status.splitlines() if line.startswith("VmHWM")]
    return int(lines[0].split()[1]) // 1024 if lines else 0  # it has just ended


def children(pid: int) -> list[int]:
    """Processes that it started, and those that these started."""
    found = []
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
