"""Client, daemon A, daemon B, client: the cost of a message, with an fsync before every promise.

    python -m benchmarks.bench_end_to_end [--messages N] [--delivery D] [--window N] ... [--json]

Four processes share the machine.  The sending client keeps a window of unconfirmed messages; the
receiving client checks the body and the order of each message, and removes it; a message counts as
received when its removal is durable.  The benchmark then measures the latency of single messages
that are sent at a steady pace, and the load of idle daemons.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.pair import Daemon, nothing_is_left, run, stopped_at_end

WARM_UP_MESSAGES = 5000
LATENCY_RATE_PER_S = 200
LATENCY_S = 10.0
IDLE_S = 5.0
RELEASE_TIMEOUT_S = 20.0
SYNCS = 300
SYNC_BYTES = 8192
QUEUE = "orders"


@dataclass(frozen=True, kw_only=True)
class Load:
    """The messages to send, and the settings of the daemons."""

    messages: int = 60_000
    body_bytes: int = 1024
    unconfirmed: int = 1000  # messages that the client sends without a confirmation
    delivery: str = "transactional"
    window_size: int | None = None  # of the sessions; None: the default
    events: bool = True  # whether the daemons keep events
    tls: bool = False  # whether the daemons use TLS between them

    @property
    def environment(self) -> dict[str, str]:
        settings = {} if self.events else {"QMD_EVENTS_ENABLED": "false"}
        if self.window_size is not None:
            settings["QMD_DELIVERY_WINDOW_SIZE"] = str(self.window_size)
        if self.tls:  # each makes a certificate, and offers its port
            settings |= {"QMD_TLS_ENABLED": "true", "QMD_TLS_PORT": "0"}
        return settings


async def measure(load: Load, *, throughput_only: bool = False) -> dict[str, Any]:
    """Return all figures of one run, by name."""
    figures: dict[str, Any] = {"load_average": round(os.getloadavg()[0], 1)}
    figures["fdatasync_p50_ms"], figures["fdatasync_p99_ms"] = fdatasync_ms()
    async with daemons(load) as (a, b):
        if not throughput_only:
            figures["idle_rss_mb"] = [round(daemon.rss_mb(), 1) for daemon in (a, b)]
        await throughput(a, b, load, WARM_UP_MESSAGES)
        figures |= await throughput(a, b, load, load.messages)
        if not throughput_only:
            figures |= await latency(a, b, load)
            figures["idle_cpu_percent"] = await idle_cpu_percent(a, b)
        figures["peak_rss_mb"] = [round(daemon.peak_rss_mb(), 1) for daemon in (a, b)]
    return figures


def fdatasync_ms() -> tuple[float, float]:
    """Return p50 and p99 of the disk's fdatasync now, the least that a commit needs."""
    took_ms = []
    with tempfile.TemporaryFile() as file:
        for _ in range(SYNCS):
            file.write(bytes(SYNC_BYTES))
            file.flush()
            began_s = time.perf_counter()
            os.fdatasync(file.fileno())
            took_ms.append((time.perf_counter() - began_s) * 1e3)
    cuts = statistics.quantiles(took_ms, n=100)
    return round(cuts[49], 2), round(cuts[98], 2)


@contextlib.asynccontextmanager
async def daemons(load: Load) -> AsyncIterator[tuple[Daemon, Daemon]]:
    """Yield two running daemons, with a queue at the second one."""
    with tempfile.TemporaryDirectory(prefix="qmd-bench-") as folder:
        a, b = (
            Daemon(Path(folder, name), name, environment=load.environment) for name in ("a", "b")
        )
        async with stopped_at_end(a, b):
            for daemon in (a, b):
                await daemon.create()
                await daemon.start()
            async with b.client() as there:
                await there.create_queue(QUEUE, transactional=load.delivery == "transactional")
            try:
                yield a, b
            except RuntimeError:
                for daemon in (a, b):
                    print(f"{daemon.name}: its last output:\n{daemon.last_words}", file=sys.stderr)
                raise


async def throughput(a: Daemon, b: Daemon, load: Load, messages: int) -> dict[str, Any]:
    """Measure from the first send to the last removal, and until A has released all messages."""
    before_s = [daemon.cpu_s() for daemon in (a, b)]
    sent, received = await _exchange(a, b, load, messages)
    async with asyncio.timeout(RELEASE_TIMEOUT_S), a.client() as here, b.client() as there:
        await nothing_is_left(here, there)
    cpu_s = [daemon.cpu_s() - before for daemon, before in zip((a, b), before_s, strict=True)]
    return {
        "messages_per_s": round(messages / (received["last_ns"] - sent["first_ns"]) * 1e9, 1),
        "daemons_cpu_s_per_1000": round(sum(cpu_s) / messages * 1000, 4),
        "daemon_us_per_message": [round(each / messages * 1e6, 1) for each in cpu_s],
        "client_us_per_message": [
            round(report["cpu_s"] / messages * 1e6, 1) for report in (sent, received)
        ],
    }


async def latency(a: Daemon, b: Daemon, load: Load) -> dict[str, Any]:
    """Measure until removal and until delivery, for messages at a steady pace."""
    messages = int(LATENCY_RATE_PER_S * LATENCY_S)
    _, received = await _exchange(a, b, load, messages, rate_per_s=LATENCY_RATE_PER_S)
    removed, given = received["removed_ms"], received["given_ms"]
    return {
        "latency_p50_ms": removed[0],
        "latency_p99_ms": removed[1],
        "given_p50_ms": given[0],
        "given_p99_ms": given[1],
    }


async def idle_cpu_percent(a: Daemon, b: Daemon) -> list[float]:
    """Return the CPU load of each daemon, with an idle session between them."""
    before_s = [daemon.cpu_s() for daemon in (a, b)]
    await asyncio.sleep(IDLE_S)
    return [
        round(100 * (daemon.cpu_s() - before) / IDLE_S, 2)
        for daemon, before in zip((a, b), before_s, strict=True)
    ]


async def _exchange(
    a: Daemon, b: Daemon, load: Load, messages: int, *, rate_per_s: float = 0.0
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Run both clients; return the reports of the sending and of the receiving one."""
    common = ("--messages", str(messages), "--body-bytes", str(load.body_bytes))
    common += ("--unconfirmed", str(load.unconfirmed))
    async with (
        _client("receive", b, QUEUE, *common) as receiver,
        _client(
            *("send", a, b.destination(QUEUE), *common),
            *("--delivery", load.delivery, "--rate-per-s", str(rate_per_s)),
        ) as sender,
    ):
        return await _report(sender), await _report(receiver)


@contextlib.asynccontextmanager
async def _client(
    role: str, daemon: Daemon, queue: str, *more: str
) -> AsyncIterator[asyncio.subprocess.Process]:
    """Start a client; it is connected and ready to begin when yielded."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "benchmarks.end_to_end_clients", role),
        *(str(daemon.control_socket), queue, *more),
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        assert process.stdout is not None
        if await process.stdout.readline() != b"ready\n":
            raise RuntimeError(f"the client that should {role} did not start")
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def _report(client: asyncio.subprocess.Process) -> dict[str, Any]:
    assert client.stdout is not None
    line = await client.stdout.readline()
    if not line:
        raise RuntimeError("a client failed: see above")
    report: dict[str, Any] = json.loads(line)
    return report


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--messages", type=int, default=Load.messages)
    parser.add_argument("--body-bytes", type=int, default=Load.body_bytes)
    parser.add_argument(
        "--delivery", choices=("transactional", "recoverable", "express"), default="transactional"
    )
    parser.add_argument("--window", type=int, help="window_size of both daemons")
    parser.add_argument("--throughput-only", action="store_true")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    load = Load(
        messages=given.messages,
        body_bytes=given.body_bytes,
        delivery=given.delivery,
        window_size=given.window,
    )
    figures = run(measure(load, throughput_only=given.throughput_only))
    if given.json:
        print(json.dumps(figures))
        return
    for name, value in figures.items():
        print(f"{name:28} {value}")


if __name__ == "__main__":
    main()
