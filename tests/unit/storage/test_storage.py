"""Opening the data folder: first start, lock, schema, recovery, pragmas."""

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

from storage import (
    CannotStart,
    DatabaseDamaged,
    Disk,
    FolderInUse,
    ForeignDatabase,
    Identity,
    Lock,
    NewerSchema,
    Recovery,
    RecoveryFailed,
    Storage,
    StorageError,
    counters,
    messages,
    schema,
)
from storage.keys import message_key
from storage.schema import Migration
from tests.unit.storage.support import (
    NOW_S,
    OPTIONS,
    OWN_ID,
    durable,
    memory_database,
    opened,
    other_connection,
)


def copy_while_open(folder: Path, to: Path) -> None:
    """What a crash at this moment would leave behind."""
    to.mkdir()
    for name in ("queues.db", "queues.db-wal"):
        (to / name).write_bytes((folder / name).read_bytes())


async def crashed(folder: Path, to: Path) -> None:
    """A folder with one acknowledged message whose daemon was killed."""
    async with opened(folder) as storage:
        storage.batch.insert_message(message_key(16, 7, 1), b"packet", 1)
        await durable(storage)
        copy_while_open(folder, to)


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


def test_the_pragmas_are_what_the_promise_needs(folder: Path) -> None:
    def pragmas(db: sqlite3.Connection, *names: str) -> dict[str, object]:
        return {name: db.execute(f"PRAGMA {name}").fetchone()[0] for name in names}

    async def scenario() -> None:
        async with opened(folder, wal_autocheckpoint_pages=123, busy_timeout_ms=456) as storage:
            expected: dict[str, object] = {
                "journal_mode": "wal",
                "synchronous": 2,
                "page_size": 8192,
                "auto_vacuum": 2,
                "secure_delete": 0,
                "wal_autocheckpoint": 123,
                "journal_size_limit": 64 * 2**20,
                "busy_timeout": 456,
                "temp_store": 2,
                "cache_size": -8192,
                "application_id": 0x716D6431,
                "user_version": 1,
            }
            assert await storage.batch.run(lambda db: pragmas(db, *expected)) == expected
            shared = ("journal_mode", "busy_timeout", "temp_store", "cache_size")
            assert await storage.read(lambda db: pragmas(db, *shared)) == {
                name: expected[name] for name in shared
            }
            assert await storage.read(lambda db: pragmas(db, "query_only")) == {"query_only": 1}

    asyncio.run(scenario())


def test_giving_up_the_reserve_is_enough_to_empty_the_log() -> None:
    assert OPTIONS.log_pages_max == 4000
    assert type(OPTIONS)().log_pages_max == 4000
    assert type(OPTIONS)(disk_reserve_bytes=2**20).log_pages_max == 65


def test_what_aiosqlite_keeps_private_is_as_we_know_it(folder: Path) -> None:
    """storage/connection.py uses these; after an update read aiosqlite's core.py again."""

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


def test_a_process_that_does_not_close_ends_all_the_same(folder: Path) -> None:
    program = (
        "import asyncio, warnings; from pathlib import Path;"
        " from storage import Storage, StorageOptions; warnings.simplefilter('ignore');"
        f" opened = Storage.open(Path({str(folder)!r}),"
        " StorageOptions(disk_reserve_bytes=0), now_ms=0, new_id=bytes(16));"
        " storage = asyncio.run(opened)"
    )

    ended = subprocess.run([sys.executable, "-c", program], timeout=20, cwd=os.getcwd())

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


def test_a_start_that_fails_lets_the_next_one_in(folder: Path) -> None:
    folder.mkdir()
    (folder / "queues.db").write_bytes(b"this is no database" * 1000)

    async def scenario() -> None:
        for _ in range(2):
            with pytest.raises(CannotStart, match="not a database"):
                async with opened(folder):
                    pass

    asyncio.run(scenario())


def test_a_folder_that_cannot_be_made_is_reported(tmp_path: Path) -> None:
    async def scenario() -> None:
        (tmp_path / "file").touch()
        with pytest.raises(CannotStart, match="cannot be opened"):
            async with opened(tmp_path / "file" / "data"):
                pass

    asyncio.run(scenario())


def test_a_database_of_another_program_is_refused_and_left_alone(folder: Path) -> None:
    folder.mkdir()
    foreign = other_connection(folder)
    foreign.execute("CREATE TABLE theirs (id)")
    foreign.close()
    before = (folder / "queues.db").read_bytes()

    async def scenario() -> None:
        with pytest.raises(ForeignDatabase, match="other program"):
            async with opened(folder):
                pass
        assert (folder / "queues.db").read_bytes() == before

    asyncio.run(scenario())


def test_a_newer_database_is_refused_with_what_to_do(folder: Path) -> None:
    async def scenario() -> None:
        async with opened(folder) as storage:
            await storage.batch.run(lambda db: counters.reserve(db, "n", 1))
        newer = other_connection(folder)
        newer.execute("PRAGMA user_version = 2")
        newer.close()
        with pytest.raises(NewerSchema, match=r"schema 2, and .* 1 at most: install"):
            async with opened(folder):
                pass

    asyncio.run(scenario())


def test_an_older_database_goes_through_the_migrations_it_lacks() -> None:
    db = memory_database()
    db.execute("INSERT INTO message VALUES (5, 6, NULL, NULL, 0, 0, NULL, x'00')")
    steps = [
        Migration(2, "ALTER TABLE message ADD COLUMN extra INTEGER; CREATE TABLE a (x);"),
        Migration(3, "UPDATE message SET extra = key + 1 -- no semicolon, and a comment"),
        Migration(4, "CREATE TABLE b (x); INSERT INTO b VALUES (1)"),
    ]

    def version() -> int:
        return int(db.execute("PRAGMA user_version").fetchone()[0])

    schema.prepare(db, steps[:1], now_s=0, new_id=bytes(16))
    assert version() == 2
    identity = schema.prepare(db, steps, now_s=0, new_id=bytes(16))
    assert version() == 4
    schema.prepare(db, steps, now_s=0, new_id=bytes(16))

    assert identity.queue_manager_id == OWN_ID
    assert db.execute("SELECT key, extra FROM message").fetchall() == [(5, 6)]
    assert db.execute("SELECT count(*) FROM b").fetchone() == (1,)
    db.close()


def test_a_migration_that_fails_leaves_the_database_as_it_was() -> None:
    db = memory_database()
    steps = [Migration(2, "CREATE TABLE a (x); INSERT INTO nothing VALUES (1);")]

    with pytest.raises(sqlite3.OperationalError, match="nothing"):
        schema.prepare(db, steps, now_s=0, new_id=bytes(16))

    assert db.in_transaction is False
    assert db.execute("PRAGMA user_version").fetchone() == (1,)
    assert db.execute("SELECT count(*) FROM sqlite_master WHERE name = 'a'").fetchone() == (0,)
    db.close()


def test_migrations_are_read_in_order_and_without_a_gap(tmp_path: Path) -> None:
    (tmp_path / "0003_third.sql").write_text("three")
    (tmp_path / "0002_second.sql").write_text("two")
    (tmp_path / "README.md").write_text("not one")

    assert schema.read_migrations(tmp_path) == [Migration(2, "two"), Migration(3, "three")]

    (tmp_path / "0005_fifth.sql").touch()
    with pytest.raises(AssertionError, match="0004"):
        schema.read_migrations(tmp_path)


def test_a_first_start_that_was_cut_short_is_begun_again(folder: Path) -> None:
    folder.mkdir()
    cut_short = other_connection(folder)
    cut_short.execute("PRAGMA page_size = 8192")
    cut_short.execute("PRAGMA auto_vacuum = INCREMENTAL")
    cut_short.execute("PRAGMA journal_mode = WAL")
    cut_short.close()

    async def scenario() -> None:
        async with opened(folder) as storage:
            assert storage.identity.queue_manager_id == OWN_ID
            assert await storage.read(lambda db: db.execute("PRAGMA auto_vacuum").fetchone()) == (
                2,
            )

    asyncio.run(scenario())


def test_what_was_acknowledged_is_there_after_a_crash(folder: Path, tmp_path: Path) -> None:
    async def scenario() -> None:
        await crashed(folder, tmp_path / "copy")
        async with opened(tmp_path / "copy") as storage:
            (row,) = await storage.read(lambda db: messages.page(db, 16))
            assert row.packet == b"packet"
            assert not storage.recovery.was_clean
            assert storage.recovery.log_bytes > 0
            assert storage.recovery.checked

    asyncio.run(scenario())


def test_after_a_crash_a_counter_gives_no_number_twice(folder: Path, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(folder) as storage:
            assert await storage.batch.run(lambda db: counters.reserve(db, "n", 1000)) == 1
            copy_while_open(folder, tmp_path / "copy")
        async with opened(tmp_path / "copy") as storage:
            assert await storage.batch.run(lambda db: counters.reserve(db, "n", 1000)) == 1001

    asyncio.run(scenario())


def test_the_log_is_written_again_after_the_lock_and_before_sqlite_opens_it(
    folder: Path, tmp_path: Path
) -> None:
    events: list[str] = []

    class Observed(Disk):
        def lock(self, folder: Path) -> Lock:
            events.append("lock")
            return super().lock(folder)

        def rewrite_log(self, path: Path) -> int:
            events.append(f"rewrite {path.name}")
            return super().rewrite_log(path)

    def connect(path: str) -> aiosqlite.Connection:
        events.append("connect")
        return aiosqlite.connect(path)

    async def scenario() -> None:
        await crashed(folder, tmp_path / "copy")
        async with opened(tmp_path / "copy", disk=Observed(), connect=connect):
            assert events == ["lock", "rewrite queues.db-wal", "connect", "connect"]

    asyncio.run(scenario())


def test_a_log_that_cannot_be_written_again_prevents_the_start(
    folder: Path, tmp_path: Path
) -> None:
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
            file.seek(40 * 8192)
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
        # Too large to be looked through; the daemon's log says so.
        async with opened(large, quick_check_bytes_max=8192) as storage:
            assert not storage.recovery.checked
            assert not storage.recovery.was_clean
            assert storage.recovery.database_bytes > 100 * 5000

    asyncio.run(scenario())


def test_a_stop_without_closing_is_noticed_even_where_no_log_is_left(folder: Path) -> None:
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
            storage.batch.set_incoming_sequence(5, 1, 1, at_s=0)
            with pytest.raises(StorageError):
                await durable(storage)
        async with opened(folder) as storage:
            assert not storage.recovery.was_clean

    asyncio.run(scenario())
