"""Curves: how the cost of a message grows with clients, sessions, queues, destinations and sizes.

    python -m benchmarks.scale [--only CURVE ...] [--large] [--write]

    clients       so many clients, each with one durable message under way
    sessions      messages of so many remote queue managers
    queues        messages to and from a daemon with so many queues; its status and its start
    fan-out       one send to so many queues of another host, until it is durable
    sizes         bodies of so many bytes: the rate, and the memory for those under way
    sizes-between the same between two hosts
    backlog       messages to and from a queue in which so many wait; its status and its start
    host-away     messages to a host that is away, for which so many wait, and its return
    idle          memory and start of a daemon with nothing to do (one point)

The processor time of the daemon is compared with that of the first point; elapsed time and rates
depend on other work on the machine.  `--large` adds the points that take minutes.  `--write` draws
docs/images/scale-*.svg and puts the tables into docs/benchmarks.md;
curves that were not measured stay.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import datetime
import os
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import structlog

from benchmarks import bare_loop, bench_many, pair, scale_backlogs, scale_sizes
from benchmarks.many_queues import measure as measure_queues
from benchmarks.meter import Meter, Point
from benchmarks.peers.report import markdown, text
from benchmarks.scale_plots import draw, write
from qmd.client import QueueManager
from qmd.client.new_message import new_message
from tests.process.remote import RemoteQueueManager

MESSAGES = 2000  # of a curve's point
SESSION_MESSAGES = 6000
POLL_PART = 0.1  # of the time so far, between two looks
PROVEN = 10  # messages of each session before: until 8 were useful, it shares slices with others
QUEUE = "scale"
KIB = 1024

Curve = list[Point]  # the first figure is the place on the axis


@contextlib.asynccontextmanager
async def a_daemon() -> AsyncIterator[pair.Daemon]:
    """Yield a running daemon with a queue."""
    with tempfile.TemporaryDirectory(prefix="qmd-scale-") as folder:
        daemon = pair.Daemon(Path(folder) / "a", "a")
        async with pair.stopped_at_end(daemon):
            await daemon.create()
            await daemon.start()
            async with daemon.client() as client:
                await client.create_queue(QUEUE, quota_bytes=1 << 32)
            yield daemon


async def clients(count: int) -> Point:
    body = bytes(KIB)

    async def send(client: QueueManager, messages: int) -> None:
        for _ in range(messages):
            await client.send(QUEUE, body, delivery="recoverable")

    async with a_daemon() as daemon, contextlib.AsyncExitStack() as open_clients:
        connected = [await open_clients.enter_async_context(daemon.client()) for _ in range(count)]
        each = max(MESSAGES // count, 2) if count > 1 else MESSAGES // 4
        await asyncio.gather(*(send(client, 1) for client in connected))  # outcome: all are ready
        meter = Meter(daemon)
        await asyncio.gather(*(send(client, each) for client in connected))
        return {"clients": count} | meter.of(count * each)


async def sessions(count: int) -> Point:
    """Handshakes, and making the packets, are not counted: only the daemon is measured."""

    def packets(peers: list[tuple[RemoteQueueManager, Any]], messages: int) -> list[bytes]:
        remotes = [remote for remote, _ in peers]
        return [
            remotes[number % count].message(QUEUE, bytes(KIB), recoverable=True)
            for number in range(messages)
        ]

    def send(peers: list[tuple[RemoteQueueManager, Any]], packets: list[bytes]) -> None:
        for number, packet in enumerate(packets):
            peers[number % count][1].send(packet, timeout_s=60)
        for _, peer in peers:
            while peer.connection.has_data():
                peer.read()

    async with a_daemon() as daemon, contextlib.AsyncExitStack() as remotes:
        peers = []
        for number in range(count):
            remote = remotes.enter_context(RemoteQueueManager())
            source = f"127.0.{1 + number // 250}.{1 + number % 250}"
            peers.append(
                (remote, await asyncio.to_thread(remote.connect, daemon.port, source=source))
            )
        async with daemon.client() as client:
            await asyncio.to_thread(send, peers, packets(peers, PROVEN * count))
            await _holds(client, PROVEN * count)
            made = packets(peers, SESSION_MESSAGES)
            meter = Meter(daemon)
            await asyncio.to_thread(send, peers, made)
            await _holds(client, PROVEN * count + SESSION_MESSAGES)
            point = meter.of(SESSION_MESSAGES)
        point = {"sessions": count} | point | {"memory, MB": round(daemon.rss_mb())}
    bare_us = await asyncio.to_thread(bare_loop.cpu_us, pair.free_port(), count, SESSION_MESSAGES)
    return point | {"a bare event loop: CPU µs": bare_us}


async def _holds(client: QueueManager, messages: int) -> None:
    """Wait for messages; ask rarely if that takes long, because the daemon's answers cost too."""
    began_s = time.perf_counter()
    while (await client.status())["messages"] < messages:
        waited_s = time.perf_counter() - began_s
        await asyncio.sleep(max(pair.POLL_S, POLL_PART * waited_s))


async def queues(count: int) -> Point:
    found = await measure_queues(count, None)
    names = {"status_ms": "status, ms", "start_s": "start, s", "rss_mb": "memory, MB"}
    point = {"queues": count} | {names[key]: found[key] for key in names if key in found}
    async with a_daemon() as daemon, daemon.client() as client:
        for begin in range(0, count, 500):
            some = range(begin, min(begin + 500, count))
            await asyncio.gather(*(client.create_queue(f"q{number}") for number in some))
        meter, step = Meter(daemon), max(count // 100, 1)
        to = [f"q{number * step % count}" for number in range(100)]
        for _ in range(MESSAGES // 100):
            await client.send_many(
                [new_message(name, bytes(KIB), delivery="recoverable") for name in to]
            )
        point["send: CPU µs a message"] = meter.of(MESSAGES)["CPU µs a message"]
        return point | {"memory, MB": round(daemon.rss_mb())}


async def fan_out(count: int) -> Point:
    with tempfile.TemporaryDirectory(prefix="qmd-scale-") as folder:
        found = await bench_many.measure(Path(folder), count, KIB, 11)
    return {
        "destinations": count,
        "durable, least, ms": found["together_best_ms"],
        "durable, median, ms": found["together_ms"],
        "CPU ms": found["together_cpu_ms"],
    }


async def idle(_: int) -> Point:
    with tempfile.TemporaryDirectory(prefix="qmd-scale-") as folder:
        daemon = pair.Daemon(Path(folder) / "a", "a")
        async with pair.stopped_at_end(daemon):
            await daemon.create()
            began_s = time.perf_counter()
            await daemon.start()
            took_s, cpu_s = time.perf_counter() - began_s, daemon.cpu_s()
            await asyncio.sleep(1)
            pss_mb, uss_mb = daemon.pss_uss_mb()
            return {
                "daemons": 1,
                "memory, MB": round(daemon.rss_mb(), 1),
                "with a part of shared pages, MB": round(pss_mb, 1),
                "own pages, MB": round(uss_mb, 1),
                "start, s": round(took_s, 2),
                "start: CPU s": round(cpu_s, 2),
            }


Measure = Callable[[int], Awaitable[Point]]
CURVES: dict[str, tuple[Measure, tuple[int, ...], tuple[int, ...]]] = {
    "clients": (clients, (1, 10, 100, 1000), ()),
    "sessions": (sessions, (1, 10, 100, 1000), ()),
    "queues": (queues, (10, 1000, 10_000), (32_000,)),
    "fan-out": (fan_out, (1, 10, 100, 1000), ()),
    "sizes": (scale_sizes.local, scale_sizes.SIZES, ()),
    "sizes-between": (scale_sizes.between, scale_sizes.SIZES, ()),
    "backlog": (scale_backlogs.local, (0, 100_000, 1_000_000), (10_000_000,)),
    "host-away": (scale_backlogs.outgoing, (0, 100_000, 1_000_000), (10_000_000,)),
    "idle": (idle, (1,), ()),
}


async def measure(names: list[str], *, large: bool) -> dict[str, Curve]:
    """Return the points of curves, by name."""
    found: dict[str, Curve] = {}
    for name in names:
        point, places, more = CURVES[name]
        found[name] = []
        for place in (*places, *(more if large else ())):
            found[name].append(await point(place))
        print(text(_table(found[name])), flush=True)
    return found


def _table(curve: Curve) -> list[list[str]]:
    head = list(curve[0])
    return [head, *([f"{point[name]:,}" for name in head] for point in curve)]


def section(name: str, curve: Curve, about: str) -> str:
    """Draw a curve, and return its part of the manual."""
    plot = f"\n\n![{name}](images/{draw(name, curve)})" if len(curve) > 1 else ""
    return f"{about}\n\n{markdown(_table(curve))}{plot}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=tuple(CURVES), default=list(CURVES))
    parser.add_argument("--large", action="store_true")
    parser.add_argument("--write", action="store_true")
    given = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    before = os.getloadavg()[0]
    found = pair.run(measure(given.only, large=given.large))
    about = (
        f"{datetime.datetime.now(datetime.UTC).date()}, one run, {os.cpu_count()} processors, load"
        f" average {before:.1f} before and {os.getloadavg()[0]:.1f} after it."
    )
    print(about)
    if given.write:
        write({name: section(name, curve, about) for name, curve in found.items()})


if __name__ == "__main__":
    main()
