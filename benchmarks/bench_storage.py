"""Speed of the storage alone.

    python -m benchmarks.bench_storage [--folder DIR] [--rows N] [--encrypt] [--json]

Every figure is durable (WAL, synchronous=FULL) and goes through `Storage`, its thread and uvloop.
The folder determines the bottleneck: on tmpfs the CPU, on a disk the sync as well.
"""

import argparse
import asyncio
import json
import os
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import uvloop

from storage import Storage, StorageOptions
from storage.tables import messages
from storage.tables.keys import (
    OUTGOING_TRANSACTIONAL_LEVEL,
    TRANSACTIONAL_LEVEL,
    message_key,
)
from storage.vault import KEY_BYTES, StorageKey

PACKET = os.urandom(1476)  # a transactional message with a body of 1 KiB
EXPIRES_AT_S = 1_700_345_600
QUEUE_ID = 16
OUTGOING_ID = 1
LAG_ROWS = 256

Figures = dict[str, float]  # by unit


def outgoing_key(number: int) -> int:
    return message_key(OUTGOING_ID, OUTGOING_TRANSACTIONAL_LEVEL, number)


def queue_key(number: int) -> int:
    return message_key(QUEUE_ID, TRANSACTIONAL_LEVEL, number)


async def durable(storage: Storage) -> None:
    done = asyncio.get_running_loop().create_future()
    storage.batch.when_durable(lambda: done.set_result(None))
    await done


async def append(storage: Storage, first: int, rows: int, batch_rows: int) -> None:
    """Append outgoing messages, all of which expire in about four days."""
    for start in range(first, first + rows, batch_rows):
        for number in range(start, start + batch_rows):
            storage.batch.outgoing.insert(outgoing_key(number), PACKET, EXPIRES_AT_S + number // 9)
        await durable(storage)


async def send(storage: Storage, first: int, rows: int, batch_rows: int) -> None:
    """Simulate a busy outgoing queue: append messages, and release older ones by order acks."""
    for start in range(first, first + rows, batch_rows):
        for number in range(start, start + batch_rows):
            storage.batch.outgoing.insert(outgoing_key(number), PACKET, EXPIRES_AT_S + number // 9)
        released = start - LAG_ROWS
        storage.batch.outgoing.delete_range(outgoing_key(first), outgoing_key(released))
        await durable(storage)


async def receive(storage: Storage, first: int, rows: int, batch_rows: int) -> None:
    """Simulate a busy queue: append messages, and remove older ones as received."""
    for start in range(first, first + rows, batch_rows):
        for number in range(start, start + batch_rows):
            storage.batch.insert_message(queue_key(number), PACKET, 1_700_000_000_000)
        taken = range(start - LAG_ROWS, start - LAG_ROWS + batch_rows)
        storage.batch.delete_messages([queue_key(number) for number in taken])
        await durable(storage)


async def rate(rows: int, work: Awaitable[None]) -> Figures:
    wall_s, cpu_s = time.perf_counter(), time.process_time()
    await work
    wall_s, cpu_s = time.perf_counter() - wall_s, time.process_time() - cpu_s
    return {"rows/s": rows / wall_s, "us CPU a row": cpu_s / rows * 1e6}


async def latency(count: int, act: Callable[[int], Awaitable[object]]) -> Figures:
    taken_ms, cpu_s = [], time.process_time()
    for number in range(count):
        begun_s = time.perf_counter()
        await act(number)
        taken_ms.append((time.perf_counter() - begun_s) * 1e3)
    return {
        "ms p50": statistics.median(taken_ms),
        "ms p99": statistics.quantiles(taken_ms, n=100, method="inclusive")[98],
        "ms max": max(taken_ms),
        "us CPU": (time.process_time() - cpu_s) / count * 1e6,
    }


async def measure(folder: Path, rows: int, *, encrypt: bool) -> dict[str, Figures]:
    """Return figures by operation."""
    keys = (StorageKey(os.urandom(KEY_BYTES)),) if encrypt else ()
    options = StorageOptions(disk_reserve_bytes=0, keys=keys)
    storage = await Storage.open(folder, options, now_ms=0, new_id=bytes(16))
    first = 1_000_000
    figures: dict[str, Figures] = {}
    for name, work in (
        ("outgoing, append", append),
        ("outgoing, append + range delete", send),
        ("queue, append + delete", receive),
    ):
        for batch_rows in (1, 64, 512):
            count = rows // 16 if batch_rows == 1 else rows // batch_rows * batch_rows
            figures[f"{name}, batches of {batch_rows}"] = await rate(
                count, work(storage, first, count, batch_rows)
            )
            first += 1_000_000

    async def one_row(number: int) -> None:
        storage.batch.insert_message(queue_key(first + number), PACKET, 1_700_000_000_000)
        await durable(storage)

    for name, count, act in (
        ("one row at a time", rows // 16, one_row),
        ("a hop to the reader and back", 5000, lambda _: storage.read(lambda db: None)),
        ("an empty commit", 5000, lambda _: storage.batch.run(lambda db: None)),
        ("totals of all queues", 20, lambda _: storage.read(messages.totals_by_queue)),
    ):
        figures[name] = await latency(count, act)
    await storage.close()
    figures["database file"] = {"MiB": (folder / "queues.db").stat().st_size / 2**20}
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, help="where to make the temporary data folder")
    parser.add_argument("--rows", type=int, default=32_000, help="rows of each measurement")
    parser.add_argument("--encrypt", action="store_true", help="encrypt the packets")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        work = measure(Path(folder) / "data", arguments.rows, encrypt=arguments.encrypt)
        figures = uvloop.run(work)
    if arguments.json:
        print(json.dumps(figures))
        return
    print(f"storage, packets of {len(PACKET)} bytes, in {folder}")
    for name, values in figures.items():
        texts = (
            f"{value:10,.{0 if value >= 100 else 2}f} {unit:13}" for unit, value in values.items()
        )
        print(f"  {name:44}{''.join(texts)}")


if __name__ == "__main__":
    main()
