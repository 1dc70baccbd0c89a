"""Opening the data folder: first start, lock, pragmas."""

import asyncio
import os
import sqlite3
import subprocess
import sys
from functools import partial
from importlib import metadata
from pathlib import Path

import aiosqlite
import pytest

from storage import CannotStart, FolderInUse, Identity, Recovery, Storage
from storage.engine import schema
from storage.options import PAGE_BYTES
from storage.tables import counters
from tests.patience import END_S
from tests.unit.storage.support import (
    NOW_S,
    OPTIONS,
    OWN_ID,
    opened,
)


def test_the_first_start_makes_a_private_folder_and_an_identity(folder: Path) -> None:
    async def scenario() -> None:
        nested = folder / "deeper"
        async with opened(nested) as storage:
            assert storage.identity == Identity(OWN_ID, NOW_S)
            assert storage.recovery == Recovery(True, 0, 0, False)
            assert nested.stat().st_mode & 0o777 == 0o700
        later = await Storage.open(nested, OPTIONS, now_ms=9, new_id=bytes(16))
        assert later.identity == Identity(OWN_ID, NOW_S)
        await later.close()

    asyncio.run(scenario())


def test_a_clean_stop_leaves_no_log(folder: Path) -> None:
    async def scenario() -> None:
        async with opened(folder) as storage:
            await storage.batch.run(lambda db: counters.reserve(db, "n", 1))
            assert (folder / "queues.db-wal").stat().st_size > 0
        assert not (folder / "queues.db-wal").exists()
        async with opened(folder) as storage:
            assert storage.recovery.was_clean
            assert storage.recovery.log_bytes == 0

    asyncio.run(scenario())


def test_a_start_after_a_clean_stop_writes_nothing_into_the_database(folder: Path) -> None:
    async def scenario() -> None:
        async with opened(folder):
            pass
        before = (folder / "queues.db").read_bytes()
        async with opened(folder):
            assert (folder / "queues.db-wal").stat().st_size == 0
        assert (folder / "queues.db").read_bytes() == before

    asyncio.run(scenario())


def test_the_pragmas_are_those_that_durability_needs(folder: Path) -> None:
    def pragmas(db: sqlite3.Connection, *names: str) -> dict[str, object]:
        return {name: db.execute(f"PRAGMA {name}").fetchone()[0] for name in names}

    async def scenario() -> None:
        async with opened(folder, busy_timeout_ms=456) as storage:
            expected: dict[str, object] = {
                "journal_mode": "wal",
                "synchronous": 2,
                "page_size": PAGE_BYTES,
                "auto_vacuum": 2,
                "secure_delete": 0,
                "wal_autocheckpoint": 0,  # checkpoint.py
                "journal_size_limit": 64 * 2**20,
                "busy_timeout": 456,
                "temp_store": 2,
                "cache_size": -8192,
                "application_id": 0x716D6431,
                "user_version": schema.latest_version(schema.read_migrations()),
            }
            assert await storage.batch.run(lambda db: pragmas(db, *expected)) == expected
            shared = ("journal_mode", "busy_timeout", "temp_store", "cache_size")
            assert await storage.read(lambda db: pragmas(db, *shared)) == {
                name: expected[name] for name in shared
            }
            assert await storage.read(lambda db: pragmas(db, "query_only")) == {"query_only": 1}

    asyncio.run(scenario())


def test_removing_the_reserve_is_enough_to_empty_the_log() -> None:
    assert OPTIONS.log_pages_max(8192) == 4000
    assert type(OPTIONS)().log_pages_max(8192) == 4000
    assert type(OPTIONS)().log_pages_max(4096) == 8000
    assert type(OPTIONS)(disk_reserve_bytes=2**20).log_pages_max(8192) == 65
    assert type(OPTIONS)(disk_reserve_bytes=2**20).log_pages_max(4096) == 129


def test_the_private_attributes_of_aiosqlite_are_as_expected(folder: Path) -> None:
    """storage/engine/connection.py uses these attributes.  After an update of aiosqlite, read its
    core.py again."""

    async def scenario() -> None:
        assert metadata.version("aiosqlite") == "0.22.1"
        connection = aiosqlite.connect(":memory:")
        assert connection._thread.daemon is False
        connection._thread.daemon = True
        await connection
        future = asyncio.get_running_loop().create_future()
        connection._tx.put_nowait((future, partial(isinstance, connection._conn, object)))
        assert await future is True
        assert isinstance(connection._conn, sqlite3.Connection)
        await connection.close()

    asyncio.run(scenario())


def test_a_process_that_does_not_close_the_storage_still_ends(folder: Path) -> None:
    program = (
        "import asyncio, warnings; from pathlib import Path;"
        " from storage import Storage, StorageOptions; warnings.simplefilter('ignore');"
        f" opened = Storage.open(Path({str(folder)!r}),"
        " StorageOptions(disk_reserve_bytes=0), now_ms=0, new_id=bytes(16));"
        " storage = asyncio.run(opened)"
    )

    ended = subprocess.run([sys.executable, "-c", program], timeout=END_S, cwd=os.getcwd())

    assert ended.returncode == 0


def test_a_second_daemon_on_the_folder_is_refused(folder: Path) -> None:
    async def scenario() -> None:
        async with opened(folder):
            with pytest.raises(FolderInUse, match=f"in use by process {os.getpid()}"):
                async with opened(folder):
                    pass
        async with opened(folder):
            pass

    asyncio.run(scenario())


def test_a_failed_start_does_not_block_the_next_one(folder: Path) -> None:
    folder.mkdir()
    (folder / "queues.db").write_bytes(b"this is no database" * 1000)

    async def scenario() -> None:
        for _ in range(2):
            with pytest.raises(CannotStart, match="not a database"):
                async with opened(folder):
                    pass

    asyncio.run(scenario())


def test_a_folder_that_cannot_be_created_is_reported(tmp_path: Path) -> None:
    async def scenario() -> None:
        (tmp_path / "file").touch()
        with pytest.raises(CannotStart, match="cannot be opened"):
            async with opened(tmp_path / "file" / "data"):
                pass

    asyncio.run(scenario())
