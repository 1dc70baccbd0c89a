"""Cost of the event log: the same load with and without it, in turns.

    python -m benchmarks.bench_events [--messages N] [--rounds N] [--delivery D] [--json]

There are two pairs of daemons, and only one of them works at a time.  The turns alternate in both
directions (on, off, off, on), so that other load on the machine affects both alike.  Each round
gives a quotient; the result is the median of the rounds.
"""

from __future__ import annotations

import argparse
import json
import os
import sqlite3
import statistics
from contextlib import closing
from dataclasses import replace
from typing import Any

from benchmarks.bench_end_to_end import WARM_UP_MESSAGES, Load, daemons, throughput
from benchmarks.pair import Daemon, run
from storage.tables import events

Pair = tuple[Daemon, Daemon]
Figures = dict[str, Any]


async def measure(load: Load, rounds: int) -> Figures:
    """Return all figures by name."""
    figures: Figures = {"load_average": round(os.getloadavg()[0], 1)}
    without = replace(load, events=False)
    async with daemons(load) as on, daemons(without) as off:
        for pair in (on, off):
            await throughput(*pair, load, WARM_UP_MESSAGES)
        before = sum(map(log_bytes, on))
        found_on: list[Figures] = []
        found_off: list[Figures] = []
        for round_ in range(rounds):
            turns = [(on, found_on), (off, found_off)]
            for pair, found in turns if round_ % 2 == 0 else reversed(turns):
                found.append(await throughput(*pair, load, load.messages))
        taken = sum(map(log_bytes, on)) - before
    figures["slower_percent"] = _loss(found_off, found_on, "messages_per_s")
    figures["more_cpu_percent"] = -_loss(found_off, found_on, "daemons_cpu_s_per_1000")
    for name in ("messages_per_s", "daemons_cpu_s_per_1000"):
        figures[f"{name}_on"] = [each[name] for each in found_on]
        figures[f"{name}_off"] = [each[name] for each in found_off]
    # Of both daemons together: the events of one message from its sending to its receipt.
    figures["log_bytes_per_message"] = round(taken / (rounds * load.messages), 1)
    return figures


def log_bytes(daemon: Daemon) -> int:
    """Return the size of the log, while the daemon runs."""
    database = next(daemon.folder.rglob("queues.db"))
    with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as db:
        return events.size_bytes(db)


def _loss(off: list[Figures], on: list[Figures], name: str) -> float:
    """Return by how many percent the figure is smaller with events: the median of the rounds."""
    quotients = [with_[name] / without[name] for with_, without in zip(on, off, strict=True)]
    return round(100 * (1 - statistics.median(quotients)), 1)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--messages", type=int, default=30_000, help="of each turn")
    parser.add_argument("--rounds", type=int, default=6, help="of two turns")
    parser.add_argument(
        "--delivery", choices=("transactional", "recoverable", "express"), default="transactional"
    )
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    load = Load(messages=given.messages, delivery=given.delivery)
    figures = run(measure(load, given.rounds))
    if given.json:
        print(json.dumps(figures))
        return
    for name, value in figures.items():
        print(f"{name:28} {value}")


if __name__ == "__main__":
    main()
