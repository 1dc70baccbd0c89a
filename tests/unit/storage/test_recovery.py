"""Starts after a crash: the steps before SQLite opens the database, and those after."""

import asyncio
import os
from pathlib import Path

import aiosqlite
import pytest

from storage import DatabaseDamaged, Disk, Lock, RecoveryFailed, StorageError
from storage.tables import counters, messages
from storage.tables.keys import message_key
from tests.unit.storage.support import (
    durable,
    opened,
)


def copy_while_open(folder: Path, to: Path) -> None:
    """Copy the folder as a crash at this moment would leave it."""
    to.mkdir()
    for name in ("queues.db", "queues.db-wal"):
        (to / name).write_bytes((folder / name).read_bytes())


async def crashed(folder: Path, to: Path) -> None:
    """Make a folder with one acknowledged message, as a killed daemon leaves it."""
    async with opened(folder) as storage:
        storage.batch.insert_message(message_key(16, 7, 1), b"packet", 1)
        await durable(storage)
        copy_while_open(folder, to)


def test_an_acknowledged_message_survives_a_crash(folder: Path, tmp_path: Path) -> None:
    async def scenario() -> None:
        await crashed(folder, tmp_path / "copy")
        async with opened(tmp_path / "copy") as storage:
            (row,) = await storage.read(lambda db: messages.page(db, 16))
            assert row.packet == b"packet"
            assert not storage.recovery.was_clean
            assert storage.recovery.log_bytes > 0
            assert storage.recovery.checked

    asyncio.run(scenario())


def test_after_a_crash_a_counter_returns_no_number_twice(folder: Path, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(folder) as storage:
            assert await storage.batch.run(lambda db: counters.reserve(db, "n", 1000)) == 1
            copy_while_open(folder, tmp_path / "copy")
        async with opened(tmp_path / "copy") as storage:
            assert await storage.batch.run(lambda db: counters.reserve(db, "n", 1000)) == 1001

    asyncio.run(scenario())


def test_the_log_is_made_durable_under_the_lock_and_before_sqlite_opens_it(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []
    copy = tmp_path / "copy"

    class Observed(Disk):
        def lock(self, folder: Path) -> Lock:
            events.append("lock")
            return super().lock(folder)

    def connect(path: str) -> aiosqlite.Connection:
        events.append("connect")
        return aiosqlite.connect(path)

    fsync = os.fsync

    def observed_fsync(file: int) -> None:
        events.append(f"sync {Path(os.readlink(f'/proc/self/fd/{file}')).name}")
        fsync(file)

    async def scenario() -> None:
        await crashed(folder, copy)
        monkeypatch.setattr(os, "fsync", observed_fsync)
        async with opened(copy, disk=Observed(), connect=connect):
            assert events == [
                "lock",
                "sync lock",
                "sync queues.db-wal",
                "sync copy",
                "connect",
                "connect",
                "sync mark",
                "sync copy",  # the folder: names of the copies, and of the log
            ]

    asyncio.run(scenario())


def test_a_log_that_cannot_be_rewritten_prevents_the_start(folder: Path, tmp_path: Path) -> None:
    class Failing(Disk):
        def rewrite_log(self, path: Path) -> int:
            raise OSError(5, "Input/output error")

    async def scenario() -> None:
        await crashed(folder, tmp_path / "copy")
        with pytest.raises(RecoveryFailed, match=r"cannot be made durable: .*Input/output"):
            async with opened(tmp_path / "copy", disk=Failing()):
                pass

    asyncio.run(scenario())


def test_after_a_crash_a_damaged_database_is_refused_every_time(
    folder: Path, tmp_path: Path
) -> None:
    def damage(copy: Path) -> Path:
        copy_while_open(folder, copy)
        with (copy / "queues.db").open("r+b") as file:
            file.seek(90 * 8192)
            file.write(b"\xff" * 8192)
        return copy

    async def scenario() -> None:
        async with opened(folder) as storage:
            for arrival in range(100):
                storage.batch.insert_message(message_key(16, 7, arrival), bytes(5000), 1)
            await durable(storage)
        async with opened(folder) as storage:
            await storage.batch.run(lambda db: counters.reserve(db, "n", 1))
            small, large = damage(tmp_path / "small"), damage(tmp_path / "large")

        for _ in range(2):
            with pytest.raises(DatabaseDamaged, match="damaged"):
                async with opened(small):
                    pass
        # The database is too large for the quick check; the daemon logs that.
        async with opened(large, quick_check_bytes_max=8192) as storage:
            assert not storage.recovery.checked
            assert not storage.recovery.was_clean
            assert storage.recovery.database_bytes > 100 * 5000

    asyncio.run(scenario())


def test_a_stop_without_closing_is_detected_even_without_a_log(folder: Path) -> None:
    async def scenario() -> None:
        async with opened(folder):
            abandoned = (folder / "lock").read_bytes()
        assert (folder / "lock").read_bytes() == b""
        (folder / "lock").write_bytes(abandoned)
        async with opened(folder) as storage:
            assert not storage.recovery.was_clean
            assert storage.recovery.checked

    asyncio.run(scenario())


def test_a_stop_after_a_failure_is_not_clean(folder: Path) -> None:
    async def scenario() -> None:
        async with opened(folder) as storage:
            storage.batch.incoming.set_sequence(5, 1, 1, at_s=0)
            with pytest.raises(StorageError):
                await durable(storage)
        assert (folder / "lock").read_text().strip() == str(os.getpid())
        async with opened(folder) as storage:
            assert not storage.recovery.was_clean

    asyncio.run(scenario())
