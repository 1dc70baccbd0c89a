"""A full disk: no acknowledged message is lost, and queues can still be emptied."""

import asyncio
import contextlib
import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from storage import Disk, Storage, StorageError
from storage.errors import NoRoomForIt
from storage.options import PAGE_BYTES
from storage.tables import counters, messages
from storage.tables.keys import message_key
from tests.patience import END_S
from tests.unit.storage.support import durable, opened

KIB = 1024
MIB = 1024 * KIB


def key(arrival: int) -> int:
    return message_key(16, 7, arrival)


def content(arrival: int) -> bytes:
    return b"%06d" % arrival * 500


async def insert(storage: Storage, *arrivals: int) -> None:
    for arrival in arrivals:
        storage.batch.insert_message(key(arrival), content(arrival), 1)
    await durable(storage)


async def stored(storage: Storage) -> list[int]:
    """Return the arrivals of all messages; fail if a message is damaged."""
    rows = await storage.read(lambda db: messages.page(db, 16, rows_max=10_000))
    arrivals = [row.key - key(0) for row in rows]
    assert [row.packet for row in rows] == [content(arrival) for arrival in arrivals]
    return arrivals


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(END_S):
        while not holds():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


def messages_in(db: sqlite3.Connection) -> int:
    (count,) = db.execute("SELECT count(*) FROM message").fetchone()
    return int(count)


class LimitedDisk(Disk):
    """A disk with a limit of pages for SQLite; the limit rises when the reserve is removed.

    SQLITE_FULL comes from `max_page_count`, in the middle of a batch, on every machine.
    """

    def __init__(self, pages_after_removal: int) -> None:
        self.removed = 0
        self.can_reserve = True
        self._pages_after_removal = pages_after_removal
        self._db: sqlite3.Connection

    def limit(self, db: sqlite3.Connection, pages: int) -> None:
        self._db = db
        db.execute(f"PRAGMA max_page_count = {pages}")

    def reserve(self, path: Path, size_bytes: int) -> None:
        if not self.can_reserve:
            raise OSError(28, "No space left on device")
        super().reserve(path, size_bytes)

    def remove(self, path: Path) -> None:
        super().remove(path)
        self.removed += 1
        self.limit(self._db, self._pages_after_removal)


def test_on_a_full_disk_the_reserve_is_removed_and_the_batch_retried(
    folder: Path,
) -> None:
    async def scenario() -> None:
        disk = LimitedDisk(pages_after_removal=1000)
        async with opened(folder, disk=disk, disk_reserve_bytes=MIB) as storage:
            await storage.batch.run(lambda db: disk.limit(db, 120))
            disk.can_reserve = False
            runs: list[int] = []

            def unit(db: sqlite3.Connection) -> int:
                runs.append(1)
                messages.insert(db, [(key(n), 1, None, None, content(n)) for n in range(10, 300)])
                return counters.reserve(db, "n", 10)

            told: list[str] = []
            storage.batch.when_durable(lambda: told.append("durable"))
            reserved = storage.batch.run(unit)
            await insert(storage, *range(10))

            assert await reserved == 1
            assert await storage.read(lambda db: counters.following(db, "n")) == 11
            assert told == ["durable"]
            assert len(runs) == 2
            assert await stored(storage) == list(range(300))
            assert disk.removed == 1
            assert storage.full
            assert not storage.room(0.0)

            await insert(storage, 300)
            assert storage.full
            disk.can_reserve = True
            await insert(storage, 301)
            assert not storage.full
            assert storage.room(10.0)

    asyncio.run(scenario())


def test_a_batch_with_packets_without_room_in_time_stops_the_storage(folder: Path) -> None:
    async def scenario() -> None:
        disk = LimitedDisk(pages_after_removal=41)
        options = {"disk_reserve_bytes": MIB, "full_disk_patience_s": 0}
        async with opened(folder, disk=disk, **options) as storage:
            await storage.batch.run(lambda db: disk.limit(db, 40))
            await insert(storage, 0)
            with pytest.raises(StorageError, match="full"):
                await insert(storage, *range(1, 300))

            assert disk.removed == 1
            assert await stored(storage) == [0]
        async with opened(folder) as storage:
            assert await stored(storage) == [0]

    asyncio.run(scenario())


def test_a_batch_waits_for_room_and_is_then_written(folder: Path) -> None:
    async def scenario() -> None:
        disk = LimitedDisk(pages_after_removal=41)
        async with opened(folder, disk=disk, disk_reserve_bytes=MIB) as storage:
            await storage.batch.run(lambda db: disk.limit(db, 40))
            runs: list[int] = []
            pages = 41

            def unit(db: sqlite3.Connection) -> int:
                runs.append(1)
                disk.limit(db, pages)
                messages.insert(db, [(key(n), 1, None, None, content(n)) for n in range(300)])
                return 7

            waiting = storage.batch.run(unit)
            await until(lambda: bool(storage.obstacle))
            assert "full" in storage.obstacle
            assert await stored(storage) == []
            later = storage.batch.run(lambda db: 8)
            tried = len(runs)
            await until(lambda: len(runs) > tried)  # another attempt failed
            assert not waiting.done()
            pages = 1000

            assert (await waiting, await later) == (7, 8)
            assert storage.obstacle == ""
            assert await stored(storage) == list(range(300))

    asyncio.run(scenario())


def test_closing_does_not_wait_for_room(folder: Path) -> None:
    async def scenario() -> None:
        disk = LimitedDisk(pages_after_removal=41)
        async with opened(folder, disk=disk, disk_reserve_bytes=MIB) as storage:
            await storage.batch.run(lambda db: disk.limit(db, 40))

            def unit(db: sqlite3.Connection) -> None:
                messages.insert(db, [(key(n), 1, None, None, content(n)) for n in range(300)])

            waiting = storage.batch.run(unit)
            await until(lambda: bool(storage.obstacle))
        with pytest.raises(StorageError, match="full"):
            await waiting
        async with opened(folder) as storage:
            assert await stored(storage) == []

    asyncio.run(scenario())


def test_a_deferrable_act_does_not_block_others(folder: Path) -> None:
    async def scenario() -> None:
        disk = LimitedDisk(pages_after_removal=41)
        async with opened(folder, disk=disk, disk_reserve_bytes=MIB) as storage:
            await storage.batch.run(lambda db: disk.limit(db, 40))

            def large(db: sqlite3.Connection) -> None:
                messages.insert(db, [(key(n), 1, None, None, content(n)) for n in range(300)])

            housekeeping = storage.batch.run(large, can_wait=True)
            needed = storage.batch.run(lambda db: counters.reserve(db, "n", 10))

            assert await needed == 1
            with pytest.raises(NoRoomForIt):
                await housekeeping
            assert await stored(storage) == []
            assert not storage.failed.done()

    asyncio.run(scenario())


def test_a_commit_without_memory_is_retried(folder: Path) -> None:
    async def scenario() -> None:
        async with opened(folder) as storage:
            errors = [MemoryError(), MemoryError()]

            def unit(db: sqlite3.Connection) -> int:
                counters.reserve(db, "n", 10)
                if errors:
                    raise errors.pop()
                return 7

            assert await storage.batch.run(unit) == 7
            assert await storage.read(lambda db: counters.following(db, "n")) == 11
            await insert(storage, 1)
            assert await stored(storage) == [1]

    asyncio.run(scenario())


def test_other_errors_are_not_retried(folder: Path) -> None:
    async def scenario() -> None:
        disk = LimitedDisk(pages_after_removal=1000)
        async with opened(folder, disk=disk, disk_reserve_bytes=MIB) as storage:
            await storage.batch.run(lambda db: disk.limit(db, 1000))
            await insert(storage, 1)
            with pytest.raises(StorageError, match="UNIQUE"):
                await insert(storage, 2, 1)
            assert disk.removed == 0

    asyncio.run(scenario())


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Return the folder of a file system of 4 MiB."""
    with mounted(tmp_path, "4m") as mount:
        yield mount


@pytest.fixture
def larger_disk(tmp_path: Path) -> Iterator[Path]:
    """Return the folder of a file system with room for a log of more than one index block."""
    with mounted(tmp_path, "64m") as mount:
        yield mount


@contextlib.contextmanager
def mounted(tmp_path: Path, size: str) -> Iterator[Path]:
    if os.geteuid() != 0:
        pytest.skip("mounting a small disk needs root")
    mount = tmp_path / "disk"
    mount.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "qmd-test", str(mount)]
    if subprocess.run(command, capture_output=True).returncode != 0:
        pytest.skip("this machine does not let us mount a small disk")
    yield mount
    subprocess.run(["umount", "--lazy", str(mount)], check=True)


def fill(path: Path) -> None:
    """Write a file until the file system is full to the last byte."""
    with path.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(4096))


SMALL = {"disk_reserve_bytes": MIB, "disk_watermark_bytes": 512 * KIB}


@pytest.mark.parametrize("batch_rows", [4, 20])
def test_a_disk_full_of_messages_can_be_emptied_and_used_again(
    small_disk: Path, batch_rows: int
) -> None:
    def log_bytes() -> int:
        return (small_disk / "data" / "queues.db-wal").stat().st_size

    async def fill_up(storage: Storage) -> int:
        count = 0
        while not storage.full:
            await insert(storage, *range(count, count + batch_rows))
            count += batch_rows
        assert log_bytes() == 0
        assert await stored(storage) == list(range(count))
        return count

    async def scenario() -> None:
        async with opened(small_disk / "data", **SMALL) as storage:
            count = await fill_up(storage)
            assert not storage.room(0.0)
        async with opened(small_disk / "data", **SMALL) as storage:
            assert storage.full
            assert await stored(storage) == list(range(count))
            for start in range(0, count, batch_rows):
                storage.batch.delete_messages([key(start + row) for row in range(batch_rows)])
                await durable(storage)
            assert await stored(storage) == []
            assert not storage.full
            assert storage.room(0.0)
            assert await fill_up(storage) == pytest.approx(count, rel=0.2)

    asyncio.run(scenario())


@pytest.mark.parametrize("batch_rows", [4, 20])
def test_queues_can_be_emptied_on_a_disk_that_other_files_fill(
    small_disk: Path, batch_rows: int
) -> None:
    count = 400

    async def scenario() -> None:
        async with opened(small_disk / "data", **SMALL) as storage:
            # One commit of all, five times `batch_bytes_max`, makes a log that the reserve cannot
            # take into the database.
            for start in range(0, count, 40):
                await insert(storage, *range(start, start + 40))
            await storage.vacuum(0)  # moves the rows from the log into the database
            fill(small_disk / "other")
            assert not storage.room(0.0)

            for start in range(0, count, batch_rows):
                storage.batch.delete_messages([key(start + row) for row in range(batch_rows)])
                await durable(storage)

            assert await stored(storage) == []
            (small_disk / "other").unlink()
            await insert(storage, *range(10))
            assert not storage.full
            assert await stored(storage) == list(range(10))

    asyncio.run(scenario())


def test_an_index_of_the_log_that_cannot_grow_counts_as_a_full_disk(larger_disk: Path) -> None:
    """`queues.db-shm` grows with every 4062 pages of the log.  The log keeps all pages that a
    reader of the database may still need."""
    folder, frame_bytes = larger_disk / "data", PAGE_BYTES + 24

    async def scenario() -> None:
        async with opened(folder, disk_reserve_bytes=MIB) as storage:
            await insert(storage, 0)
            stranger = sqlite3.connect(folder / "queues.db", isolation_level=None)
            stranger.execute("BEGIN")
            stranger.execute("SELECT count(*) FROM message").fetchall()
            log, index = folder / "queues.db-wal", folder / "queues.db-shm"
            count = 1
            while log.stat().st_size < 4040 * frame_bytes:
                left = 4040 - log.stat().st_size // frame_bytes
                await insert(storage, *range(count, count + max(left // 2, 5)))
                count += max(left // 2, 5)
            assert index.stat().st_size == 32 * KIB
            fill(larger_disk / "other")
            room = (4062 - log.stat().st_size // frame_bytes + 2) * frame_bytes
            os.truncate(larger_disk / "other", (larger_disk / "other").stat().st_size - room)

            def write(db: sqlite3.Connection) -> None:
                counters.reserve(db, "n", 1)

            for _ in range(40):
                await storage.batch.run(write)

            assert index.stat().st_size == 64 * KIB
            assert await storage.read(messages_in) == count
            assert await storage.read(lambda db: counters.following(db, "n")) == 41
            stranger.close()

    asyncio.run(scenario())


def test_after_a_stop_on_a_full_disk_the_storage_starts(small_disk: Path) -> None:
    async def scenario() -> None:
        async with opened(small_disk / "data", **SMALL) as storage:
            await insert(storage, *range(10))
        fill(small_disk / "other")  # also the room of the log, which the stop has removed
        async with opened(small_disk / "data", **SMALL) as storage:
            assert storage.full
            assert not storage.room(0.0)
            assert await stored(storage) == list(range(10))
            storage.batch.delete_messages([key(row) for row in range(10)])
            await durable(storage)
            assert await stored(storage) == []

    asyncio.run(scenario())


WRITE_UNTIL_IT_FAILS = """
import asyncio, resource, sys
from pathlib import Path
from storage import StorageError
from tests.unit.storage.test_full_disk import insert, opened

async def main(folder):
    async with opened(folder) as storage:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
        for count in range(0, 10_000, 5):
            try:
                await insert(storage, *range(count, count + 5))
            except StorageError as error:
                print(f"failed: {error}", flush=True)
                return
            print(count + 5, flush=True)

asyncio.run(main(Path(sys.argv[1])))
"""


def test_a_limit_of_the_file_size_stops_the_storage_without_loss(folder: Path) -> None:
    writer = subprocess.run(
        [sys.executable, "-c", WRITE_UNTIL_IT_FAILS, str(folder)],
        capture_output=True,
        text=True,
        check=True,
    )
    *acknowledged, failure = writer.stdout.splitlines()

    async def scenario() -> None:
        async with opened(folder) as storage:
            assert await stored(storage) == list(range(int(acknowledged[-1])))
            storage.batch.delete_messages([key(0)])
            await durable(storage)

    assert failure.startswith("failed: a commit failed: disk I/O error")
    asyncio.run(scenario())
