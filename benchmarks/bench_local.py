"""One application and one local queue: sends, receives, and receivers that wait in vain.

    python -m benchmarks.bench_local [--messages N] [--body-bytes N] [--json]

Recoverable messages, each confirmed after its commit.  Then many receivers wait on many queues: the
benchmark measures their load while nothing arrives, and how soon one gets a message after the send.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks import pair
from qmd.client import QueueManager

WINDOW_MESSAGES = 4096
BATCH_MESSAGES = 512
WAITERS, QUEUES = 1000, 200
QUIET_S = 5.0
WAKES = 200


async def throughput(daemon: pair.Daemon, messages: int, body_bytes: int) -> dict[str, float]:
    """Return messages a second, sent and then received by one client, and the daemon's CPU time."""
    body = bytes(body_bytes)
    async with daemon.client() as qm:
        await qm.create_queue("bench")
        began, cpu_s = time.monotonic(), daemon.cpu_s()
        async with qm.sender("bench", window=WINDOW_MESSAGES) as sender:
            for _ in range(messages):
                await sender.send(body, delivery="recoverable")
        sent_s, sent_cpu_s = time.monotonic() - began, daemon.cpu_s() - cpu_s
        began, cpu_s, count = time.monotonic(), daemon.cpu_s(), 0
        async for _ in qm.receive_each("bench", timeout_s=0.0, batch=BATCH_MESSAGES):
            count += 1
        received_s, received_cpu_s = time.monotonic() - began, daemon.cpu_s() - cpu_s
        assert count == messages, f"{count} of {messages} came back"
    return {
        "sends_per_s": messages / sent_s,
        "receives_per_s": messages / received_s,
        "send_daemon_us": 1e6 * sent_cpu_s / messages,
        "receive_daemon_us": 1e6 * received_cpu_s / messages,
    }


async def waiting(daemon: pair.Daemon) -> dict[str, float]:
    """Return the CPU time while nothing arrives, and the ms from a commit to its receiver."""
    async with daemon.client() as qm, daemon.client() as sender:
        for number in range(QUEUES):
            await qm.create_queue(f"waiting{number}")
        receiving = [
            asyncio.create_task(_receive(qm, f"waiting{number % QUEUES}"))
            for number in range(WAITERS)
        ]
        await asyncio.sleep(1.0)
        cpu_s = daemon.cpu_s()
        await asyncio.sleep(QUIET_S)
        idle = (daemon.cpu_s() - cpu_s) / QUIET_S
        late_ms: list[float] = []
        for number in range(WAKES):
            await sender.send(f"waiting{number % QUEUES}", b"", delivery="recoverable")
            committed = time.monotonic()
            arrived = await _first(receiving)
            late_ms.append(max(0.0, arrived - committed) * 1000)
        for task in receiving:
            task.cancel()
        await asyncio.gather(*receiving, return_exceptions=True)
    return {
        "idle_cpu_percent": 100 * idle,
        "wake_p50_ms": statistics.median(late_ms),
        "wake_p99_ms": statistics.quantiles(late_ms, n=100)[98],
    }


async def _receive(qm: QueueManager, queue: str) -> float:
    message = await qm.receive(queue, timeout_s=None)
    assert message is not None
    return time.monotonic()


async def _first(receiving: list[asyncio.Task[float]]) -> float:
    done, _ = await asyncio.wait(receiving, return_when=asyncio.FIRST_COMPLETED, timeout=10)
    (task,) = done
    receiving.remove(task)
    return task.result()


async def measure(messages: int, body_bytes: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="qmd-bench-") as folder:
        daemon = pair.Daemon(Path(folder) / "a", "a")
        await daemon.create()
        async with pair.stopped_at_end(daemon):
            await daemon.start()
            return await throughput(daemon, messages, body_bytes) | await waiting(daemon)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--messages", type=int, default=100_000)
    parser.add_argument("--body-bytes", type=int, default=100)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    figures = pair.run(measure(arguments.messages, arguments.body_bytes))
    if arguments.json:
        print(json.dumps(figures))
    else:
        for name, value in figures.items():
            print(f"{name:28} {value:.2f}")


if __name__ == "__main__":
    main()
