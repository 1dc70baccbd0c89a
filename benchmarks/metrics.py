"""Cost of metrics: a daemon with many queues under load, with and without scrapes, by turns.

    python -m benchmarks.metrics [--queues N] [--rounds N] [--seconds S] [--json]

The same load runs for `--seconds` with a collection every 5 s, and without one; each round gives a
quotient of the daemon's processor time for a message.  Other load on the machine hides a cost of
less than a few per cent, so the second figure is the processor time that the daemon takes for one
collection while nothing else happens, as a part of the 5 s: the promise is at most 1 %.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks import pair
from qmd.doors.metrics.collection import FRESH_S, Collector

Figures = dict[str, Any]
SCRAPE_S = 5.0
COLLECTIONS = 40
BATCH = 500


async def measure(queues: int, rounds: int, seconds: float) -> Figures:
    """Return all figures by name."""
    with tempfile.TemporaryDirectory(prefix="qmd-bench-") as folder:
        daemon = pair.Daemon(Path(folder) / "a", "a")
        await daemon.create()
        async with pair.stopped_at_end(daemon):
            await daemon.start()
            return await _measure(daemon, queues, rounds, seconds)


async def _measure(daemon: pair.Daemon, queues: int, rounds: int, seconds: float) -> Figures:
    async with daemon.client() as qm:
        for first in range(0, queues, BATCH):
            numbers = range(first, min(first + BATCH, queues))
            await asyncio.gather(*(qm.create_queue(f"q{number}") for number in numbers))
    collector = Collector(daemon.control_socket, 100, 100)
    await _load(daemon, 2.0)
    idle = [await _collections(daemon, collector) for _ in range(3)]
    found: dict[str, list[float]] = {"with": [], "without": []}
    for round_ in range(rounds):
        turns = ["with", "without"] if round_ % 2 == 0 else ["without", "with"]
        for turn in turns:
            scraping = asyncio.create_task(_scrape(collector)) if turn == "with" else None
            found[turn].append(await _load(daemon, seconds))
            if scraping is not None:
                scraping.cancel()
    await collector.close()
    quotients = [a / b for a, b in zip(found["with"], found["without"], strict=True)]
    cpu_ms = statistics.median(each["cpu_ms"] for each in idle)
    return {
        "queues": queues,
        "load_average": round(os.getloadavg()[0], 1),
        "collection_daemon_cpu_ms": round(cpu_ms, 2),
        "collection_took_ms": round(statistics.median(each["took_ms"] for each in idle), 1),
        "collection_part_percent": round(100 * cpu_ms / 1000 / SCRAPE_S, 3),
        "cpu_us_a_message_with_by_without": round(statistics.median(quotients), 4),
        "quotients": [round(each, 4) for each in quotients],
    }


async def _collections(daemon: pair.Daemon, collector: Collector) -> dict[str, float]:
    """Return the processor time of the daemon for one collection, and its duration."""
    took = 0.0
    cpu_s = sum(daemon.thread_cpu_s().values())
    began = time.monotonic()
    for _ in range(COLLECTIONS):
        collector.forget()
        found = await collector.collect()
        took += found.took_s
    used_s = sum(daemon.thread_cpu_s().values()) - cpu_s
    assert time.monotonic() - began < COLLECTIONS * FRESH_S * 10
    return {"cpu_ms": 1000 * used_s / COLLECTIONS, "took_ms": 1000 * took / COLLECTIONS}


async def _scrape(collector: Collector) -> None:
    while True:
        collector.forget()
        await collector.collect()
        await asyncio.sleep(SCRAPE_S)


async def _load(daemon: pair.Daemon, seconds: float) -> float:
    """Send and receive for some seconds; return the daemon's microseconds for a message."""
    body, count = bytes(100), 0
    cpu_s, until = sum(daemon.thread_cpu_s().values()), time.monotonic() + seconds
    async with daemon.client() as qm:
        while time.monotonic() < until:
            async with qm.sender("q0", window=4096) as sender:
                for _ in range(2000):
                    await sender.send(body, delivery="recoverable")
            async for _ in qm.receive_each("q0", timeout_s=0.0, batch=512):
                count += 1
    return 1e6 * (sum(daemon.thread_cpu_s().values()) - cpu_s) / count


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--queues", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=4, help="of two turns")
    parser.add_argument("--seconds", type=float, default=15.0, help="of a turn")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    figures = pair.run(measure(given.queues, given.rounds, given.seconds))
    if given.json:
        print(json.dumps(figures))
        return
    for name, value in figures.items():
        print(f"{name:36} {value}")


if __name__ == "__main__":
    main()
