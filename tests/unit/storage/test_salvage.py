"""Salvage: reading rows from database files that SQLite cannot read."""

import random
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from storage import StorageOptions
from storage.engine import schema
from storage.engine.connection import set_up_writer
from storage.options import PAGE_BYTES
from storage.rescue.database_file import DatabaseFile
from storage.rescue.salvage import Fault, FoundRow, salvage
from tests.unit.storage.support import NOW_S, OWN_ID

Rows = set[tuple[object, ...]]


def fill(path: Path) -> sqlite3.Connection:
    """Make a database in which rows of all lengths were inserted and deleted."""
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
    """Return the certain rows, in the form that SQL returns, and the faults."""
    rows: Rows = set()
    faults: list[Fault] = []
    with DatabaseFile(path) as file:
        for found in salvage(file):
            if isinstance(found, Fault):
                faults.append(found)
            elif found.certain:
                has_rowid = found.table not in ("counter", "way_back")
                values = (found.rowid, *found.values[1:]) if has_rowid else found.values
                rows.add((found.table, *values))
    return rows, faults


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Rows]:
    """Return a database without a log, and its rows."""
    path = tmp_path_factory.mktemp("original") / "queues.db"
    with closing(fill(path)) as db:
        rows = by_sql(db)
    assert not path.with_name("queues.db-wal").exists()
    return path, rows


@pytest.fixture
def database(original: tuple[Path, Rows], tmp_path: Path) -> tuple[Path, Rows]:
    """Return a copy of the original that a test may damage, and its rows."""
    path, rows = original
    return Path(shutil.copy(path, tmp_path)), rows


def pages(path: Path, *kinds: int) -> list[int]:
    """Return the numbers of the B-tree pages of the given kinds."""
    with DatabaseFile(path) as file:
        return [
            number
            for number in range(2, file.page_count + 1)
            if file.is_content(number) and file.pointer(number)[0] in (1, 5)
            if file.page(number)[0] in kinds
        ]


def schema_pages(path: Path) -> set[int]:
    """Return the numbers of the pages of the schema table, without the first page."""
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


def test_an_intact_database_is_read_as_by_sqlite(tmp_path: Path) -> None:
    path = tmp_path / "queues.db"
    with closing(fill(path)) as db:
        with transaction(db):
            db.execute("DELETE FROM message WHERE key % 5 = 0")
        rows = by_sql(db)
        assert path.with_name("queues.db-wal").stat().st_size > 0

        assert by_salvage(path) == (rows, [])
    assert by_salvage(path) == (rows, [])


def test_a_log_counts_up_to_its_last_complete_commit(tmp_path: Path) -> None:
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
def test_a_lost_page_loses_only_its_rows(database: tuple[Path, Rows], seed: int) -> None:
    path, rows = database
    lost = random.Random(seed).sample(sorted({*pages(path, 13)} - schema_pages(path)), 5)

    erase(path, *lost)
    found, faults = by_salvage(path)

    assert found < rows
    assert len(rows - found) <= 5 * (PAGE_BYTES // 100)
    assert len(faults) >= 5


@pytest.mark.parametrize("seed", range(20))
def test_no_damage_makes_salvage_fail(database: tuple[Path, Rows], seed: int) -> None:
    path, rows = database
    schema_of_file = {1, *schema_pages(path)}
    rng = random.Random(seed)
    content = bytearray(path.read_bytes())
    wounds = rng.choice((1, 10, 1000))
    places = []
    for _ in range(wounds):
        place = rng.randrange(len(content))
        places.append(place)
        if rng.random() < 0.5:
            content[place] ^= 1 << rng.randrange(8)
        else:
            content[place : place + 50] = rng.randbytes(min(50, len(content) - place))
    path.write_bytes(content[: rng.randrange(len(content) // 2, len(content) + 1)])

    found, _ = by_salvage(path)

    # Without its schema the rows of a table are found, but not as rows of that table.
    hurts_schema = not schema_of_file.isdisjoint(place // PAGE_BYTES + 1 for place in places)
    assert wounds > 10 or hurts_schema or len(found & rows) > len(rows) // 5


def test_deleted_rows_are_never_returned_as_certain(database: tuple[Path, Rows]) -> None:
    path, rows = database
    with DatabaseFile(path) as file:
        assert file.freelist().pages

    for hole in (1, 2):  # the page with the head of the freelist; the pointer map
        damaged = path.with_name(f"{hole}.db")
        damaged.write_bytes(path.read_bytes())
        erase(damaged, hole)
        found, _ = by_salvage(damaged)
        assert found <= rows


def test_uncertain_rows_are_marked(database: tuple[Path, Rows]) -> None:
    path, _ = database
    erase(path, 1, 2)

    with DatabaseFile(path) as file:
        found = [each for each in salvage(file) if isinstance(each, FoundRow)]

    assert found
    assert not any(each.certain for each in found)


def test_rows_in_released_pages_are_ignored(tmp_path: Path) -> None:
    """`kill -9` leaves such a folder: the file has its old length, and the log shortens it."""
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


def test_rows_between_the_leaves_of_a_table_without_rowids_are_read(tmp_path: Path) -> None:
    path = tmp_path / "queues.db"
    with closing(fill(path)) as db:
        with transaction(db):
            db.executemany(
                "INSERT INTO way_back VALUES (?, ?, ?, 1)",
                ((n.to_bytes(16, "big"), bytes(16), "host" * 20) for n in range(1000)),
            )
        rows = by_sql(db)
    assert pages(path, 2)

    assert by_salvage(path) == (rows, [])


def older_pages(tmp_path: Path) -> tuple[Path, Path, Rows]:
    """Return a database, an older state of it with more rows, and the rows of the former."""
    path, older = tmp_path / "queues.db", tmp_path / "older.db"
    with closing(fill(path)) as db:
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        shutil.copy(path, older)
        first, last = db.execute("SELECT min(key), max(key) FROM message").fetchone()
        db.execute("DELETE FROM message WHERE key < ?", (first + (last - first) // 2,))
        rows = by_sql(db)
    return path, older, rows


def test_an_older_page_that_others_contradict_restores_no_rows(tmp_path: Path) -> None:
    """The age of a page with rows cannot be checked; that of a page with pointers can, by the
    pages that it points to."""
    path, older, rows = older_pages(tmp_path)
    places = {1, 2, *pages(path, 5), *pages(older, 5)}
    with DatabaseFile(path) as file:
        assert file.freelist().pages
        places |= file.freelist().pages
        last = file.page_count
    tried = 0
    for number in sorted(each for each in places if each <= last):
        damaged = tmp_path / "damaged.db"
        content, before = bytearray(path.read_bytes()), older.read_bytes()
        place = slice((number - 1) * PAGE_BYTES, number * PAGE_BYTES)
        if content[place] == before[place] or len(before[place]) < PAGE_BYTES:
            continue
        content[place] = before[place]
        damaged.write_bytes(content)
        tried += 1

        assert by_salvage(damaged)[0] <= rows, f"page {number}"
    assert tried >= 4


def test_a_free_page_gives_no_certain_rows_even_if_it_is_named(
    database: tuple[Path, Rows],
) -> None:
    path, rows = database
    with DatabaseFile(path) as file:
        free = [each for each in file.freelist().pages if file.page(each)[0] == 13]
        parent = next(
            each for each in pages(path, 5) if file.pointer(each) == (1, 0) and len(free) > 0
        )
    assert free
    content = bytearray(path.read_bytes())
    right_child = (parent - 1) * PAGE_BYTES + 8
    content[right_child : right_child + 4] = free[0].to_bytes(4, "big")
    path.write_bytes(content)

    found, faults = by_salvage(path)

    assert found <= rows
    assert faults


def test_a_page_that_its_parent_does_not_name_is_in_doubt(
    database: tuple[Path, Rows],
) -> None:
    """The page is neither free nor named, and its content does not show when it was abandoned."""
    path, rows = database
    content = bytearray(path.read_bytes())
    with DatabaseFile(path) as file:
        parent = next(each for each in pages(path, 5) if file.pointer(each) == (1, 0))
    header = (parent - 1) * PAGE_BYTES
    count = int.from_bytes(content[header + 3 : header + 5], "big")
    content[header + 3 : header + 5] = (count - 1).to_bytes(2, "big")  # its last cell is gone
    path.write_bytes(content)

    with DatabaseFile(path) as file:
        found = [each for each in salvage(file) if isinstance(each, FoundRow)]

    certain = {
        ("message", each.rowid) for each in found if each.certain and each.table == "message"
    }
    doubted = {("message", each.rowid) for each in found if not each.certain}
    keys = {(row[0], row[1]) for row in rows if row[0] == "message"}
    assert certain < keys
    assert certain | doubted == keys


def test_a_row_that_was_deleted_from_its_page_is_in_doubt(tmp_path: Path) -> None:
    """The bytes of the row are still there, and a damaged pointer leads to them."""
    path = tmp_path / "queues.db"
    with closing(sqlite3.connect(path)) as db:
        set_up_writer(db, StorageOptions())
        schema.prepare(db, [], now_s=NOW_S, new_id=OWN_ID)
        for key in range(1, 9):
            db.execute(
                "INSERT INTO message (key, arrived_at_ms, packet) VALUES (?, 1, ?)",
                (key, bytes(200)),
            )
        db.commit()
        (root,) = db.execute("SELECT rootpage FROM sqlite_master WHERE name = 'message'").fetchone()
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        header = (root - 1) * PAGE_BYTES
        pointers = path.read_bytes()[header + 8 :][:16]
        db.execute("DELETE FROM message WHERE key IN (3, 4)")
        db.commit()
    content = bytearray(path.read_bytes())
    content[header + 8 + 4 : header + 8 + 6] = pointers[4:6]  # the pointer to row 5 leads to row 3
    path.write_bytes(content)

    with DatabaseFile(path) as file:
        found = {
            each.rowid: each
            for each in salvage(file)
            if isinstance(each, FoundRow)
            if each.table == "message"
        }

    assert {key for key, each in found.items() if each.certain} == {1, 2, 6, 7, 8}


def test_a_long_row_with_a_foreign_end_is_in_doubt(
    database: tuple[Path, Rows],
) -> None:
    path, rows = database
    with DatabaseFile(path) as file:
        first = next(
            number
            for number in range(3, file.page_count)
            if file.is_content(number) and file.pointer(number)[0] == 3
        )
        leaf = file.pointer(first)[1]
    content = bytearray(path.read_bytes())
    entry = PAGE_BYTES + 5 * (first - 3) + 1
    content[entry : entry + 4] = (leaf + 1).to_bytes(4, "big")
    path.write_bytes(content)

    found, faults = by_salvage(path)

    assert len(rows - found) == 1
    assert any("which belongs to another" in fault.sentence for fault in faults)
