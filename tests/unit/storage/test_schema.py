"""The schema of databases: accepted versions, and the migration of older ones."""

import asyncio
import sqlite3
from pathlib import Path

import pytest

from storage import ForeignDatabase, NewerSchema
from storage.engine import schema
from storage.engine.schema import Migration
from storage.tables import counters
from tests.unit.storage.support import (
    OWN_ID,
    memory_database,
    opened,
    other_connection,
)


def test_a_database_of_another_program_is_refused_and_not_changed(folder: Path) -> None:
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


def test_a_newer_database_is_refused_with_a_remedy(folder: Path) -> None:
    async def scenario() -> None:
        async with opened(folder) as storage:
            await storage.batch.run(lambda db: counters.reserve(db, "n", 1))
        newer = other_connection(folder)
        newer.execute("PRAGMA user_version = 9999")
        newer.close()
        with pytest.raises(NewerSchema, match=r"schema 9999, and .* \d+ at most: install"):
            async with opened(folder):
                pass

    asyncio.run(scenario())


def test_an_older_database_goes_through_the_migrations_it_lacks() -> None:
    db = memory_database()
    db.execute("INSERT INTO message (key, arrived_at_ms, packet) VALUES (5, 6, x'00')")
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


def test_a_failed_migration_does_not_change_the_database() -> None:
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


def test_an_interrupted_first_start_is_repeated(folder: Path) -> None:
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
