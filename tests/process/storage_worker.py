"""A process that stores and deletes messages, and prints those that were reported as durable.

    python -m tests.process.storage_worker FOLDER BATCHES

    found FIRST LAST       at the start: messages FIRST to LAST exist, intact and without a gap
    reserved NUMBER        a block of 10 numbers from here on is reserved
    durable FIRST LAST     from now on these messages are durable

It ends without closing its files: after its batches, or, with status 3, after a failed store.

"""

import asyncio
import os
import sqlite3
import sys
from functools import partial
from pathlib import Path

from storage import Storage, StorageOptions
from storage.tables import counters, messages, sequences
from storage.tables.keys import arrival_of, message_key

QUEUE_ID = 16
SOURCE = b"the-other-manager"[:16]
WINDOW = 3  # batches that are submitted before the first of them is durable
#: Small, so that checkpoints happen.
OPTIONS = StorageOptions(disk_reserve_bytes=0, disk_watermark_bytes=0, wal_autocheckpoint_pages=20)


def packet(number: int) -> bytes:
    return b"%08d" % number * (1 + number % 400)


def key(number: int) -> int:
    return message_key(QUEUE_ID, 7, number)


def found(db: sqlite3.Connection) -> tuple[int, int]:
    """Return the first and the last stored message, after a check that they are contiguous."""
    (sequence,) = sequences.list_all(db) or [None]
    rows = messages.page(db, QUEUE_ID, rows_max=100_000)
    last = 0 if sequence is None else sequence.number
    first = arrival_of(rows[0].key) if rows else last + 1
    assert [arrival_of(row.key) for row in rows] == list(range(first, last + 1)), "a gap"
    assert all(row.packet == packet(arrival_of(row.key)) for row in rows), "not whole"
    return first, last


def say(*words: object) -> None:
    os.write(1, f"{' '.join(map(str, words))}\n".encode())


async def work(folder: Path, batches: int) -> None:
    storage = await Storage.open(folder, OPTIONS, now_ms=1, new_id=b"own-queue-manager"[:16])
    storage.failed.add_done_callback(lambda _: os._exit(3))
    first, last = await storage.read(found)
    say("found", first, last)
    say("reserved", await storage.batch.run(partial(counters.reserve, name="n", count=10)))
    if not await storage.read(sequences.list_all):
        storage.batch.incoming.add_sequence(
            sequences.NewSequence(1, SOURCE, QUEUE_ID, b"\5q", 1, "10.0.0.1", "10.0.0.1")
        )

    window = asyncio.Semaphore(WINDOW)
    for turn in range(batches):
        await window.acquire()
        for _ in range(1 + turn % 4):
            last += 1
            storage.batch.insert_message(key(last), packet(last), 1, expires_at_s=last)
        storage.batch.incoming.set_sequence(1, 7, last, at_s=1)
        if turn % 3 == 2:
            doomed = range(first, (first + last) // 2)
            storage.batch.delete_messages([key(number) for number in doomed])
            first = doomed.stop
        storage.batch.when_durable(partial(say, "durable", first, last))
        storage.batch.when_durable(window.release)
    for _ in range(WINDOW):
        await window.acquire()
    os._exit(0)


if __name__ == "__main__":
    asyncio.run(work(Path(sys.argv[1]), int(sys.argv[2])))
