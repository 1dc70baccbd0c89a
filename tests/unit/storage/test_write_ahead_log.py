"""The write-ahead log of a database: valid frames, lost frames, and the report of a loss."""

from __future__ import annotations

import shutil
import sqlite3
import struct
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from storage import StorageOptions
from storage.engine import schema
from storage.engine.connection import set_up_writer
from storage.options import PAGE_BYTES
from storage.rescue import check
from storage.rescue.survey import Survey
from storage.rescue.write_ahead_log import Log, read_log
from tests.unit.storage.support import NOW_S, OWN_ID

HEADER_BYTES, FRAME_BYTES = 32, PAGE_BYTES + 24
QUEUES = 40  # each of them in a commit of its own


def make(path: Path, queues: int = QUEUES) -> sqlite3.Connection:
    db = sqlite3.connect(path)
    set_up_writer(db, StorageOptions())
    db.execute("PRAGMA wal_autocheckpoint = 0")
    schema.prepare(db, schema.read_migrations(), now_s=NOW_S, new_id=OWN_ID)
    db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    for number in range(queues):
        add(db, number)
    return db


def add(db: sqlite3.Connection, number: int) -> None:
    name = f"private$\\{number:04}{'x' * 900}"
    db.execute(
        "INSERT INTO queue (id, name, key, label, transactional, journal, system, created_at_s,"
        " modified_at_s) VALUES (?, ?, ?, '', 0, 0, 0, 0, 0)",
        (100 + number, name, name),
    )


def copied(path: Path, to: Path, *, index: bool = True) -> Path:
    to.mkdir()
    for suffix in ("", "-wal", *(["-shm"] if index else [])):
        shutil.copy(f"{path}{suffix}", f"{to / path.name}{suffix}")
    return to / path.name


@pytest.fixture
def killed(tmp_path: Path) -> Iterator[Path]:
    """Return a database as `kill -9` leaves it: with a log and its index."""
    (tmp_path / "alive").mkdir()
    with closing(make(tmp_path / "alive" / "queues.db")) as db:
        yield copied(Path(tmp_path / "alive" / "queues.db"), tmp_path / "killed")
        assert db.execute("SELECT count(*) FROM queue WHERE id >= 100").fetchone() == (QUEUES,)


def log_of(path: Path) -> Path:
    return path.with_name("queues.db-wal")


def without_index(path: Path) -> None:
    path.with_name("queues.db-shm").unlink()


def change(path: Path, place: int, content: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(place)
        file.write(content)


def flip(path: Path, place: int) -> None:
    change(path, place, bytes([path.read_bytes()[place] ^ 1]))


def queues(path: Path) -> set[int]:
    """Return the certain rows among the queues that these tests made."""
    survey = Survey(path)
    survey.close()
    return {id_ for id_ in survey.rows["queue"] if id_ >= 100}


def frames(path: Path) -> int:
    return (log_of(path).stat().st_size - HEADER_BYTES) // FRAME_BYTES


def replaced(path: Path) -> list[int]:
    """Return the frames of which a later frame has the page as well."""
    log = log_of(path).read_bytes()
    pages = [log[at : at + 4] for at in range(HEADER_BYTES, len(log), FRAME_BYTES)]
    return [at for at, page in enumerate(pages) if page in pages[at + 1 :]]


def is_same(found: Log, before: Log) -> bool:
    return (found.frames, found.page_count) == (before.frames, before.page_count)


@pytest.mark.parametrize("is_known", [True, False], ids=["with its index", "without"])
def test_a_damaged_frame_does_not_hide_later_frames(killed: Path, is_known: bool) -> None:
    if not is_known:
        without_index(killed)
    before = read_log(killed, PAGE_BYTES)
    assert before.findings == ()

    some = replaced(killed)
    flip(log_of(killed), HEADER_BYTES + some[len(some) // 2] * FRAME_BYTES + 2000)
    found = read_log(killed, PAGE_BYTES)

    assert is_same(found, before)
    assert found.former == frozenset()
    assert any("the log is damaged: 1 frame from" in each for each in found.findings)
    assert queues(killed) == set(range(100, 100 + QUEUES))
    assert check.check(killed.parent).findings


def test_a_lost_frame_leaves_an_older_state_of_its_page(killed: Path) -> None:
    without_index(killed)
    log = read_log(killed, PAGE_BYTES)
    last = max(log.frames.values())
    page, content = min(log.frames.items(), key=lambda each: each[1])
    assert content < last

    flip(log_of(killed), content + 100)
    found = read_log(killed, PAGE_BYTES)

    assert found.former == {page}
    assert found.page_count == log.page_count
    assert found.frames == {each: place for each, place in log.frames.items() if each != page}


@pytest.mark.parametrize("is_known", [True, False], ids=["with its index", "without"])
def test_the_page_of_a_lost_frame_is_identified_or_narrowed_down(
    killed: Path, is_known: bool
) -> None:
    if not is_known:
        without_index(killed)
    log = read_log(killed, PAGE_BYTES)
    page, content = min(log.frames.items(), key=lambda each: each[1])

    change(log_of(killed), content - 24, bytes(FRAME_BYTES - 500))
    found = read_log(killed, PAGE_BYTES)

    assert page in found.former
    assert is_known == (found.former == {page})


@pytest.mark.parametrize("place", [4, 9, 17, 20, 25, 31])
def test_a_damaged_header_does_not_hide_frames(killed: Path, place: int) -> None:
    before = read_log(killed, PAGE_BYTES)

    flip(log_of(killed), place)

    assert is_same(read_log(killed, PAGE_BYTES), before)
    assert any(
        "the header of the log is damaged" in each for each in read_log(killed, PAGE_BYTES).findings
    )
    assert queues(killed) == set(range(100, 100 + QUEUES))


def test_the_index_reveals_a_truncated_or_removed_log(killed: Path) -> None:
    content = log_of(killed).read_bytes()

    log_of(killed).write_bytes(content[: len(content) // 2])
    assert any(
        "the end of the log is missing" in each for each in read_log(killed, PAGE_BYTES).findings
    )
    assert any("the last commits are lost" in each for each in check.check(killed.parent).findings)
    log_of(killed).unlink()
    assert any("the log is missing" in each for each in read_log(killed, PAGE_BYTES).findings)
    log_of(killed).write_bytes(b"")
    assert any("the log is missing" in each for each in read_log(killed, PAGE_BYTES).findings)


def test_reading_does_not_change_the_index(killed: Path) -> None:
    before = {each.name: each.read_bytes() for each in killed.parent.iterdir()}

    assert check.check(killed.parent).findings == []

    assert {each.name: each.read_bytes() for each in killed.parent.iterdir()} == before


def test_checkpointed_pages_are_not_lost_with_the_log(tmp_path: Path) -> None:
    path = tmp_path / "queues.db"
    with closing(make(path)) as db:
        db.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
        killed = copied(path, tmp_path / "killed")
    content = log_of(killed).read_bytes()

    log_of(killed).write_bytes(content[: len(content) // 2])

    assert queues(killed) == set(range(100, 100 + QUEUES))
    assert any("a daemon would return" in each for each in read_log(killed, PAGE_BYTES).findings)


@pytest.mark.parametrize("is_known", [True, False], ids=["with its index", "without"])
def test_a_torn_commit_does_not_count(killed: Path, is_known: bool) -> None:
    """A loss of power leaves such a commit.  The index records whether it was acknowledged."""
    if not is_known:
        without_index(killed)
    content = log_of(killed).read_bytes()

    log_of(killed).write_bytes(content[:-1])

    assert queues(killed) == set(range(100, 100 + QUEUES - 1))
    assert bool(read_log(killed, PAGE_BYTES).findings) == is_known


def test_frames_of_an_older_generation_do_not_count(tmp_path: Path) -> None:
    path = tmp_path / "queues.db"
    with closing(make(path)) as db:
        db.execute("PRAGMA wal_checkpoint(RESTART)").fetchall()
        db.execute("DELETE FROM queue WHERE id BETWEEN 100 AND 120")
        killed = copied(path, tmp_path / "killed")
        assert frames(killed) > 2 * len(read_log(killed, PAGE_BYTES).frames)

        assert read_log(killed, PAGE_BYTES).findings == ()
        assert queues(killed) == set(range(121, 100 + QUEUES))
        flip(log_of(killed), log_of(killed).stat().st_size - 5000)
        assert read_log(killed, PAGE_BYTES).findings == ()


def test_an_index_of_another_generation_is_ignored(tmp_path: Path) -> None:
    path = tmp_path / "queues.db"
    with closing(make(path)) as db:
        killed = copied(path, tmp_path / "killed")
        db.execute("PRAGMA wal_checkpoint(RESTART)").fetchall()
        add(db, QUEUES)
        shutil.copy(f"{path}-wal", f"{killed}-wal")
        shutil.copy(path, killed)

        assert read_log(killed, PAGE_BYTES).findings == ()
        (salt,) = struct.unpack_from(">I", log_of(killed).read_bytes(), 16)
        assert salt > 0
        assert queues(killed) == set(range(100, 101 + QUEUES))
