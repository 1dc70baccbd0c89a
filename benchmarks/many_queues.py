"""Creation of many queues, and the status and the start of a daemon that has them.

    python -m benchmarks.many_queues [--queues N] [--folder DIRECTORY] [--json]

Queues are created one after the other, each when the answer about the one before it has come, and
then a hundred at a time.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks import pair

if TYPE_CHECKING:
    from qmd.client import QueueManager

ONE_BY_ONE = 500
AT_ONCE = 100
TIMES = 9


async def measure(queues: int, folder: Path | None) -> dict[str, Any]:
    """Return all figures by name."""
    with tempfile.TemporaryDirectory(prefix="qmd-bench-", dir=folder) as inside:
        daemon = pair.Daemon(Path(inside) / "a", "a")
        await daemon.create()
        async with pair.stopped_at_end(daemon):
            empty_s = await _start_s(daemon)
            async with daemon.client() as qm:
                found = await _create(daemon, qm, queues)
                found |= {"status_ms": await _status_ms(qm)}
            await daemon.stop()
            return found | {"start_s": await _start_s(daemon), "start_empty_s": empty_s}


async def _create(daemon: pair.Daemon, qm: QueueManager, queues: int) -> dict[str, Any]:
    one_by_one = min(ONE_BY_ONE, queues)
    began = time.perf_counter()
    for number in range(one_by_one):
        await qm.create_queue(f"q{number}")
    one_by_one_ms = 1000 * (time.perf_counter() - began) / max(one_by_one, 1)
    cpu_s, began = sum(daemon.thread_cpu_s().values()), time.perf_counter()
    for first in range(one_by_one, queues, AT_ONCE):
        some = range(first, min(first + AT_ONCE, queues))
        await asyncio.gather(*(qm.create_queue(f"q{number}") for number in some))
    rest = max(queues - one_by_one, 1)
    return {
        "queues": queues,
        "one_by_one_ms": round(one_by_one_ms, 2),
        "hundred_at_once_ms": round(1000 * (time.perf_counter() - began) / rest, 2),
        "cpu_ms": round(1000 * (sum(daemon.thread_cpu_s().values()) - cpu_s) / rest, 2),
    }


async def _status_ms(qm: QueueManager) -> float:
    took = []
    for _ in range(TIMES):
        began = time.perf_counter()
        await qm.status()
        took.append(1000 * (time.perf_counter() - began))
    return round(statistics.median(took), 1)


async def _start_s(daemon: pair.Daemon) -> float:
    began = time.perf_counter()
    await daemon.start()
    return round(time.perf_counter() - began, 2)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--queues", type=int, default=10_000)
    parser.add_argument("--folder", type=Path, default=None, help="where the data folder is made")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    figures = asyncio.run(measure(options.queues, options.folder))
    if options.json:
        print(json.dumps(figures))
        return
    for name, value in figures.items():
        print(f"{name:20} {value:>10,}")


if __name__ == "__main__":
    main()
