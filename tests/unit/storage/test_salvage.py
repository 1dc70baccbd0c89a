"""Rows are read out of database files that SQLite will not read any more."""

import random
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from storage import StorageOptions, schema
from storage.connection import set_up_writer
from storage.database_file import DatabaseFile
from storage.options import PAGE_BYTES
from storage.salvage import Fault, FoundRow, salvage
from tests.unit.storage.support import NOW_S, OWN_ID

Rows = set[tuple[object, ...]]


def fill(path: Path) -> sqlite3.Connection:
    """A database with a history: rows of all lengths came and went."""
    rng = random.Random(1)
    db = sqlite3.connect(path)
    set_up_writer(db, StorageOptions(wal_autocheckpoint_pages=300))
    schema.prepare(db, [], now_s=NOW_S, new_id=OWN_ID)
    for _ in range(5):
        with transaction(db):
            for _ in range(60):
                packet = rng.randbytes(rng.choice((100, 300, 3000, 9000, 40_000)))
                key, expires = rng.randrange(1 << 60), rng.choice((None, 7, 1 << 40))
                row = (key, rng.randrange(1 << 45), expires, rng.choice((None, "why: ü")), packet)
                db.execute(
                    "INSERT INTO message (key, arrived_at_ms, expires_at_s, reason, packet)"
                    " VALUES (?, ?, ?, ?, ?)",
                    row,
                )
        db.execute("DELETE FROM message WHERE key % 3 = 0")
    return db


@contextmanager
def transaction(db: sqlite3.Connection) -> Iterator[None]:
    db.execute("BEGIN")
    yield
    db.execute("COMMIT")


def by_sql(db: sqlite3.Connection) -> Rows:
    found: Rows = set()
    tables = db.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
    for (table,) in tables:
        for row in db.execute(f"SELECT * FROM {table}"):
            found.add((table, *row))
    return found


def by_salvage(path: Path) -> tuple[Rows, list[Fault]]:
    """The certain rows, as SQL gives them."""
    rows: Rows = set()
    faults: list[Fault] = []
    with DatabaseFile(path) as file:
        for found in salvage(file):
            if isinstance(found, Fault):
                faults.append(found)
            elif found.certain:
                has_rowid = found.table != "counter"
                values = (found.rowid, *found.values[1:]) if has_rowid else found.values
                rows.add((found.table, *values))
    return rows, faults


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Rows]:
    """A database without a log, and its rows."""
    path = tmp_path_factory.mktemp("original") / "queues.db"
    with closing(fill(path)) as db:
        rows = by_sql(db)
    assert not path.with_name("queues.db-wal").exists()
    return path, rows


@pytest.fixture
def database(original: tuple[Path, Rows], tmp_path: Path) -> tuple[Path, Rows]:
    """A copy of it, to be damaged."""
    path, rows = original
    return Path(shutil.copy(path, tmp_path)), rows


def pages(path: Path, *kinds: int) -> list[int]:
    """The numbers of the pages of trees of some kinds."""
    with DatabaseFile(path) as file:
        return [
            number
            for number in range(2, file.page_count + 1)
            if file.is_content(number) and file.pointer(number)[0] in (1, 5)
            if file.page(number)[0] in kinds
        ]


def schema_pages(path: Path) -> set[int]:
    """Those that say which tables there are, apart from the first page."""
    with DatabaseFile(path) as file:
        return {
            number
            for number in range(2, file.page_count + 1)
            if file.is_content(number) and file.pointer(number) == (5, 1)
        }


def erase(path: Path, *numbers: int) -> None:
    with path.open("r+b") as file:
        for number in numbers:
            file.seek((number - 1) * PAGE_BYTES)
            file.write(bytes(PAGE_BYTES))


def test_what_is_whole_is_read_as_sqlite_reads_it(tmp_path: Path) -> None:
    path = tmp_path / "queues.db"
    with closing(fill(path)) as db:
        with transaction(db):
            db.execute("DELETE FROM message WHERE key % 5 = 0")
        rows = by_sql(db)
        assert path.with_name("queues.db-wal").stat().st_size > 0

        assert by_salvage(path) == (rows, [])
    assert by_salvage(path) == (rows, [])


def test_a_log_counts_up_to_its_last_whole_commit(tmp_path: Path) -> None:
    path = tmp_path / "queues.db"
    log = path.with_name("queues.db-wal")
    with closing(fill(path)) as db:
        before = by_sql(db)
        db.execute("PRAGMA wal_autocheckpoint = 0")
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        with transaction(db):
            db.execute("UPDATE message SET reason = 'changed'")
        content = log.read_bytes()
        copy = tmp_path / "copy"
        copy.mkdir()
        (copy / "queues.db").write_bytes(path.read_bytes())

        (copy / "queues.db-wal").write_bytes(content[:-1])
        assert by_salvage(copy / "queues.db") == (before, [])
        (copy / "queues.db-wal").write_bytes(content)
        assert by_salvage(copy / "queues.db") == (by_sql(db), [])


def test_pages_between_root_and_leaves_may_be_lost(database: tuple[Path, Rows]) -> None:
    path, rows = database
    interior = pages(path, 5)
    assert interior

    erase(path, *interior)
    found, faults = by_salvage(path)

    assert found == rows
    assert faults


def test_the_pointer_map_may_be_lost(database: tuple[Path, Rows]) -> None:
    path, rows = database

    erase(path, 2)

    assert by_salvage(path)[0] == rows


@pytest.mark.parametrize("seed", range(10))
def test_a_lost_page_costs_what_stands_in_it(database: tuple[Path, Rows], seed: int) -> None:
    path, rows = database
    lost = random.Random(seed).sample(sorted({*pages(path, 13)} - schema_pages(path)), 5)

    erase(path, *lost)
    found, faults = by_salvage(path)

    assert found < rows
    assert len(rows - found) <= 5 * (PAGE_BYTES // 100)
    assert len(faults) >= 5


@pytest.mark.parametrize("seed", range(20))
def test_no_damage_whatever_makes_it_fail(database: tuple[Path, Rows], seed: int) -> None:
    path, rows = database
    rng = random.Random(seed)
    content = bytearray(path.read_bytes())
    wounds = rng.choice((1, 10, 1000))
    for _ in range(wounds):
        place = rng.randrange(len(content))
        if rng.random() < 0.5:
            content[place] ^= 1 << rng.randrange(8)
        else:
            content[place : place + 50] = rng.randbytes(min(50, len(content) - place))
    path.write_bytes(content[: rng.randrange(len(content) // 2, len(content) + 1)])

    found, _ = by_salvage(path)

    assert wounds > 10 or len(found & rows) > len(rows) // 5


def test_what_was_deleted_does_not_come_back_as_certain(database: tuple[Path, Rows]) -> None:
    path, rows = database
    with DatabaseFile(path) as file:
        assert file.freelist().pages

    for hole in (1, 2):  # without the freelist's beginning, and without the pointer map
        damaged = path.with_name(f"{hole}.db")
        damaged.write_bytes(path.read_bytes())
        erase(damaged, hole)
        found, _ = by_salvage(damaged)
        assert found <= rows


def test_a_row_that_is_not_certain_is_told_apart(database: tuple[Path, Rows]) -> None:
    path, _ = database
    erase(path, 1, 2)

    with DatabaseFile(path) as file:
        found = [each for each in salvage(file) if isinstance(each, FoundRow)]

    assert found
    assert not any(each.certain for each in found)


def test_pages_that_were_given_back_hold_nothing_any_more(tmp_path: Path) -> None:
    """As `kill -9` leaves a folder: the file is long still, and the log says that it is short."""
    path, copy = tmp_path / "queues.db", tmp_path / "copy" / "queues.db"
    copy.parent.mkdir()
    with closing(fill(path)) as db:
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        db.execute("PRAGMA wal_autocheckpoint = 0")
        db.execute("DELETE FROM message WHERE key % 2 = 0")
        db.executescript("PRAGMA incremental_vacuum(1000000)")
        (pages,) = db.execute("PRAGMA page_count").fetchone()
        expected = {row for row in by_sql(db) if row[0] == "message"}
        for suffix in ("", "-wal"):
            shutil.copy(f"{path}{suffix}", f"{copy}{suffix}")

    assert copy.stat().st_size // PAGE_BYTES > pages, "the file was not made shorter yet"
    with DatabaseFile(copy) as file:
        assert file.page_count == pages
    rows, faults = by_salvage(copy)
    assert {row for row in rows if row[0] == "message"} == expected
    assert faults == []
