"""Spark and a queue: read it as a table, and move it to another queue as a stream.

    python -m benchmarks.bench_pipeline [--messages N] [--body-bytes N] [--batch N] [--json]

Local mode with two threads; Spark, its Python workers and the queue manager share the machine.  The
start of the session and each first run, which compiles, do not count: rows a second are those of
the best run of a batch read, and of the median batch of a stream.  Beside them the benchmark prints
the CPU time of a row in the queue manager, in Java and in the Python workers: those figures are
valid on a machine with other load too.
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
from pipeline.spark.session import spark_session, use_here
from qmd.client import new_message

RUNS = 4
SENT_AT_ONCE = 2_000
FEW = "position,id,label,body,sent_at,class,priority,destination"


class CpuTime:
    """CPU time since creation: of the queue manager, of Java, and of Spark's workers."""

    def __init__(self, daemon: pair.Daemon) -> None:
        self._daemon = daemon
        self._began = self._now()

    def us_each(self, count: int) -> dict[str, float]:
        """Return the CPU time per row in microseconds, for `count` rows."""
        return {
            f"{name}_us_a_row": 1e6 * (now - before) / count
            for (name, now), before in zip(self._now().items(), self._began.values(), strict=True)
        }

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


async def fill(daemon: pair.Daemon, messages: int, body_bytes: int) -> None:
    body = bytes(body_bytes)
    async with daemon.client() as qm:
        await qm.create_queue("bench", transactional=True, quota_bytes=-1)
        await qm.create_queue("copy", transactional=True, quota_bytes=-1)
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
        seconds = []
        for run in range(RUNS):
            if run == 1:  # the first one compiles
                spent = CpuTime(daemon)
            began = time.monotonic()
            spark.read.format("qmd").options(**options).load().write.format("noop").mode(
                "overwrite"
            ).save()
            seconds.append(time.monotonic() - began)
        figures[f"{name}_rows_per_s"] = messages / min(seconds)
        for each, cost_us in spent.us_each((RUNS - 1) * messages).items():
            figures[f"{name}_{each}"] = cost_us
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
            finally:
                await asyncio.to_thread(spark.stop)
            return {"batch read": read, "queue to queue": moved}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--messages", type=int, default=200_000)
    parser.add_argument("--body-bytes", type=int, default=100)
    parser.add_argument("--batch", type=int, default=20_000)
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
