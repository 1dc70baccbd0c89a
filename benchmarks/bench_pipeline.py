"""Spark and a queue: read it as a table, and move it to another queue as a stream.

    python -m benchmarks.bench_pipeline [--messages N] [--body-bytes N] [--batch N]
                                        [--stream-batch N] [--json]

Local mode with two threads; Spark, its Python workers and the queue manager share the machine.  The
start of the session and the first runs, in which Java compiles, do not count: rows a second are
those of the best run of a batch read, and of the median batch of a stream.  Beside them the
benchmark prints the CPU time of a row in the queue manager, in Java and in the Python workers:
those figures are valid on a machine with other load too.

Each query has a cost of its own besides that of its rows: plans, processes, and code that Java
compiles for them.  The benchmark measures it with reads of one message, and prints as `steady` the
cost of a row without it.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks import pair
from pipeline.source.checkpoint import finish
from pipeline.spark.checkpoint_files import local_files
from pipeline.spark.session import spark_session, use_here
from qmd.client import new_message

RUNS = 6
COMPILING = 3  # first runs that do not count
SENT_AT_ONCE = 2_000
FEW = "position,id,label,body,sent_at,class,priority,destination"


class CpuTime:
    """CPU time since creation: of the queue manager, of Java, and of Spark's workers."""

    def __init__(self, daemon: pair.Daemon) -> None:
        self._daemon = daemon
        self._began = self._now()

    def us_each(self, count: int) -> dict[str, float]:
        """Return the CPU time per row in microseconds, for `count` rows."""
        return {f"{name}_us_a_row": 1e6 * spent / count for name, spent in self.spent_s().items()}

    def spent_s(self) -> dict[str, float]:
        """Return the CPU time since creation, in seconds."""
        now = self._now()
        return {name: now[name] - before for name, before in self._began.items()}

    def _now(self) -> dict[str, float]:
        spent = {"daemon": self._daemon.cpu_s(), "java": 0.0, "python": 0.0}
        waiting = _children(os.getpid())
        while waiting:
            pid = waiting.pop()
            with contextlib.suppress(OSError):
                name = Path(f"/proc/{pid}/comm").read_text().strip()
                if pid == self._daemon.pid:
                    continue
                spent["java" if name == "java" else "python"] += _cpu_s(pid, ended=name != "java")
                waiting += _children(pid)
        return spent


def _children(pid: int) -> list[int]:
    found = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):
            found += map(int, (task / "children").read_text().split())
    return found


def _cpu_s(pid: int, *, ended: bool) -> float:
    """Return user and system time of a process; with `ended`, add that of its ended children."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11 : 15 if ended else 13])) / os.sysconf("SC_CLK_TCK")


async def create_queues(daemon: pair.Daemon) -> None:
    async with daemon.client() as qm:
        for queue in ("bench", "copy"):
            await qm.create_queue(queue, transactional=True, quota_bytes=-1)


async def fill(daemon: pair.Daemon, messages: int, body_bytes: int) -> None:
    body = bytes(body_bytes)
    async with daemon.client() as qm:
        for first in range(0, messages, SENT_AT_ONCE):
            numbers = range(first, min(messages, first + SENT_AT_ONCE))
            await qm.send_many([new_message("bench", body, label=f"order {n}") for n in numbers])


def batch_reads(spark: Any, daemon: pair.Daemon, messages: int) -> dict[str, float]:
    """Return rows a second, for sinks that read everything, and the CPU time of a row."""
    figures = {}
    for name, columns, partitions in (
        ("all_columns", "", 2),
        ("eight_columns", FEW, 2),
        ("eight_columns_one_part", FEW, 1),
    ):
        options = {
            "endpoint": str(daemon.control_socket),
            "queue": "bench",
            "partitions": partitions,
        }
        if columns:
            options["columns"] = columns
        reads_s, spent = reads(spark, daemon, options)
        _, alone = reads(spark, daemon, options | {"endingOffsets": '{"bench": 2}'})
        figures[f"{name}_rows_per_s"] = messages / min(reads_s)
        for process in spent:
            figures[f"{name}_{process}_us_a_row"] = 1e6 * spent[process] / messages
        figures[f"{name}_us_a_row"] = 1e6 * sum(spent.values()) / messages
        figures[f"{name}_ms_a_query"] = 1e3 * sum(alone.values())
        steady_s = sum(spent.values()) - sum(alone.values())
        figures[f"{name}_steady_us_a_row"] = 1e6 * steady_s / messages
    return figures


def reads(
    spark: Any, daemon: pair.Daemon, options: dict[str, Any]
) -> tuple[list[float], dict[str, float]]:
    """Read several times; return the duration of each counted read, and the mean CPU times, in
    seconds."""
    durations_s = []
    for run in range(RUNS):
        if run == COMPILING:
            cpu = CpuTime(daemon)
        began = time.monotonic()
        rows = spark.read.format("qmd").options(**options).load()
        rows.write.format("noop").mode("overwrite").save()
        if run >= COMPILING:
            durations_s.append(time.monotonic() - began)
    counted = len(durations_s)
    return durations_s, {name: spent / counted for name, spent in cpu.spent_s().items()}


def stream_reads(spark: Any, daemon: pair.Daemon, folder: Path, batch: int) -> dict[str, float]:
    """Return rows a second of a stream of all columns, and the CPU time of a row, for a reader that
    shares the queue and for one that empties it."""
    use_here(spark)  # another thread may have used the session before
    figures = {}
    for name, shared, runs in (("shared", "true", COMPILING), ("alone", "false", 1)):
        for run in range(runs):
            rows = (
                spark.readStream.format("qmd")
                .options(endpoint=str(daemon.control_socket), queue="bench", partitions=2)
                .options(readerId=f"{name}-{run}", shared=shared, maxRowsPerTrigger=batch)
                .load()
            )
            place = folder / f"{name}-{run}"
            cpu = CpuTime(daemon)
            writer = (
                rows.writeStream.format("noop")
                .option("checkpointLocation", str(place))
                .trigger(availableNow=True)
            )
            with local_files(spark, str(place)):
                query = writer.start()
            query.awaitTermination()
            finish(str(place))
            spent = cpu.spent_s()
        full = [one for one in query.recentProgress if one.numInputRows == batch][1:]
        count = sum(one.numInputRows for one in query.recentProgress)
        batch_ms = statistics.median(one.durationMs["triggerExecution"] for one in full)
        figures[f"{name}_rows_per_s"] = 1000 * batch / batch_ms
        for process, spent_s in spent.items():
            figures[f"{name}_{process}_us_a_row"] = 1e6 * spent_s / count
        figures[f"{name}_us_a_row"] = 1e6 * sum(spent.values()) / count
    return figures


def stream(spark: Any, socket: str, folder: Path, batch: int) -> dict[str, float]:
    """Return messages a second from queue to queue."""
    use_here(spark)  # another thread may have used the session before
    rows = (
        spark.readStream.format("qmd")
        .options(endpoint=socket, queue="bench", readerId="bench", partitions=2)
        .option("columns", "label,body")
        .option("maxMessagesPerTrigger", batch)
        .load()
    )
    query = (
        rows.writeStream.format("qmd")
        .options(endpoint=socket, destination="copy", checkpointLocation=str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    finish(str(folder / "checkpoint"))
    full = [one for one in query.recentProgress if one.numInputRows == batch][1:]
    spent_ms = [one.durationMs["triggerExecution"] for one in full]
    parts = {
        name: statistics.median(one.durationMs.get(name, 0) for one in full)
        for name in ("latestOffset", "queryPlanning", "addBatch", "commitOffsets", "walCommit")
    }
    return {
        "batches": len(full),
        "batch_ms": statistics.median(spent_ms),
        "messages_per_s": 1000 * batch / statistics.median(spent_ms),
        **{f"{name}_ms": value for name, value in parts.items()},
    }


async def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="qmd-bench-") as name:
        folder = Path(name)
        daemon = pair.Daemon(folder / "a", "bench")
        async with pair.stopped_at_end(daemon):
            await daemon.create()
            await daemon.start()
            await create_queues(daemon)
            await fill(daemon, arguments.messages, arguments.body_bytes)
            socket = str(daemon.control_socket)
            spark = await asyncio.to_thread(
                spark_session, "bench", "local[2]", {"spark.driver.memory": "2g"}
            )
            try:
                read = await asyncio.to_thread(batch_reads, spark, daemon, arguments.messages)
                spent = CpuTime(daemon)
                moved = await asyncio.to_thread(stream, spark, socket, folder, arguments.batch)
                moved |= spent.us_each(arguments.messages)
                await fill(daemon, arguments.messages, arguments.body_bytes)
                streamed = await asyncio.to_thread(
                    stream_reads, spark, daemon, folder, arguments.stream_batch
                )
            finally:
                await asyncio.to_thread(spark.stop)
            return {"batch read": read, "queue to queue": moved, "stream": streamed}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--messages", type=int, default=500_000)
    parser.add_argument("--body-bytes", type=int, default=100)
    parser.add_argument("--batch", type=int, default=20_000)
    parser.add_argument("--stream-batch", type=int, default=100_000)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    figures = asyncio.run(measure(arguments))
    if arguments.json:
        print(json.dumps(figures))
        return
    for name, values in figures.items():
        print(name)
        for key, value in values.items():
            print(f"  {key:38} {value:12,.1f}")


if __name__ == "__main__":
    main()
