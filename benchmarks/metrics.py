"""Cost of metrics: a daemon with many queues under load, with and without scrapes, by turns.

    python -m benchmarks.metrics [--queues N] [--rounds N] [--seconds S] [--json]

A collection every 5 s costs less than the noise of a busy machine.  So in the turns with metrics a
door in a process of its own collects OFTEN times as often.  The same load runs in each turn, and
turns alternate.  The additional processor time for a message, times the messages, is the time that
the collections cost; for one of them, as a part of the 5 s of a daemon that uses a processor fully,
it is the part of the throughput: the promise is at most 1 %.  Besides, the processor time for one
collection while nothing else happens, that of the daemon and that of the door.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from prometheus_client.openmetrics.exposition import generate_latest

from benchmarks import pair
from qmd.doors.metrics.collection import FRESH_S, Collector
from qmd.doors.metrics.families import families, up
from qmd.doors.metrics.program import Collected

Figures = dict[str, Any]
SCRAPE_S = 5.0
OFTEN = 4  # times as many collections as in practice: a door collects once in a second at most
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
    found: dict[str, list[tuple[float, int]]] = {"with": [], "without": []}
    collections: list[int] = []
    for round_ in range(rounds):
        turns = ["with", "without"] if round_ % 2 == 0 else ["without", "with"]
        for turn in turns:
            door = await _start_door(daemon) if turn == "with" else None
            found[turn].append(await _load(daemon, seconds))
            if door is not None:
                door.kill()
                collections.append((await door.communicate())[0].count(b"\n"))
    await collector.close()
    quotients = [a / b for (a, _), (b, _) in zip(found["with"], found["without"], strict=True)]
    costs_ms = [
        (a - b) * messages / 1000 / max(1, times)
        for (a, messages), (b, _), times in zip(
            found["with"], found["without"], collections, strict=True
        )
    ]
    cost_ms = statistics.median(costs_ms)
    cpu_ms = statistics.median(each["cpu_ms"] for each in idle)
    door_ms = statistics.median(each["door_ms"] for each in idle)
    return {
        "queues": queues,
        "load_average": round(os.getloadavg()[0], 1),
        "collection_daemon_cpu_ms": round(cpu_ms, 2),
        "collection_took_ms": round(statistics.median(each["took_ms"] for each in idle), 1),
        "collection_part_percent": round(100 * cpu_ms / 1000 / SCRAPE_S, 3),
        "door_cpu_ms": round(door_ms, 2),
        "door_part_percent": round(100 * door_ms / 1000 / SCRAPE_S, 3),
        "collection_under_load_cpu_ms": round(cost_ms, 2),
        "cost_percent": round(100 * cost_ms / 1000 / SCRAPE_S, 3),
        "quotients": [round(each, 4) for each in quotients],
    }


async def _collections(daemon: pair.Daemon, collector: Collector) -> dict[str, float]:
    """Return the processor time of the daemon for one collection, and its duration."""
    took = 0.0
    own_s = time.process_time()
    cpu_s = sum(daemon.thread_cpu_s().values())
    began = time.monotonic()
    for _ in range(COLLECTIONS):
        collector.forget()
        found = await collector.collect()
        took += found.took_s
        generate_latest(Collected([up(True), *families(found)]))
    used_s = sum(daemon.thread_cpu_s().values()) - cpu_s
    own_s = time.process_time() - own_s
    assert time.monotonic() - began < COLLECTIONS * FRESH_S * 10
    return {
        "cpu_ms": 1000 * used_s / COLLECTIONS,
        "door_ms": 1000 * own_s / COLLECTIONS,
        "took_ms": 1000 * took / COLLECTIONS,
    }


async def _start_door(daemon: pair.Daemon) -> asyncio.subprocess.Process:
    """Start a process that is the door, and scrapes itself."""
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "benchmarks.metrics", "--door", str(daemon.control_socket)),
        stdout=asyncio.subprocess.PIPE,
    )


async def _be_door(socket: Path) -> None:
    """Collect and write the text, as a scrape makes the door do, until a signal."""
    collector = Collector(socket, 100, 100)
    while True:
        collector.forget()
        found = await collector.collect()
        generate_latest(Collected([up(True), *families(found)]))
        print(flush=True)
        await asyncio.sleep(SCRAPE_S / OFTEN)


async def _load(daemon: pair.Daemon, seconds: float) -> tuple[float, int]:
    """Send and receive for some seconds; return the daemon's microseconds for a message, and the
    messages.
    """
    body, count = bytes(100), 0
    cpu_s, until = sum(daemon.thread_cpu_s().values()), time.monotonic() + seconds
    async with daemon.client() as qm:
        while time.monotonic() < until:
            async with qm.sender("q0", window=4096) as sender:
                for _ in range(2000):
                    await sender.send(body, delivery="recoverable")
            async for _ in qm.receive_each("q0", timeout_s=0.0, batch=512):
                count += 1
    return 1e6 * (sum(daemon.thread_cpu_s().values()) - cpu_s) / count, count


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--queues", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=12, help="of two turns")
    parser.add_argument("--seconds", type=float, default=5.0, help="of a turn")
    parser.add_argument("--door", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    if given.door:
        pair.run(_be_door(given.door))
        return
    figures = pair.run(measure(given.queues, given.rounds, given.seconds))
    if given.json:
        print(json.dumps(figures))
        return
    for name, value in figures.items():
        print(f"{name:36} {value}")


if __name__ == "__main__":
    main()
