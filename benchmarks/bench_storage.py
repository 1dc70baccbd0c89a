"""Speed of the storage alone: `python -m benchmarks.bench_storage [--folder DIR] [--rows N]`.

Every figure is durable (WAL, synchronous=FULL) and goes through `Storage`, its thread and uvloop.
The folder decides what is measured: on tmpfs it is the CPU, on a disk it is the sync as well.
"""

import argparse
import asyncio
import os
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import uvloop

from storage import Storage, StorageOptions, messages
from storage.keys import OUTGOING_TRANSACTIONAL_LEVEL, TRANSACTIONAL_LEVEL, message_key

PACKET = os.urandom(1476)  # a transactional message with a body of 1 KiB
EXPIRES_AT_S = 1_700_345_600
QUEUE_ID = 16
OUTGOING_ID = 1
LAG_ROWS = 256


def outgoing_key(number: int) -> int:
    return message_key(OUTGOING_ID, OUTGOING_TRANSACTIONAL_LEVEL, number)


def queue_key(number: int) -> int:
    return message_key(QUEUE_ID, TRANSACTIONAL_LEVEL, number)


async def durable(storage: Storage) -> None:
    done = asyncio.get_running_loop().create_future()
    storage.batch.when_durable(lambda: done.set_result(None))
    await done


async def append(storage: Storage, first: int, rows: int, batch_rows: int) -> None:
    """Outgoing messages, all of which expire in four days."""
    for start in range(first, first + rows, batch_rows):
        for number in range(start, start + batch_rows):
            storage.batch.insert_outgoing(outgoing_key(number), PACKET, EXPIRES_AT_S + number // 9)
        await durable(storage)


async def send(storage: Storage, first: int, rows: int, batch_rows: int) -> None:
    """An outgoing queue at work: messages come in, an order ack releases older ones."""
    for start in range(first, first + rows, batch_rows):
        for number in range(start, start + batch_rows):
            storage.batch.insert_outgoing(outgoing_key(number), PACKET, EXPIRES_AT_S + number // 9)
        released = start - LAG_ROWS
        storage.batch.delete_outgoing_range(outgoing_key(first), outgoing_key(released))
        await durable(storage)


async def receive(storage: Storage, first: int, rows: int, batch_rows: int) -> None:
    """A queue at work: messages arrive, older ones are received."""
    for start in range(first, first + rows, batch_rows):
        for number in range(start, start + batch_rows):
            storage.batch.insert_message(queue_key(number), PACKET, 1_700_000_000_000)
        taken = range(start - LAG_ROWS, start - LAG_ROWS + batch_rows)
        storage.batch.delete_messages([queue_key(number) for number in taken])
        await durable(storage)


async def rate(name: str, rows: int, work: Awaitable[None]) -> float:
    wall_s, cpu_s = time.perf_counter(), time.process_time()
    await work
    wall_s, cpu_s = time.perf_counter() - wall_s, time.process_time() - cpu_s
    print(f"  {name:44} {rows / wall_s:10,.0f} rows/s {cpu_s / rows * 1e6:8.1f} us CPU a row")
    return rows / wall_s


async def latency(name: str, count: int, act: Callable[[int], Awaitable[object]]) -> None:
    taken_ms, cpu_s = [], time.process_time()
    for number in range(count):
        begun_s = time.perf_counter()
        await act(number)
        taken_ms.append((time.perf_counter() - begun_s) * 1e3)
    cpu_us = (time.process_time() - cpu_s) / count * 1e6
    p50, p99 = statistics.median(taken_ms), statistics.quantiles(taken_ms, n=100)[98]
    print(
        f"  {name:44} p50 {p50:6.3f} ms, p99 {p99:6.3f} ms, max {max(taken_ms):6.3f} ms,"
        f" {cpu_us:5.0f} us CPU"
    )


async def measure(folder: Path, rows: int) -> None:
    storage = await Storage.open(
        folder, StorageOptions(disk_reserve_bytes=0), now_ms=0, new_id=bytes(16)
    )
    first = 1_000_000
    for name, work in (("append", append), ("append + range delete", send)):
        for batch_rows in (1, 64, 512):
            count = rows // 16 if batch_rows == 1 else rows // batch_rows * batch_rows
            await rate(
                f"outgoing, {name}, batches of {batch_rows}",
                count,
                work(storage, first, count, batch_rows),
            )
            first += 1_000_000
    for batch_rows in (1, 64, 512):
        count = rows // 16 if batch_rows == 1 else rows // batch_rows * batch_rows
        await rate(
            f"queue, append + delete, batches of {batch_rows}",
            count,
            receive(storage, first, count, batch_rows),
        )
        first += 1_000_000

    async def one_row(number: int) -> None:
        storage.batch.insert_message(queue_key(first + number), PACKET, 1_700_000_000_000)
        await durable(storage)

    await latency("one row at a time", rows // 16, one_row)
    await latency("a hop to the reader and back", 5000, lambda _: storage.read(lambda db: None))
    await latency("an empty commit", 5000, lambda _: storage.batch.run(lambda db: None))
    await latency("totals of all queues", 3, lambda _: storage.read(messages.totals_by_queue))
    await storage.close()
    print(f"  {'database file':44} {(folder / 'queues.db').stat().st_size / 2**20:10,.0f} MiB")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, help="where to make the temporary data folder")
    parser.add_argument("--rows", type=int, default=32_000, help="rows of each measurement")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        print(f"storage, packets of {len(PACKET)} bytes, in {folder}")
        uvloop.run(measure(Path(folder) / "data", arguments.rows))


if __name__ == "__main__":
    main()
