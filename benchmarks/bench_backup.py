"""The cost of backups for a daemon that serves: throughput and latency with and without, by turns.

    python -m benchmarks.bench_backup [--turns N] [--messages N] [--backlog N] [--json]

In every second turn, backups follow each other without a pause.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks import pair
from qmd.client import QueueManager

WINDOW_MESSAGES = 4096
BODY = bytes(1500)


async def measure(turns: int, messages: int, backlog: int) -> dict[str, Any]:
    found: dict[bool, list[tuple[float, float]]] = {False: [], True: []}
    with tempfile.TemporaryDirectory() as folder:
        base = Path(folder)
        daemon = pair.Daemon(base / "daemon", "backed-up")
        await daemon.create()
        await daemon.start()
        try:
            async with daemon.client() as qm:
                await qm.create_queue("backlog")
                await qm.create_queue("bench")
                await _send(qm, "backlog", backlog)
                for turn in range(2 * turns):
                    with_backups = bool(turn % 2)
                    target = base / f"backups{turn}"
                    target.mkdir()
                    task = asyncio.create_task(_back_up(daemon, target)) if with_backups else None
                    if task is not None:
                        await asyncio.sleep(0.3)  # until the command has begun
                    began = time.monotonic()
                    await _send(qm, "bench", messages)
                    throughput = messages / (time.monotonic() - began)
                    found[with_backups].append((throughput, await _latency(qm)))
                    if task is not None:
                        task.cancel()
                    await qm.purge_queue("bench")
        finally:
            log_bytes = (daemon.config.parent / "data" / "queues.db-wal").stat().st_size
            await daemon.kill()
    plain, busy = (
        [statistics.median(each) for each in zip(*found[is_busy], strict=True)]
        for is_busy in (False, True)
    )
    return {
        "sends_per_s": plain[0],
        "sends_per_s_with_backups": busy[0],
        "throughput_ratio": busy[0] / plain[0],
        "commit_ms": plain[1],
        "commit_ms_with_backups": busy[1],
        "log_mb": log_bytes / 1e6,
    }


async def _send(qm: QueueManager, queue: str, messages: int) -> None:
    async with qm.sender(queue, window=WINDOW_MESSAGES) as sender:
        for _ in range(messages):
            await sender.send(BODY, delivery="recoverable")


async def _latency(qm: QueueManager) -> float:
    """Return the median time of 50 single sends, in ms."""
    taken = []
    for _ in range(50):
        began = time.monotonic()
        await qm.send("bench", BODY, delivery="recoverable")
        taken.append(1000 * (time.monotonic() - began))
    return statistics.median(taken)


async def _back_up(daemon: pair.Daemon, target: Path) -> None:
    command = (sys.executable, "-m", "qmd", "--config", str(daemon.config), "backup", str(target))
    while True:
        process = await asyncio.create_subprocess_exec(
            *command, "--full", stdout=asyncio.subprocess.DEVNULL
        )
        try:
            await process.wait()
        except asyncio.CancelledError:
            process.kill()
            raise


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bench_backup")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--messages", type=int, default=20_000)
    parser.add_argument("--backlog", type=int, default=100_000)
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args()
    figures = pair.run(measure(chosen.turns, chosen.messages, chosen.backlog))
    if chosen.json:
        print(json.dumps(figures))
    else:
        for name, value in figures.items():
            print(f"{name:28} {value:12,.2f}")


if __name__ == "__main__":
    main()
