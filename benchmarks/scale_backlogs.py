"""Curves over the length of a queue: messages that wait here, and for a host that is away."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from benchmarks import pair
from benchmarks.meter import Meter, Point
from qmd.client import QueueManager
from qmd.client.new_message import new_message

QUEUE = "scale"
BODY = bytes(100)
BATCH = 1000
#: Messages that are measured at each length.
MESSAGES = 30_000
QUOTA_BYTES = 1 << 36
STATUS_ASKED = 5
PATIENCE_S = 300.0
#: The returned host holds so many before its rate is measured: its session is fast by then.
WARM = 5_000

Send = Callable[[QueueManager, int], Coroutine[Any, Any, None]]


def _to(destination: str, delivery: str) -> Send:
    async def send(client: QueueManager, messages: int) -> None:
        row = new_message(destination, BODY, delivery=delivery)
        for begin in range(0, messages, BATCH):
            await client.send_many([row] * min(BATCH, messages - begin))

    return send


def _daemon(folder: str, name: str) -> pair.Daemon:
    environment = {"QMD_QUOTAS_COMPUTER": f"{QUOTA_BYTES}B"}
    return pair.Daemon(Path(folder) / name, name, environment=environment)


async def _status_ms(client: QueueManager) -> float:
    """Return the shortest of a few requests for the status."""
    took_s = []
    for _ in range(STATUS_ASKED):
        began_s = time.perf_counter()
        await client.status()
        took_s.append(time.perf_counter() - began_s)
    return round(min(took_s) * 1e3, 1)


async def _after_restart(daemon: pair.Daemon) -> Point:
    """Kill the daemon and start it again; return the times of that, and its memory then."""
    await daemon.kill()
    began_s = time.perf_counter()
    await daemon.start()
    async with daemon.client() as client:
        await client.status()
    return {
        "start, s": round(time.perf_counter() - began_s, 2),
        "start: CPU s": round(daemon.cpu_s(), 2),
        "memory, MB": round(daemon.rss_mb()),
    }


async def local(count: int) -> Point:
    """Messages are sent to, and received from, a queue in which `count` messages wait."""
    with tempfile.TemporaryDirectory(prefix="qmd-scale-") as folder:
        daemon, send = _daemon(folder, "a"), _to(QUEUE, "recoverable")
        async with pair.stopped_at_end(daemon):
            await daemon.create()
            await daemon.start()
            async with daemon.client() as client:
                await client.create_queue(QUEUE, quota_bytes=QUOTA_BYTES)
                await send(client, count)
            point = {"messages waiting": count} | await _after_restart(daemon)
            async with daemon.client() as client:
                point["status, ms"] = await _status_ms(client)
                meter = Meter(daemon)
                await send(client, MESSAGES)
                sent = meter.of(MESSAGES)
                meter, left = Meter(daemon), MESSAGES
                while left:
                    left -= len(await client.receive_many(QUEUE, limit=min(BATCH, left)))
                received = meter.of(MESSAGES)
            return point | {
                "sent/s": sent["messages/s"],
                "received/s": received["messages/s"],
                "send: CPU µs": sent["CPU µs a message"],
                "receive: CPU µs": received["CPU µs a message"],
                "memory after it, MB": round(daemon.rss_mb()),
            }


async def outgoing(count: int) -> Point:
    """Messages are sent to a host that is away, for which `count` wait; then it comes back."""
    with tempfile.TemporaryDirectory(prefix="qmd-scale-") as folder:
        a, b = _daemon(folder, "a"), _daemon(folder, "b")
        send = _to(b.destination(QUEUE), "transactional")
        async with pair.stopped_at_end(a, b):
            for daemon in (a, b):
                await daemon.create()
                await daemon.start()
            async with b.client() as client:
                await client.create_queue(QUEUE, transactional=True, quota_bytes=QUOTA_BYTES)
            await b.stop()
            async with a.client() as client:
                await send(client, count)
            point = {"messages waiting": count} | await _after_restart(a)
            async with a.client() as client:
                point["status, ms"] = await _status_ms(client)
                meter = Meter(a)
                await send(client, MESSAGES)
                sent = meter.of(MESSAGES)
            await b.start()
            async with b.client() as there:
                await _until(there, WARM)
                meter, began_s = Meter(a), time.perf_counter()
                drained = await _until(there, WARM + MESSAGES // 2) - WARM
                took_s = time.perf_counter() - began_s
            return point | {
                "sent/s": sent["messages/s"],
                "delivered/s": round(drained / took_s),
                "send: CPU µs": sent["CPU µs a message"],
                "deliver: CPU µs": meter.of(drained)["CPU µs a message"],
                "memory after it, MB": round(a.rss_mb()),
            }


async def _until(client: QueueManager, messages: int) -> int:
    """Wait until the host has so many messages; return their number."""
    deadline_s = time.monotonic() + PATIENCE_S
    while (there := (await client.show_queue(QUEUE))["messages"]) < messages:
        if time.monotonic() > deadline_s:
            raise SystemExit(f"only {there} of {messages} messages came")
        await asyncio.sleep(0.02)
    return int(there)
