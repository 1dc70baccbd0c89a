"""Commits at once, on the thread of the event loop: which they are, and what they must not do."""

import asyncio
import sqlite3
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import aiosqlite
import pytest

from storage import Storage, StorageError
from storage.engine import checkpoint, writer
from storage.engine.disk import Disk
from storage.vault import VaultConnection
from tests.unit.storage.support import (
    PACKET,
    durable,
    insert,
    key,
    opened,
    other_connection,
    stored,
)

LOOP, THREAD = "loop", "thread"


class Watched(VaultConnection):
    """A connection that notes on which thread it commits."""

    commits: list[str]

    def execute(self, sql: str, *values: Any) -> sqlite3.Cursor:
        if sql == "COMMIT":
            is_loop = threading.current_thread() is threading.main_thread()
            self.commits.append(LOOP if is_loop else THREAD)
        return super().execute(sql, *values)


@asynccontextmanager
async def watched(folder: Path, **changes: Any) -> AsyncIterator[tuple[Storage, list[str]]]:
    """Open the storage; the list gets the thread of each commit from now on."""
    commits: list[str] = []
    factory = type("Noted", (Watched,), {"commits": commits})

    def connect(path: str) -> aiosqlite.Connection:
        return aiosqlite.connect(path, factory=factory, check_same_thread=False)

    async with opened(folder, connect=connect, **changes) as storage:
        commits.clear()
        yield storage, commits


def commit_of(storage: Storage) -> asyncio.Future[None]:
    """Return a future that completes when the open batch is durable."""
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    storage.batch.when_durable(lambda: done.set_result(None))
    return done


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Have the database locked by another program."""
    other = other_connection(folder)
    other.execute("BEGIN IMMEDIATE")
    yield
    other.execute("ROLLBACK")
    other.close()


@pytest.fixture(autouse=True)
def any_disk_is_quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "AT_ONCE_S", 1000.0)


def test_a_few_rows_are_committed_on_the_loop(folder: Path) -> None:
    async def scenario() -> None:
        async with watched(folder) as (storage, commits):
            insert(storage, 1)
            await durable(storage)
            storage.batch.delete_messages([key(1)])
            await durable(storage)

            assert commits == [LOOP, LOOP]
            assert await stored(storage) == []

    asyncio.run(scenario())


def test_the_rows_of_a_request_are_committed_on_the_loop(folder: Path) -> None:
    async def scenario() -> None:
        async with watched(folder) as (storage, commits):
            for first in (1, 101):
                insert(storage, *range(first, first + 100))
                await durable(storage)
            size = 50 * len(PACKET)
            storage.batch.delete_messages([key(each) for each in range(1, 51)], size=size)
            storage.batch.delete_messages(runs=[(key(51), key(200), 3 * size)])
            await durable(storage)

            assert commits == [LOOP, LOOP, LOOP]
            assert await stored(storage) == []

    asyncio.run(scenario())


def test_many_rows_and_units_leave_the_loop_free(folder: Path) -> None:
    async def scenario() -> None:
        async with watched(folder) as (storage, commits):
            insert(storage, *range(writer.SOME_ROWS + 1))
            await durable(storage)
            storage.batch.insert_message(key(1000), bytes(writer.SOME_BYTES), arrived_at_ms=1)
            await durable(storage)
            await storage.batch.run(lambda db: db.execute("DELETE FROM message"))

            assert commits == [THREAD, THREAD, THREAD]

    asyncio.run(scenario())


@pytest.mark.parametrize("size", [writer.SOME_BYTES, None])
def test_a_removal_of_many_bytes_leaves_the_loop_free(size: int | None, folder: Path) -> None:
    async def scenario() -> None:
        async with watched(folder) as (storage, commits):
            keys = list(map(key, range(writer.FEW_ROWS + 1)))
            storage.batch.delete_messages(keys, size=size)
            await durable(storage)
            storage.batch.delete_messages(runs=[(key(0), key(99), writer.SOME_BYTES)])
            await durable(storage)
            storage.batch.outgoing.delete(keys)
            await durable(storage)

            assert commits == [THREAD, THREAD, THREAD]

    asyncio.run(scenario())


async def store_beside(storage: Storage, first: int, *, also: int = 0) -> None:
    """Commit the rows of a request, and those of another one, which come meanwhile."""
    insert(storage, *range(first, first + writer.FEW_ROWS + 1))
    loop, others = asyncio.get_running_loop(), range(also, also + writer.FEW_ROWS + 1)
    if also:
        storage.batch.when_durable(lambda: loop.call_soon(insert, storage, *others))
    await commit_of(storage)
    await pause()
    await storage._writer._idle.wait()


async def pause() -> None:
    """Let some turns of the loop pass, as many as an application takes for its next request."""
    for _ in range(5):
        await asyncio.sleep(0)


def test_requests_that_do_not_wait_for_each_other_leave_the_loop_free(folder: Path) -> None:
    async def scenario() -> None:
        async with watched(folder) as (storage, commits):
            await store_beside(storage, 1)
            await store_beside(storage, 101, also=201)  # read in the turn after the commit
            assert commits == [LOOP, LOOP, THREAD]

            commits.clear()
            await store_beside(storage, 301)
            await store_beside(storage, 401)
            assert commits == [LOOP, LOOP]  # nothing came during the commit on the thread

    asyncio.run(scenario())


def test_a_removal_after_the_rows_of_a_request_is_no_other_request(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "JOIN_S", 20.0)

    async def scenario() -> None:
        async with watched(folder) as (storage, commits):
            storage._writer._packets_follow = True  # so that removals wait for the next packets
            insert(storage, *range(1, 101))
            loop = asyncio.get_running_loop()
            removes = partial(remove_one, storage, 1)
            storage.batch.when_durable(lambda: loop.call_soon(removes))
            await commit_of(storage)
            await pause()
            assert not storage.batch.load.is_empty  # it waits
            for first in (201, 301):
                insert(storage, *range(first, first + 100))
                await commit_of(storage)
                await pause()

            assert commits == [LOOP, LOOP, LOOP]

    asyncio.run(scenario())


def remove_one(storage: Storage, arrival: int) -> None:
    storage.batch.delete_messages([key(arrival)])


def test_a_slow_disk_does_not_hold_the_loop(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "AT_ONCE_S", 0.0)

    async def scenario() -> None:
        async with watched(folder) as (storage, commits):
            insert(storage, 1)
            await durable(storage)

            assert commits == [THREAD]

    asyncio.run(scenario())


def test_a_lock_of_another_program_does_not_hold_the_loop(folder: Path) -> None:
    async def scenario() -> None:
        async with watched(folder) as (storage, commits):
            insert(storage, 1)
            await durable(storage)
            with locked(folder):
                insert(storage, 2)
                is_stored = commit_of(storage)
                for _ in range(5):
                    assert await stored(storage) == [key(1)]  # the loop runs
                assert not is_stored.done()
            await is_stored
            insert(storage, 3)
            await durable(storage)

            assert commits == [LOOP, THREAD, LOOP]
            assert await stored(storage) == [key(1), key(2), key(3)]

    asyncio.run(scenario())


class FillingDisk(Disk):
    """A disk that another program fills, and that notes when its free space is measured."""

    def __init__(self, noted: list[str]) -> None:
        self.noted = noted
        self.is_full = False

    def free_bytes(self, folder: Path) -> int:
        self.noted.append("measured")
        return 0 if self.is_full else 1 << 40


def test_callers_do_not_wait_for_the_measurement_of_the_free_space(folder: Path) -> None:
    async def scenario() -> None:
        noted: list[str] = []
        disk = FillingDisk(noted)
        async with watched(folder, disk=disk, disk_watermark_bytes=1) as (storage, commits):
            noted.clear()
            for arrival in (1, 2):
                disk.is_full = True
                insert(storage, arrival)
                storage.batch.when_durable(lambda: noted.append("notified"))
                await durable(storage)

            assert noted[:2] == ["notified", "measured"]
            assert commits == [LOOP, THREAD], "which makes room, from the next commit on"

    asyncio.run(scenario())


def test_callers_are_notified_in_order_by_commits_on_both_threads(folder: Path) -> None:
    async def scenario() -> None:
        async with watched(folder) as (storage, commits):
            told: list[int] = []

            def store(arrival: int) -> None:
                insert(storage, arrival)
                storage.batch.when_durable(lambda: told.append(arrival))

            with locked(folder):
                store(1)
                await stored(storage)  # the commit of the first is on the thread
                store(2)
            while len(told) < 2:
                await stored(storage)

            assert told == [1, 2]
            assert commits == [THREAD, THREAD]

    asyncio.run(scenario())


def test_a_failed_commit_on_the_loop_is_never_acknowledged(folder: Path) -> None:
    async def scenario() -> None:
        async with watched(folder) as (storage, _):
            told: list[str] = []
            insert(storage, 1)
            await durable(storage)
            insert(storage, 1)  # it is stored already
            storage.batch.when_durable(lambda: told.append("durable"))
            with pytest.raises(StorageError, match="a commit failed: UNIQUE"):
                await storage.failed
            await asyncio.sleep(0)

            assert told == []
            with locked(folder):  # no transaction was left open
                assert await stored(storage) == [key(1)]

    asyncio.run(scenario())


def test_a_full_disk_is_waited_for_on_the_thread(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "RETRY_S", 0.0)

    async def scenario() -> None:
        async with watched(folder) as (storage, commits):
            database = storage._writer._calls._connection._conn
            (pages,) = database.execute("PRAGMA page_count").fetchone()
            database.execute(f"PRAGMA max_page_count = {pages}")
            storage.batch.insert_message(key(1), bytes(60_000), arrived_at_ms=1)
            is_stored = commit_of(storage)
            while not storage.obstacle:
                await stored(storage)
            database.execute("PRAGMA max_page_count = 1000000")
            await is_stored

            assert commits == [THREAD]
            assert await stored(storage) == [key(1)]

    asyncio.run(scenario())


def add(storage: Storage, *, removes: bool, inserts: bool) -> None:
    if removes:
        storage.batch.delete_messages([key(9)])
    if inserts:
        insert(storage, 3)


async def next_removal_waits(storage: Storage, *, removes: bool, inserts: bool) -> bool:
    """Return whether a removal waits for packets, after an earlier one and what came during it."""
    insert(storage, 1, 2, 9)
    await commit_of(storage)
    storage.batch.delete_messages([key(1)])
    loop = asyncio.get_running_loop()
    # Changes during the commit are read in the turn after it, because it holds the loop.
    came = partial(add, storage, removes=removes, inserts=inserts)
    storage.batch.when_durable(lambda: loop.call_soon(came))
    await commit_of(storage)
    for _ in range(5):
        await asyncio.sleep(0)
    insert(storage, 4)
    await commit_of(storage)
    storage.batch.delete_messages([key(2)])
    batch = storage.batch
    for _ in range(5):
        await asyncio.sleep(0)
    return storage.batch is batch


@pytest.mark.parametrize("removes", [True, False])
@pytest.mark.parametrize("inserts", [True, False])
def test_a_removal_waits_for_packets_if_some_came_during_the_last_one(
    removes: bool, inserts: bool, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "JOIN_S", 20.0)

    async def scenario() -> None:
        async with watched(folder) as (storage, commits):
            waits = await next_removal_waits(storage, removes=removes, inserts=inserts)
            assert waits is inserts
            assert set(commits) == {LOOP}

    asyncio.run(scenario())


@pytest.mark.parametrize("limit_s", [20.0, 0.0])
def test_a_removal_waits_for_packets_as_long_as_a_commit_takes(
    limit_s: float, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "JOIN_S", 0.0)
    monkeypatch.setattr(writer, "JOIN_MAX_S", limit_s)

    async def scenario() -> None:
        async with watched(folder) as (storage, _):
            storage._writer.ordinary_commit_s = 100.0
            waits = await next_removal_waits(storage, removes=False, inserts=True)
            assert waits is (limit_s > 0)

    asyncio.run(scenario())


def test_a_small_batch_after_a_large_one_leaves_the_loop_free(folder: Path) -> None:
    async def scenario() -> None:
        async with watched(folder) as (storage, commits):
            insert(storage, *range(1, writer.SOME_ROWS + 2))
            await durable(storage)
            for arrival in (1020, 1021):
                insert(storage, arrival)
                await durable(storage)
            storage.batch.outgoing.delete_range(1, 1000, rows=1000)
            await durable(storage)

            assert commits == [THREAD, THREAD, LOOP, THREAD]

    asyncio.run(scenario())


SMALL_LOG_BYTES = 400_000  # the log of a new database begins with 300,000
STORED_BYTES = 30_000  # at most, of the log for a message
BODY_BYTES = 20_000


def log_bytes(folder: Path) -> int:
    return (folder / "queues.db-wal").stat().st_size


def checkpoints(storage: Storage) -> int:
    return sum(storage.figures.checkpoints.counts)


async def store(storage: Storage, *arrivals: int) -> None:
    """Commit some messages alone."""
    for arrival in arrivals:
        storage.batch.insert_message(key(arrival), bytes(BODY_BYTES), arrived_at_ms=1)
        await durable(storage)


def test_small_commits_do_not_extend_the_file_of_a_log(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint, "SMALL_LOG_BYTES", SMALL_LOG_BYTES)

    async def scenario() -> None:
        async with watched(folder) as (storage, _):
            await store(storage, *range(50))
            assert log_bytes(folder) < SMALL_LOG_BYTES + 2 * STORED_BYTES
            assert checkpoints(storage)
            storage.batch.insert_message(key(50), bytes(2 * SMALL_LOG_BYTES), arrived_at_ms=1)
            await durable(storage)
            await store(storage, 51, 52)  # the first one not on the loop
            longer, before = log_bytes(folder), checkpoints(storage)
            await store(storage, *range(53, 101))

            assert log_bytes(folder) == longer
            assert checkpoints(storage) - before <= 50 * STORED_BYTES / longer + 1
            assert len(await stored(storage)) == 101

    asyncio.run(scenario())


def test_a_log_that_a_reader_needs_grows_without_a_checkpoint_after_each_commit(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint, "SMALL_LOG_BYTES", SMALL_LOG_BYTES)

    async def scenario() -> None:
        async with watched(folder) as (storage, _):
            reader = other_connection(folder)
            reader.execute("BEGIN")
            reader.execute("SELECT count(*) FROM message").fetchone()
            await store(storage, *range(80))
            grown = log_bytes(folder)
            assert grown > 3 * SMALL_LOG_BYTES
            assert checkpoints(storage) <= grown / SMALL_LOG_BYTES
            reader.execute("COMMIT")
            reader.close()
            await store(storage, *range(80, 180))

            assert log_bytes(folder) < grown + SMALL_LOG_BYTES + 2 * STORED_BYTES

    asyncio.run(scenario())
