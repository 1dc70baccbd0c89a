"""Cost of one send to a thousand queues: its commit, its size on disk, its memory.

    python -m benchmarks.bench_many [--targets N] [--body BYTES] [--rounds N] [--waiting N]

One queue manager in this process uses the disk of `--folder`; the queues are on an unreachable
host.  For comparison, as many messages are sent one by one in one request, and so in one commit
too, in turns, to as many other queues: each pair gives a quotient.

With `--waiting N` each queue already holds N messages of a kilobyte.  Then no two queues share a
page of the database, and a send writes a page for each queue: 8 MB.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import statistics
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import structlog

from qmd.config.settings import Settings
from qmd.control_protocol.messages import TRANSACTIONAL, NewMessage
from qmd.manager import QueueManager
from qmd.runtime.environment import Environment

Figures = dict[str, Any]


async def measure(
    folder: Path, targets: int, body_bytes: int, rounds: int, waiting: int = 0
) -> Figures:
    """Return all figures by name."""
    settings = Settings()
    settings = replace(
        settings,
        queue_manager=replace(settings.queue_manager, data=folder / "data", name="bench"),
        delivery=replace(settings.delivery, retry_first_s=3600.0, retry_max_s=3600.0),
        quotas=replace(settings.quotas, computer_bytes=1 << 40),
    )
    manager = await QueueManager.open(settings, Environment(), "bench")
    names, others = (
        [f"DIRECT=TCP:127.0.0.1:1\\private$\\{each}{n}" for n in range(targets)] for each in "qs"
    )
    together = [NewMessage(",".join(names), bytes(body_bytes), delivery=TRANSACTIONAL)]
    one_by_one = [NewMessage(name, bytes(body_bytes), delivery=TRANSACTIONAL) for name in others]
    before = [NewMessage(each, bytes(1024), delivery=TRANSACTIONAL) for each in (*names, *others)]
    try:
        first_ms, _ = await _sent(manager, together)
        await _sent(manager, one_by_one)
        for _ in range(waiting):
            await _sent(manager, before)
        sent: dict[str, list[float]] = {"together": [], "one_by_one": []}
        used: dict[str, list[float]] = {"together": [], "one_by_one": []}
        grown: dict[str, int] = {}
        for round_ in range(rounds):
            turns = [("together", together), ("one_by_one", one_by_one)]
            for name, messages in turns if round_ % 2 == 0 else reversed(turns):
                gc.collect()
                resident, on_disk = _resident_bytes(), _disk_bytes(folder)
                took_ms, cpu_ms = await _sent(manager, messages)
                sent[name].append(took_ms)
                used[name].append(cpu_ms)
                if round_ == rounds - 1:
                    grown[f"{name}_memory_bytes"] = _resident_bytes() - resident
                    grown[f"{name}_disk_bytes"] = _disk_bytes(folder) - on_disk
    finally:
        await manager.stop()
    return {
        "targets": targets,
        "body_bytes": body_bytes,
        "waiting": waiting,
        "load_average": round(os.getloadavg()[0], 1),
        "first_ms": round(first_ms, 1),  # includes the creation of the outgoing queues
        "together_ms": round(statistics.median(sent["together"]), 1),
        "together_best_ms": round(min(sent["together"]), 1),
        "together_cpu_ms": round(statistics.median(used["together"]), 1),
        "one_by_one_cpu_ms": round(statistics.median(used["one_by_one"]), 1),
        "one_by_one_ms": round(statistics.median(sent["one_by_one"]), 1),
        "times_as_fast": round(
            statistics.median(
                single / copies
                for copies, single in zip(sent["together"], sent["one_by_one"], strict=True)
            ),
            1,
        ),
        **grown,
    }


async def _sent(manager: QueueManager, messages: list[NewMessage]) -> tuple[float, float]:
    """Return the milliseconds until the commit of the messages, and their CPU time in ms."""
    await manager.services.storage.batch.barrier()
    done: asyncio.Future[tuple[float, float]] = manager.services.loop.create_future()
    began, used = time.perf_counter(), time.process_time()
    manager.assembly.message_sender.send(
        messages, b"", lambda ids: done.set_result((time.perf_counter(), time.process_time()))
    )
    ended, used_then = await done
    return 1000 * (ended - began), 1000 * (used_then - used)


def _resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def _disk_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("queues.db*"))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--targets", type=int, default=1000)
    parser.add_argument("--body", type=int, default=1024, metavar="BYTES")
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--waiting", type=int, default=0, metavar="N", help="in each queue before")
    parser.add_argument("--folder", type=Path, default=None, help="where the data folder is made")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        figures = asyncio.run(
            measure(Path(folder), options.targets, options.body, options.rounds, options.waiting)
        )
    if options.json:
        print(json.dumps(figures))
        return
    for name, value in figures.items():
        print(f"{name:24} {value:>14,}")


if __name__ == "__main__":
    main()
