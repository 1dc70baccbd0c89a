"""Databases with pages of each size: the service, the check, the rescue and backups read them."""

import asyncio
import os
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from storage.backup import restoration
from storage.backup.making import Request, make
from storage.backup.snapshot import Snapshot
from storage.engine import missing, page_size
from storage.engine.page_size import PAGE_SIZES
from storage.errors import BackupFailed
from storage.rescue import check
from storage.rescue.repair import Rescue
from tests.crash import old_folder
from tests.unit.storage.support import NOW_MS, NOW_S, OWN_ID, durable, insert, key, opened, stored

COMMITS = 120
LOG_HEADER_BYTES, FRAME_HEADER_BYTES = 32, 24


@pytest.fixture(params=PAGE_SIZES)
def page_bytes(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.fixture
def killed(folder: Path, tmp_path: Path, page_bytes: int) -> Path:
    """Return the copy of a folder that was not closed: with a database, a log and its index."""

    async def scenario() -> None:
        async with opened(folder, page_bytes=page_bytes, wal_autocheckpoint_pages=60) as storage:
            for number in range(1, COMMITS + 1):
                insert(storage, number)
                await durable(storage)
            shutil.copytree(folder, tmp_path / "killed")

    asyncio.run(scenario())
    return tmp_path / "killed"


def overwrite(path: Path, place: int, content: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(place)
        file.write(content)


def size_of(folder: Path) -> int:
    with closing(sqlite3.connect(folder / "queues.db")) as db:
        return int(db.execute("PRAGMA page_size").fetchone()[0])


def keys(folder: Path, page_bytes: int) -> list[int]:
    async def scenario() -> list[int]:
        async with opened(folder, page_bytes=page_bytes) as storage:
            return await stored(storage)

    return asyncio.run(scenario())


def test_a_database_keeps_its_size_whatever_the_options_say(killed: Path, page_bytes: int) -> None:
    (other,) = set(PAGE_SIZES) - {page_bytes}

    assert keys(killed, other) == [key(number) for number in range(1, COMMITS + 1)]
    assert size_of(killed) == page_bytes


@pytest.mark.parametrize("lost", [(), ("-wal", "-shm"), ("-shm",)])
def test_the_size_is_found_although_the_header_of_the_database_is_damaged(
    killed: Path, page_bytes: int, lost: tuple[str, ...]
) -> None:
    """By the log, by its index, and without both by the map of the pages."""
    for suffix in lost:
        (killed / f"queues.db{suffix}").unlink()
    for damage in (bytes(100), os.urandom(100), b"\xff" * 100):
        overwrite(killed / "queues.db", 0, damage)
        assert page_size.of_database(killed / "queues.db") == page_bytes


def test_a_header_that_states_the_other_size_is_outvoted(killed: Path, page_bytes: int) -> None:
    (other,) = set(PAGE_SIZES) - {page_bytes}
    overwrite(killed / "queues.db", 16, other.to_bytes(2, "big"))

    assert page_size.of_database(killed / "queues.db") == page_bytes


def test_a_database_that_is_only_in_its_log_has_the_size_of_the_log(
    folder: Path, tmp_path: Path, page_bytes: int
) -> None:
    async def scenario() -> None:
        async with opened(folder, page_bytes=page_bytes) as storage:
            insert(storage, 1)
            await durable(storage)
            shutil.copytree(folder, tmp_path / "copy")

    asyncio.run(scenario())
    os.truncate(tmp_path / "copy" / "queues.db", 0)

    assert page_size.of_database(tmp_path / "copy" / "queues.db") == page_bytes


def test_a_commit_that_was_damaged_within_the_log_is_missed(killed: Path, page_bytes: int) -> None:
    (killed / "mark").unlink()
    assert missing.find(killed) is None
    frame = LOG_HEADER_BYTES + 5 * (FRAME_HEADER_BYTES + page_bytes)

    overwrite(killed / "queues.db-wal", frame + FRAME_HEADER_BYTES + 77, b"damage")

    lost = missing.find(killed)
    assert lost is not None
    assert "intact commits after the damage" in lost


def test_all_messages_of_a_damaged_folder_are_rescued(tmp_path: Path, page_bytes: int) -> None:
    folder = tmp_path / "data"
    old_folder.restore(1, folder, port=1)
    with closing(sqlite3.connect(folder / "queues.db")) as db:
        db.execute("PRAGMA journal_mode = DELETE")
        db.execute(f"PRAGMA page_size = {page_bytes}")
        db.execute("VACUUM")
        db.execute("PRAGMA journal_mode = WAL")
        (messages,) = db.execute("SELECT count(*) FROM message").fetchone()
        (root,) = db.execute("SELECT rootpage FROM sqlite_master WHERE name = 'queue'").fetchone()
    assert size_of(folder) == page_bytes
    assert check.check(folder).findings == []
    overwrite(folder / "queues.db", (root - 1) * page_bytes, b"\xff" * page_bytes)
    overwrite(folder / "queues.db", 0, bytes(100))

    assert check.check(folder).findings
    rescue = Rescue(folder)
    found = list(rescue.run(now_s=NOW_S, new_id=OWN_ID))

    assert sum(message.table == "message" for message in found) == messages
    assert size_of(rescue.fresh) == page_bytes


def test_a_backup_has_the_pages_of_the_database(
    killed: Path, tmp_path: Path, page_bytes: int
) -> None:
    target = tmp_path / "backup.qmdbackup"
    made = make(Request(killed, target, "host", "0", NOW_MS))
    assert made.database_bytes % page_bytes == 0

    backup = restoration.choose(target, None, ())
    restoration.restore(backup, tmp_path / "restored", (), now_ms=NOW_MS)

    assert size_of(tmp_path / "restored") == page_bytes
    expected = [key(number) for number in range(1, COMMITS + 1)]
    assert keys(tmp_path / "restored", page_bytes) == expected


def test_a_database_with_other_pages_is_not_backed_up(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "queues.db")) as db:
        db.execute("PRAGMA page_size = 1024")
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("CREATE TABLE any (content BLOB)")

        with pytest.raises(BackupFailed, match="pages of 1024 bytes"), Snapshot(tmp_path):
            pass
