"""Inserts of many rows by few statements."""

import sqlite3

import pytest

from storage.tables import many_rows

INTO = "message (key, packet)"


@pytest.fixture
def db():
    with sqlite3.connect(":memory:", isolation_level=None) as db:
        db.execute("CREATE TABLE message (key INTEGER PRIMARY KEY, packet BLOB NOT NULL)")
        yield db
    db.close()


def inserted(db, rows):
    """Insert rows; return the rows of the table, and the number of statements."""
    statements = []
    db.set_trace_callback(statements.append)
    many_rows.insert(db, INTO, rows, sum(len(packet) for _, packet in rows))
    db.set_trace_callback(None)
    return db.execute("SELECT key, packet FROM message ORDER BY key").fetchall(), len(statements)


@pytest.mark.parametrize("count", [0, 1, 3, 4, 5, 63, 64, 65, 150, 256])
def test_every_row_is_inserted_once(db, count):
    rows = [(number, b"%d" % number) for number in range(count)]

    assert inserted(db, rows)[0] == rows


def test_many_rows_take_few_statements(db):
    rows = [(number, bytes(4096)) for number in range(64 + 16 + 4 + 1)]

    assert inserted(db, rows) == (rows, 4)


def test_long_packets_are_bound_one_by_one(db):
    rows = [(number, bytes(5000)) for number in range(70)]

    assert inserted(db, rows) == (rows, 70)


def test_a_row_that_cannot_be_inserted_fails_the_statement(db):
    with pytest.raises(sqlite3.IntegrityError):
        inserted(db, [(number % 60, b"") for number in range(64)])

    assert db.execute("SELECT count(*) FROM message").fetchone() == (0,)


@pytest.mark.parametrize("rows", [4, 65])
@pytest.mark.parametrize("last", [(None, None), (None, "reason"), (7, None), (7, "reason")])
def test_columns_without_values_are_left_out(db, rows, last):
    db.execute("CREATE TABLE other (key INTEGER PRIMARY KEY, a INTEGER, packet BLOB, b TEXT)")
    wanted = [(number, None, b"%d" % number, None) for number in range(rows - 1)]
    wanted.append((rows - 1, last[0], b"last", last[1]))
    statements = []
    db.set_trace_callback(statements.append)
    many_rows.insert(db, "other (key, a, packet, b)", wanted, 8 * rows, often_null=(1, 3))
    db.set_trace_callback(None)

    assert db.execute("SELECT * FROM other ORDER BY key").fetchall() == wanted
    if rows == 4:
        (statement,) = statements
        named = statement[: statement.index("VALUES")]
        assert ("a," in named, "b)" in named) == (last[0] is not None, last[1] is not None)
