"""Table `outcome`: the results of clients' requests, written in the same commit.

A client that lost the connection before the response repeats the request with the same token, and
gets the same result instead of having its messages sent twice.
"""

import sqlite3
from collections.abc import Iterable
from typing import NamedTuple


class OutcomeRow(NamedTuple):
    token: bytes
    result: bytes
    at_s: int


def record(db: sqlite3.Connection, rows: Iterable[OutcomeRow | tuple[bytes, bytes, int]]) -> None:
    """Record results; a repeated token gets the later result."""
    db.executemany("INSERT OR REPLACE INTO outcome (token, result, at_s) VALUES (?, ?, ?)", rows)


def find(db: sqlite3.Connection, token: bytes, shared: bytes = b"") -> bytes | None:
    """Return the result that was recorded for the token.

    `shared` is the token under which a version without rights may have recorded it.
    """
    row = db.execute("SELECT result FROM outcome WHERE token = ?", (token,)).fetchone()
    if row is None and shared:
        query = "SELECT result FROM outcome WHERE token = ? AND shared"
        row = db.execute(query, (shared,)).fetchone()
    return None if row is None else row[0]


def list_all(db: sqlite3.Connection) -> list[OutcomeRow]:
    """Return all outcomes, the oldest first."""
    rows = db.execute("SELECT token, result, at_s FROM outcome ORDER BY id")
    return list(map(OutcomeRow._make, rows))


def forget(db: sqlite3.Connection, before_s: int, rows_max: int) -> int:
    """Delete outcomes recorded before `before_s`, the oldest first; return how many.

    Outcomes that a database may still need are kept: see `storage.tables.branches`.
    """
    return db.execute(
        "DELETE FROM outcome WHERE at_s < ? AND id IN (SELECT id FROM outcome"
        " WHERE token NOT IN (SELECT transaction_id FROM branch) ORDER BY id LIMIT ?)",
        (before_s, rows_max),
    ).rowcount
