"""Client, daemon A, daemon B, client: what a message costs, with an fsync before every promise.

    python -m benchmarks.bench_end_to_end [--messages N] [--body BYTES] [--json]

The sending client keeps a window of messages unconfirmed; the receiving client
takes messages in batches and removes them, each removal committed before it
counts.  Four processes share the machine.  Then the latency of single messages,
sent at a steady pace, and what an idle daemon takes.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import statistics
import sys
import tempfile
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import uvloop

from benchmarks.pair import Daemon
from qmd.client import connect

WARM_UP_MESSAGES = 3000
WINDOW_MESSAGES = 2048
TAKE_MESSAGES = 256
TAKES_AHEAD = 4
LATENCY_RATE_PER_S = 200
LATENCY_S = 10.0
IDLE_S = 5.0


async def measure(messages: int, body_bytes: int, delivery: str) -> dict[str, Any]:
    """All figures of one run."""
    with tempfile.TemporaryDirectory(prefix="qmd-bench-") as folder:
        a, b = Daemon(Path(folder, "a"), "a"), Daemon(Path(folder, "b"), "b")
        try:
            for daemon in (a, b):
                await daemon.create()
                await daemon.start()
            async with b.client() as there:
                await there.create_queue(
                    "private$\\orders", transactional=delivery == "transactional"
                )
            result: dict[str, Any] = {"idle_rss_mb": [round(d.rss_mb(), 1) for d in (a, b)]}
            await _throughput(a, b, WARM_UP_MESSAGES, body_bytes, delivery)
            result |= await _throughput(a, b, messages, body_bytes, delivery)
            result |= await _latency(a, b, body_bytes, delivery)
            result["rss_mb"] = [round(d.rss_mb(), 1) for d in (a, b)]
            before = [d.cpu_s() for d in (a, b)]
            await asyncio.sleep(IDLE_S)
            result["idle_cpu_percent"] = [
                round(100 * (d.cpu_s() - cpu) / IDLE_S, 2)
                for d, cpu in zip((a, b), before, strict=True)
            ]
        finally:
            await a.stop()
            await b.stop()
    return result


async def _throughput(
    a: Daemon, b: Daemon, messages: int, body_bytes: int, delivery: str
) -> dict[str, Any]:
    before = [d.cpu_s() for d in (a, b)]
    receiver = await _role("receive", b, ["--messages", str(messages)])
    started = time.perf_counter()
    sender = await _role(
        "send",
        a,
        ["--messages", str(messages), "--body", str(body_bytes), "--delivery", delivery]
        + ["--destination", b.destination("orders")],
    )
    sent, received = await _report(sender), await _report(receiver)
    wall_s = received["last"] - sent["first"]
    cpu = [d.cpu_s() - cpu for d, cpu in zip((a, b), before, strict=True)]
    assert received["in_order"], "messages arrived out of order"
    del started
    return {
        "messages_per_s": round(messages / wall_s),
        "daemons_cpu_s_per_1000": round(sum(cpu) / messages * 1000, 4),
        "daemon_us_per_message": [round(each / messages * 1e6, 1) for each in cpu],
        "client_us_per_message": [
            round(each["cpu_s"] / messages * 1e6, 1) for each in (sent, received)
        ],
    }


async def _latency(a: Daemon, b: Daemon, body_bytes: int, delivery: str) -> dict[str, Any]:
    count = int(LATENCY_RATE_PER_S * LATENCY_S)
    receiver = await _role("receive", b, ["--messages", str(count), "--times"])
    sender = await _role(
        "send",
        a,
        ["--messages", str(count), "--body", str(body_bytes), "--delivery", delivery]
        + ["--destination", b.destination("orders"), "--rate", str(LATENCY_RATE_PER_S)],
    )
    sent, received = await _report(sender), await _report(receiver)
    took = [
        (there - here) * 1e3 for here, there in zip(sent["times"], received["times"], strict=True)
    ]
    cuts = statistics.quantiles(took, n=100)
    return {"latency_p50_ms": round(cuts[49], 2), "latency_p99_ms": round(cuts[98], 2)}


async def _role(role: str, daemon: Daemon, more: Sequence[str]) -> asyncio.subprocess.Process:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "benchmarks.bench_end_to_end", "--role", role),
        *("--socket", str(daemon.folder / "qmd.sock"), *more),
        stdout=asyncio.subprocess.PIPE,
        limit=64 * 1024 * 1024,
    )
    assert process.stdout is not None
    assert await process.stdout.readline() == b"ready\n"
    return process


async def _report(process: asyncio.subprocess.Process) -> dict[str, Any]:
    assert process.stdout is not None
    report: dict[str, Any] = json.loads(await process.stdout.readline())
    await process.wait()
    return report


# The two clients.


async def send(arguments: argparse.Namespace) -> dict[str, Any]:
    body = bytes(index * 7 & 255 for index in range(arguments.body))
    times: list[float] = []
    async with connect(arguments.socket) as here:
        print("ready", flush=True)
        cpu = _cpu_s()
        first = time.time()
        if arguments.rate:
            for index in range(arguments.messages):
                due = first + index / arguments.rate
                await asyncio.sleep(max(0.0, due - time.time()))
                times.append(time.time())
                await here.send(
                    arguments.destination, body, label=str(index), delivery=arguments.delivery
                )
        else:
            async with here.sender(arguments.destination, window=WINDOW_MESSAGES) as sender:
                for index in range(arguments.messages):
                    await sender.send(body, label=str(index), delivery=arguments.delivery)
        return {"first": first, "cpu_s": _cpu_s() - cpu, "times": times}


async def receive(arguments: argparse.Namespace) -> dict[str, Any]:
    times: list[float] = []
    count = 0
    in_order = True
    async with connect(arguments.socket) as there:
        print("ready", flush=True)
        cpu = _cpu_s()
        if arguments.times:
            while count < arguments.messages:
                taken = await there.take("orders", TAKE_MESSAGES, timeout_s=None)
                await taken.remove()
                now = time.time()
                for message in taken.messages:
                    in_order &= message.label == str(count)
                    times.append(now)
                    count += 1
            return {"in_order": in_order, "times": times, "last": now, "cpu_s": _cpu_s() - cpu}
        removals: deque[asyncio.Task[None]] = deque()
        while count < arguments.messages:
            taken = await there.take("orders", TAKE_MESSAGES, timeout_s=None)
            in_order &= taken.messages[0].label == str(count)
            count += len(taken)
            removals.append(asyncio.create_task(taken.remove()))
            while len(removals) > TAKES_AHEAD:
                await removals.popleft()
        for removal in removals:
            await removal
        return {"in_order": in_order, "last": time.time(), "cpu_s": _cpu_s() - cpu}


def _cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--messages", type=int, default=60_000)
    parser.add_argument("--body", type=int, default=1024)
    parser.add_argument("--delivery", default="transactional")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--role", choices=("send", "receive"), help=argparse.SUPPRESS)
    parser.add_argument("--socket", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--destination", help=argparse.SUPPRESS)
    parser.add_argument("--rate", type=float, default=0.0, help=argparse.SUPPRESS)
    parser.add_argument("--times", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.role:
        role = send if arguments.role == "send" else receive
        print(json.dumps(uvloop.run(role(arguments))), flush=True)
        return
    result = uvloop.run(measure(arguments.messages, arguments.body, arguments.delivery))
    if arguments.json:
        print(json.dumps(result))
        return
    for name, value in result.items():
        print(f"{name:28} {value}")


if __name__ == "__main__":
    main()
