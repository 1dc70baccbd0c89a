"""The audit of a fleet against DuckDB, on the same files in one run.

    python -m benchmarks.bench_audit [--events MILLIONS,...] [--rounds N] [--folder DIR] [--keep]
                                     [--json]
    python -m benchmarks.bench_audit --stream MILLIONS,...

DuckDB computes the same findings in one query over every message, with two threads and in a process
of its own; the audit runs in local[2] with the settings of `qmd pipeline run audit`, in a process
that has generated nothing.  Both are measured warm, in turns, and the median of the quotients
counts.  The peak is the memory of this process, Java and all Python workers together, at one moment
during the audit; shared memory counts once.  Spark reports the shuffled records.

Each size has processes of its own; the cost per event of the largest size is printed beside that of
the smallest.  With `--keep` the fleets stay in the folder and are reused by the next run.

`--stream` has one stream with a few faults instead, so that each of its messages is examined, and
the embedded engine with one thread: its memory must not grow with the stream.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import resource
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
FAULTS = "lost=20,acked_not_stored=20,duplicated=20,reordered=20,delayed=20,gap=20,delivered_dead=20,expired=200"  # noqa: E501


def make(events: int, folder: Path) -> None:
    """Write the logs of a fleet with about this many events."""
    from pipeline.generator import Fleet, generate, parse_faults

    fleet = Fleet(
        hosts=200,
        streams=2000,
        messages=events // EVENTS_PER_MESSAGE,
        plain_share=0.0,
        faults=parse_faults(FAULTS),
    )
    generate(fleet, folder)


def make_stream(events: int, folder: Path) -> None:
    """Write the logs of two hosts with one stream, of about this many events."""
    from pipeline.generator import Fleet, generate, parse_faults

    faults = parse_faults("lost=3,duplicated=3")
    messages = events // EVENTS_PER_MESSAGE
    fleet = Fleet(
        hosts=2, streams=1, messages=messages, days=1, plain_share=0.0, faults=faults
    )  # fmt: skip
    generate(fleet, folder)


def measure_stream(logs: Path) -> dict[str, Any]:
    """Return the figures of the embedded engine, in a process that does nothing else."""
    from pipeline.engines.local import LocalEngine
    from pipeline.events import find_files
    from pipeline.generator.fleet import TRUTH
    from pipeline.jobs.audit.job import audit
    from pipeline.jobs.audit.state import State

    truth = json.loads((logs / TRUTH).read_text())
    wanted = Counter(each["kind"] for each in truth["findings"])
    begun = time.process_time()
    with LocalEngine(threads=1) as engine:
        result = audit(engine, find_files([str(logs)]), State())
    return {
        "events": truth["events"],
        "finds_the_truth": Counter(result.counts) == wanted,
        "cpu_s": round(time.process_time() - begun, 1),
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
    }


def measure(logs: Path, rounds: int) -> dict[str, Any]:
    """Return all figures by name, for existing logs."""
    from pipeline.commands.job import job_settings
    from pipeline.events import find_files
    from pipeline.generator.fleet import TRUTH
    from pipeline.jobs.audit.job import audit
    from pipeline.jobs.audit.state import State
    from pipeline.spark.session import LOCAL, spark_session

    truth = json.loads((logs / TRUTH).read_text())
    wanted = Counter(each["kind"] for each in truth["findings"])
    figures: dict[str, Any] = {"load_average": round(os.getloadavg()[0], 1)}
    figures["events"] = truth["events"]
    settings = job_settings(LOCAL)
    if "HEAP" in os.environ:  # size of Java's heap
        settings["spark.driver.memory"] = os.environ["HEAP"]
    spark = spark_session("bench audit", conf=settings)
    spark.sparkContext.setLogLevel("ERROR")
    files = find_files([str(logs)])
    ours: list[float] = []
    theirs: list[float] = []
    shuffled = 0
    peak = Peak()
    for _ in range(rounds + 1):  # the first round warms both up
        before = last_stage(spark)
        with peak:
            begun = time.monotonic()
            result = audit(spark, files, State())
            ours.append(time.monotonic() - begun)
        shuffled = max(shuffled, sum(shuffles(spark, since=before)))
        opinion = duckdb_result(logs)
        theirs.append(opinion["seconds"])
    figures["finds_the_truth"] = Counter(result.counts) == wanted
    figures["duckdb_finds_the_truth"] = opinion["kinds"] == wanted
    figures["audit_s"] = [round(each, 1) for each in ours[1:]]
    figures["duckdb_s"] = [round(each, 1) for each in theirs[1:]]
    quotients = [a / b for a, b in zip(ours[1:], theirs[1:], strict=True)]
    figures["times_duckdb"] = round(statistics.median(quotients), 2)
    figures["s_for_a_million"] = round(statistics.median(ours[1:]) / truth["events"] * 1e6, 2)
    figures["shuffles_of_an_event"] = round(shuffled / truth["events"], 3)
    figures["peak_mb"] = peak.most_mb
    spark.stop()
    return figures


def shuffles(spark: Any, since: int = -1) -> list[int]:
    """Return the number of shuffled records of each stage after `since` that wrote any."""
    written = [int(each.shuffleWriteRecords()) for each in _stages(spark) if each.stageId() > since]
    return [records for records in written if records]


def last_stage(spark: Any) -> int:
    return max((int(each.stageId()) for each in _stages(spark)), default=-1)


def _stages(spark: Any) -> list[Any]:
    """Return Spark's data of each stage, from the store that its web pages use."""
    context = spark.sparkContext
    bus = context._jsc.sc().listenerBus()
    bus.waitUntilEmpty(60_000)
    nothing = context._gateway.new_array(context._jvm.double, 0)
    listed = context._jsc.sc().statusStore().stageList(None, False, False, nothing, None)
    return [listed.apply(at) for at in range(listed.size())]


def duckdb_result(folder: Path) -> dict[str, Any]:
    """Return DuckDB's result, from another process so that its memory does not count."""
    command = [sys.executable, "-m", "tests.pipeline.second_opinion", str(folder)]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    result: dict[str, Any] = json.loads(said)
    return result


class Peak:
    """Peak memory of all processes together, measured within `with peak:`."""

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
    """Return the memory of a process, with its part of shared memory."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:  # the process has ended
        return 0.0
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith("Pss:")), 0.0)


def children(pid: int) -> list[int]:
    """Return the child processes of a process, recursively."""
    found = []
    with contextlib.suppress(OSError):  # the process has ended
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in map(int, (task / "children").read_text().split()):
                found += [child, *children(child)]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--events", default="5", help="in millions; several with commas")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", type=Path, help="where to  [default: a temporary one]")
    parser.add_argument("--keep", action="store_true", help="leave the fleets there, or take them")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--make", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--stream", nargs="?", const="1", help="the sizes of one stream, instead")
    given = parser.parse_args()
    if given.make:
        (make_stream if given.stream else make)(given.make, given.folder)
        return
    if given.measure:
        print(json.dumps(measure_stream(given.folder) if given.stream
                         else measure(given.folder, given.rounds)))  # fmt: skip
        return
    of_stream = ("--stream",) if given.stream else ()
    folder = given.folder if given.keep else Path(tempfile.mkdtemp(dir=given.folder))
    measured: dict[str, Any] = {}
    try:
        for millions in map(float, (given.stream or given.events).split(",")):
            logs = folder / f"{'s' if given.stream else 'm'}{millions:g}"
            if not (logs / "_truth.json").exists():
                # Generate in another process: its memory must not count for the audit.
                _run("--make", str(int(millions * 1e6)), "--folder", str(logs), *of_stream)
            said = _run(
                "--measure", "--folder", str(logs), "--rounds", str(given.rounds), *of_stream
            )
            measured[f"{millions:g}"] = json.loads(said.splitlines()[-1])
    finally:
        if not given.keep:
            shutil.rmtree(folder, ignore_errors=True)
    if len(measured) > 1 and given.stream:
        peaks = [figures["peak_mb"] for figures in measured.values()]
        measured["largest_peak_over_smallest"] = round(peaks[-1] / peaks[0], 2)
    elif len(measured) > 1:
        each = [figures["s_for_a_million"] for figures in measured.values()]
        measured["largest_for_an_event_over_smallest"] = round(each[-1] / each[0], 2)
    if given.json:
        print(json.dumps(measured))
        return
    for size, figures in measured.items():
        print(f"{size} million events" if isinstance(figures, dict) else f"{size}: {figures}")
        for name, value in figures.items() if isinstance(figures, dict) else ():
            print(f"  {name:24} {value}")


def _run(*words: str) -> str:
    """Run this module in a process of its own; return its output."""
    command = [sys.executable, "-m", "benchmarks.bench_audit", *words]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout


if __name__ == "__main__":
    main()
