"""Curves of body sizes: one daemon, two daemons, and the bound of the disk in the same minute.

Two bounds are measured beside each point: bodies that are written and synced one by one, and bodies
that SQLite alone inserts, a commit for each, with the page size and the checkpoints of the daemon.
"""

from __future__ import annotations

import os
import sqlite3
import tempfile
import time
from contextlib import closing
from pathlib import Path

from benchmarks import bench_end_to_end, pair
from benchmarks.meter import Meter, Point

KIB, MIB = 1024, 1024 * 1024
BYTES = 64 * MIB  # sent for each size, or MESSAGES if these are fewer
MESSAGES, LEAST_MESSAGES = 2000, 16
IN_FLIGHT, SMALL_IN_FLIGHT = 16, 200  # bodies that are sent without an answer
BETWEEN_BYTES = 16 * MIB  # sent to another host without an answer
PAGE_BYTES = 4 * KIB
QUEUE = "scale"
SIZES = (KIB, 16 * KIB, 64 * KIB, 256 * KIB, MIB, 4 * MIB - 4 * KIB)


def bounds(size: int) -> Point:
    """Return the rates of bodies that are written, or inserted, and synced one by one."""
    body, count = os.urandom(size), max(min(MESSAGES, BYTES // size) // 4, LEAST_MESSAGES)
    with tempfile.TemporaryDirectory(prefix="qmd-scale-") as folder:
        began_s = time.perf_counter()
        with Path(folder, "plain").open("wb", buffering=0) as file:
            for _ in range(count):
                file.write(body)
                os.fdatasync(file.fileno())
        plain_s = time.perf_counter() - began_s
        with closing(sqlite3.connect(Path(folder, "rows"), isolation_level=None)) as db:
            for setting in (
                f"page_size = {PAGE_BYTES}",
                "auto_vacuum = INCREMENTAL",
                "journal_mode = WAL",
                "synchronous = FULL",
                f"wal_autocheckpoint = {MIB // PAGE_BYTES}",
            ):
                db.execute(f"PRAGMA {setting}")
            db.execute("CREATE TABLE row (id INTEGER PRIMARY KEY, body BLOB)")
            began_s = time.perf_counter()
            for number in range(count):
                db.execute("INSERT INTO row VALUES (?, ?)", (number, body))
            rows_s = time.perf_counter() - began_s
    moved_mb = count * size / 1e6
    return {"disk, MB/s": round(moved_mb / plain_s, 1), "SQLite, MB/s": round(moved_mb / rows_s, 1)}


async def local(size: int) -> Point:
    """Measure bodies that are sent to a queue of the host, and then received."""
    count, body = max(min(MESSAGES, BYTES // size), LEAST_MESSAGES), os.urandom(size)
    with tempfile.TemporaryDirectory(prefix="qmd-scale-") as folder:
        daemon = pair.Daemon(Path(folder) / "a", "a")
        async with pair.stopped_at_end(daemon):
            await daemon.create()
            await daemon.start()
            async with daemon.client() as client:
                await client.create_queue(QUEUE, quota_bytes=1 << 32)
                window = min(IN_FLIGHT, count) if size >= MIB else SMALL_IN_FLIGHT
                idle_mb = daemon.rss_mb()
                meter = Meter(daemon)
                async with client.sender(QUEUE, window=window) as sender:
                    for _ in range(count):
                        await sender.send(body, delivery="recoverable")
                sent, peak_mb = meter.of(count), daemon.peak_rss_mb()
                meter = Meter(daemon)
                left = count
                while left:
                    left -= len(await client.receive_many(QUEUE, limit=min(window, left)))
                received = meter.of(count)
            peak_mb = max(peak_mb, daemon.peak_rss_mb())
    rates = [each["messages/s"] * size / 1e6 for each in (sent, received)]
    found = bounds(size)
    return {
        "bytes": size,
        "send, MB/s": round(rates[0], 1),
        "receive, MB/s": round(rates[1], 1),
        "send: CPU ms a MB": _cpu_ms(sent, size),
        "receive: CPU ms a MB": _cpu_ms(received, size),
        "in flight, MB": round(window * size / 1e6, 1),
        "memory above idle, MB": round(peak_mb - idle_mb, 1),
        **found,
        "send, of SQLite": round(rates[0] / found["SQLite, MB/s"], 2),
    }


async def between(size: int) -> Point:
    """Measure transactional messages, from the first send at A to the last removal at B."""
    messages = max(min(MESSAGES, BYTES // size), LEAST_MESSAGES)
    unconfirmed = max(min(BETWEEN_BYTES // size, SMALL_IN_FLIGHT), 4)
    load = bench_end_to_end.Load(messages=messages, body_bytes=size, unconfirmed=unconfirmed)
    async with bench_end_to_end.daemons(load) as (a, b):
        await bench_end_to_end.throughput(a, b, load, LEAST_MESSAGES)  # opens the session
        idle_mb = [daemon.rss_mb() for daemon in (a, b)]
        meters = [Meter(daemon) for daemon in (a, b)]
        exchanged = await bench_end_to_end.throughput(a, b, load, messages)
        costs = [meter.of(messages) for meter in meters]
        more_mb = [
            round(daemon.peak_rss_mb() - before, 1)
            for daemon, before in zip((a, b), idle_mb, strict=True)
        ]
    rate, found = exchanged["messages_per_s"] * size / 1e6, bounds(size)
    return {
        "bytes": size,
        "MB/s": round(rate, 1),
        "A: CPU ms a MB": _cpu_ms(costs[0], size),
        "B: CPU ms a MB": _cpu_ms(costs[1], size),
        "A: memory above idle, MB": more_mb[0],
        "B: memory above idle, MB": more_mb[1],
        **found,
        "of SQLite": round(rate / found["SQLite, MB/s"], 2),
    }


def _cpu_ms(cost: Point, size: int) -> float:
    return round(cost["CPU µs a message"] / 1e3 / (size / 1e6), 2)
