"""All benchmarks: the measured figures beside the promised ones.

    python -m benchmarks [--runs N] [--messages N] [--without-peers] [--tree FOLDER] [--write]

Figures that depend on the whole machine are measured several times; the table shows the medians.
Then qmd and other queues get the same load by turns (`python -m benchmarks.peers`), so that other
load on the machine affects all alike; `--write` puts their tables into docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from benchmarks import pair
from benchmarks.peers import __main__ as peers

Figures = dict[str, Any]  # the output of a benchmark with --json


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    name: str
    unit: str
    of: Callable[[Figures], float]
    digits: int = 1
    at_most: float | None = None
    at_least: float | None = None

    @property
    def promise(self) -> str:
        if self.at_most is not None:
            return f"<= {self.at_most:,g}"
        return f">= {self.at_least:,g}" if self.at_least is not None else "-"

    def is_kept(self, value: float) -> bool:
        return (self.at_most is None or value <= self.at_most) and (
            self.at_least is None or value >= self.at_least
        )


def figure(*keys: str) -> Callable[[Figures], float]:
    """Return a function that picks a figure by its keys; of a list (one per daemon), the worst."""

    def find(figures: Figures) -> float:
        value: Any = figures
        for key in keys:
            value = value[key]
        return float(max(value) if isinstance(value, list) else value)

    return find


SINGLE: dict[str, list[Row]] = {
    "bench_codec": [
        Row("parse a packet of 1 KiB", "us", figure("parse"), at_most=8),
        Row("build it", "us", figure("build"), at_most=6),
    ],
    "bench_session": [
        Row("session: receive, above the parsing", "us", figure("receive, above that")),
        Row("session: send", "us", figure("send")),
    ],
    "bench_storage": [
        Row(
            f"storage: append and delete, {rows} together",
            "rows/s",
            figure(f"queue, append + delete, batches of {rows}", "rows/s"),
            digits=0,
        )
        for rows in (1, 512)
    ],
    "bench_local": [
        Row("one client, one local queue", "sends/s", figure("sends_per_s"), 0, at_least=25_000),
        Row("", "receives/s", figure("receives_per_s"), 0, at_least=25_000),
        Row("1,000 receivers wait on 200 queues", "% CPU", figure("idle_cpu_percent"), 2, 0.5),
        Row("woken after the commit: p50", "ms", figure("wake_p50_ms"), 2, at_most=5),
    ],
    "bench_events": [
        Row("events: throughput that they take", "%", figure("slower_percent"), at_most=10),
        Row("events: CPU time that they take", "%", figure("more_cpu_percent")),
        Row("events: room that they take", "B/message", figure("log_bytes_per_message")),
    ],
    "bench_cli": [
        Row(
            "slowest --help",
            "ms",
            lambda figures: float(max(figures.values())),
            digits=0,
            at_most=200,
        )
    ],
}

TRANSACTIONAL = [
    Row("end to end, transactional", "messages/s", figure("messages_per_s"), 0, at_least=12_000),
    Row(
        "CPU of both daemons, for 1,000",
        "s",
        figure("daemons_cpu_s_per_1000"),
        digits=3,
        at_most=0.1,
    ),
    Row("at 200/s, until removed: p50", "ms", figure("latency_p50_ms"), 2, at_most=3),
    Row("at 200/s, until removed: p99", "ms", figure("latency_p99_ms"), 2, at_most=8),
    Row("at 200/s, until given: p50", "ms", figure("given_p50_ms"), 2),
    Row("at 200/s, until given: p99", "ms", figure("given_p99_ms"), 2),
    Row("idle daemon: memory", "MB", figure("idle_rss_mb"), at_most=40),
    Row("idle daemon: CPU", "%", figure("idle_cpu_percent"), 2, at_most=0.5),
    Row("loaded daemon: memory", "MB", figure("peak_rss_mb")),
]
RECOVERABLE = [
    Row("end to end, recoverable", "messages/s", figure("messages_per_s"), digits=0),
    Row("CPU of both daemons, for 1,000", "s", figure("daemons_cpu_s_per_1000"), digits=3),
]


async def run(module: str, *arguments: str) -> Figures:
    """Run one benchmark in a process of its own; return its figures."""
    tell(f"{module} {' '.join(arguments)}".rstrip())
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", f"benchmarks.{module}", *arguments, "--json"),
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        output, _ = await process.communicate()
    except asyncio.CancelledError:
        process.terminate()
        await process.wait()
        raise
    if process.returncode:
        raise SystemExit(f"benchmarks.{module} failed")
    figures: Figures = json.loads(output)
    return figures


def tell(what: str) -> None:
    print(f"... {what}", file=sys.stderr, flush=True)


async def measure(runs: int, messages: int) -> None:
    lines = [line("", "promise", "measured", "least", "most")]
    for module, rows in SINGLE.items():
        found = await run(module)
        lines += [compare(row, [found]) for row in rows]

    transactional: list[Figures] = []
    recoverable: list[Figures] = []
    load = ("--messages", str(messages))
    for _ in range(runs):
        transactional.append(await run("bench_end_to_end", *load))
        recoverable.append(
            await run("bench_end_to_end", *load, "--delivery", "recoverable", "--throughput-only")
        )
    lines += [compare(row, transactional) for row in TRANSACTIONAL]
    lines += [compare(row, recoverable) for row in RECOVERABLE]

    print("\n".join(lines))
    print()
    loads = [found["load_average"] for found in transactional]
    syncs = [found["fdatasync_p50_ms"] for found in transactional]
    print(
        f"{os.cpu_count()} cores, load average {spread(loads)} before the end-to-end runs, an"
        f" fdatasync {spread(syncs)} ms (p50).\nOther work on the machine takes part in every"
        " figure but CPU time: compare figures of one table."
    )


def compare(row: Row, ours: list[Figures]) -> str:
    values = [row.of(found) for found in ours]
    median = statistics.median(values)
    cells = [f"{value:,.{row.digits}f}" for value in (median, min(values), max(values))]
    missed = "" if row.is_kept(median) else "  MISSED"
    return line(f"{row.name}, {row.unit}", row.promise, *cells) + missed


def line(name: str, *cells: str) -> str:
    return f"{name:48}" + "".join(f"{cell:>11}" for cell in cells)


def spread(values: Iterable[float]) -> str:
    found = sorted(values)
    return f"{found[0]:g}" if found[0] == found[-1] else f"{found[0]:g} to {found[-1]:g}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=3, help="of the end-to-end benchmarks")
    parser.add_argument("--messages", type=int, default=60_000, help="of each of them")
    parser.add_argument("--without-peers", action="store_true")
    given, of_peers = parser.parse_known_args()
    pair.run(measure(given.runs, given.messages))
    if not given.without_peers:
        print()
        peers.main(of_peers)


if __name__ == "__main__":
    main()
