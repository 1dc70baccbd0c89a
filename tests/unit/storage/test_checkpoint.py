"""Checkpoints between two commits: the commits that wait for one, and the bound of the log."""

import asyncio
import os
import sqlite3
import threading
from pathlib import Path

import pytest

from storage import Disk, Storage, StorageError
from storage.engine import checkpoint
from storage.options import PAGE_BYTES, StorageOptions
from tests.patience import END_S
from tests.unit.storage.support import durable, insert, key, opened, other_connection, stored

CHECKPOINT_PAGES = 80  # of 8 KiB; the log of a new database begins with some seventy pages
LOG_PAGES_MAX = StorageOptions(
    wal_autocheckpoint_pages=CHECKPOINT_PAGES, disk_reserve_bytes=0
).log_pages_max(PAGE_BYTES)
#: The most pages that a batch of these tests writes.
BATCH_PAGES_MAX = 10


def log_bytes(folder: Path) -> int:
    return (folder / "queues.db-wal").stat().st_size


async def write(storage: Storage, *arrivals: int) -> None:
    """Commit a packet of two pages for each arrival."""
    for arrival in arrivals:
        storage.batch.insert_message(key(arrival), bytes(PAGE_BYTES), arrived_at_ms=1)
        await durable(storage)


async def write_until_too_long(storage: Storage, folder: Path) -> int:
    """Commit until the log is too long; return the number of commits."""
    log = Disk().open_log(folder / "queues.db-wal")
    arrival = 0
    while not checkpoint.is_longer(log, LOG_PAGES_MAX):
        arrival += 1
        await write(storage, arrival)
    log.close()
    return arrival


class Gate:
    """A gate that holds the writer's thread before a checkpoint."""

    def __init__(self) -> None:
        self._reached = threading.Event()
        self.opened = threading.Event()

    async def held(self) -> None:
        assert await asyncio.to_thread(self._reached.wait, 30)

    def shut(self, db: sqlite3.Connection) -> None:
        db.set_trace_callback(self._begins)

    def _begins(self, statement: str) -> None:
        if "wal_checkpoint" in statement:
            self._reached.set()
            self.opened.wait(END_S)


def test_the_commit_that_makes_the_log_too_long_does_not_wait_for_the_checkpoint(
    folder: Path,
) -> None:
    async def scenario() -> None:
        async with opened(folder, wal_autocheckpoint_pages=CHECKPOINT_PAGES) as storage:
            gate = Gate()
            await storage.batch.run(gate.shut)
            arrival = await write_until_too_long(storage, folder)  # its commits are reported
            await gate.held()
            insert(storage, 1000)
            behind = asyncio.create_task(durable(storage))
            await storage.read(lambda db: None)
            assert not behind.done()
            gate.opened.set()
            await behind
            assert await stored(storage) == [key(each) for each in [*range(1, arrival + 1), 1000]]

    asyncio.run(scenario())


def test_the_log_does_not_grow_with_the_load(folder: Path) -> None:
    async def scenario() -> None:
        async with opened(folder, wal_autocheckpoint_pages=CHECKPOINT_PAGES) as storage:
            await write(storage, *range(1, 100))
            assert log_bytes(folder) < (LOG_PAGES_MAX + BATCH_PAGES_MAX) * (PAGE_BYTES + 24)

    asyncio.run(scenario())


def test_the_log_restarts_when_a_long_reader_has_ended(folder: Path) -> None:
    async def scenario() -> None:
        async with opened(folder, wal_autocheckpoint_pages=CHECKPOINT_PAGES) as storage:
            await write(storage, 1)
            reader = other_connection(folder)
            reader.execute("BEGIN")
            reader.execute("SELECT count(*) FROM message").fetchone()
            await write(storage, *range(2, 60))
            grown = log_bytes(folder)
            assert grown > 2 * LOG_PAGES_MAX * PAGE_BYTES
            reader.execute("COMMIT")
            reader.close()

            await write(storage, *range(60, 100))
            assert log_bytes(folder) <= grown + BATCH_PAGES_MAX * (PAGE_BYTES + 24)

    asyncio.run(scenario())


def test_a_failed_checkpoint_stops_the_storage_and_waiting_acts_are_not_written(
    folder: Path,
) -> None:
    def make_unwritable(database: Path) -> None:
        """Reopen SQLite's file for reading only, as if the disk had failed."""
        for each in Path("/proc/self/fd").iterdir():
            if each.is_symlink() and os.path.realpath(each) == str(database.resolve()):
                file = os.open(database, os.O_RDONLY)
                os.dup2(file, int(each.name))
                os.close(file)

    async def scenario() -> None:
        async with opened(folder, wal_autocheckpoint_pages=CHECKPOINT_PAGES) as storage:
            gate = Gate()
            await storage.batch.run(gate.shut)
            arrival = await write_until_too_long(storage, folder)
            await gate.held()
            make_unwritable(folder / "queues.db")
            insert(storage, 1000)
            behind = asyncio.create_task(durable(storage))
            await asyncio.sleep(0)
            gate.opened.set()

            with pytest.raises(StorageError, match="a checkpoint failed: disk I/O error"):
                await behind
            failure = storage.failed.exception()
            assert isinstance(failure, StorageError)
            assert failure.code == "storage_io_failed"
        async with opened(folder) as storage:  # the log has all reported commits, and no others
            assert await stored(storage) == [key(each) for each in range(1, arrival + 1)]

    asyncio.run(scenario())
