"""Tables `stage` and `publication`: staged rows, to be sent together, and published epochs.

Rows are stored in the pieces and the encoding in which they were received.
"""

import sqlite3
from collections.abc import Sequence
from typing import NamedTuple

from storage.vault import open_row, writing_vault

#: Per query: this many epochs are stored one by one; older ones count as published.
EPOCHS_KEPT = 1000


class StageRow(NamedTuple):
    """A staged piece, without its rows."""

    id: int
    query: str
    epoch: int
    part: int
    attempt: str
    first_row: int
    row_count: int
    at_s: int
    bytes: int


class Publication(NamedTuple):
    epoch: int
    messages: int
    at_ms: int
    queues: str  # their keys, one per line; or "*"
    owner: str


def add(
    db: sqlite3.Connection,
    *,
    query: str,
    epoch: int,
    part: int,
    attempt: str,
    first_row: int,
    row_count: int,
    at_s: int,
    data: bytes,
) -> int:
    """Store a piece and return its id.  It replaces a piece at the same place."""
    db.execute(
        "DELETE FROM stage WHERE query = ? AND epoch = ? AND part = ? AND attempt = ?"
        " AND first_row = ?",
        (query, epoch, part, attempt, first_row),
    )
    vault = writing_vault(db)
    if vault is not None:
        (id_,) = db.execute("SELECT coalesce(max(id), 0) + 1 FROM stage").fetchone()
        stored, _, seal = vault.stored("stage", id_, data)
        db.execute(
            "INSERT INTO stage (id, query, epoch, part, attempt, first_row, row_count, at_s, data,"
            " seal) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (id_, query, epoch, part, attempt, first_row, row_count, at_s, stored, seal),
        )
        return int(id_)
    added = db.execute(
        "INSERT INTO stage (query, epoch, part, attempt, first_row, row_count, at_s, data)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        (query, epoch, part, attempt, first_row, row_count, at_s, data),
    )
    assert added.lastrowid is not None
    return added.lastrowid


def list_all(db: sqlite3.Connection) -> list[StageRow]:
    """Return all pieces in the order of staging."""
    rows = db.execute(
        "SELECT id, query, epoch, part, attempt, first_row, row_count, at_s, length(data)"
        " FROM stage ORDER BY id"
    )
    return list(map(StageRow._make, rows))


def data(db: sqlite3.Connection, ids: Sequence[int]) -> list[bytes]:
    """Return the rows of these pieces, in this order; a deleted piece is skipped."""
    return [
        open_row(db, "stage", id_, stored, seal, None)[0]
        for id_ in ids
        for stored, seal in db.execute("SELECT data, seal FROM stage WHERE id = ?", (id_,))
    ]


def delete(db: sqlite3.Connection, ids: Sequence[int]) -> None:
    db.executemany("DELETE FROM stage WHERE id = ?", [(id_,) for id_ in ids])


def published(db: sqlite3.Connection, query: str) -> list[Publication]:
    """Return the published epochs of a query, the newest first."""
    rows = db.execute(
        "SELECT epoch, messages, at_ms, queues, owner FROM publication WHERE query = ?"
        " ORDER BY epoch DESC",
        (query,),
    )
    return list(map(Publication._make, rows))


def publish(
    db: sqlite3.Connection,
    *,
    query: str,
    publication: Publication,
    ids: Sequence[int],
) -> None:
    """Record that an epoch is published, and delete the pieces with these ids."""
    db.execute(
        "INSERT OR IGNORE INTO publication (query, epoch, messages, at_ms, queues, owner)"
        " VALUES (?, ?, ?, ?, ?, ?)",
        (query, *publication),
    )
    db.execute(
        "DELETE FROM publication WHERE query = ?1 AND epoch < (SELECT epoch FROM publication"
        " WHERE query = ?1 ORDER BY epoch DESC LIMIT 1 OFFSET ?2)",
        (query, EPOCHS_KEPT - 1),
    )
    delete(db, ids)


def forget_queries(db: sqlite3.Connection, before_ms: int) -> int:
    """Delete the epochs of queries without a publication since `before_ms`; return how many."""
    return db.execute(
        "DELETE FROM publication WHERE query IN"
        " (SELECT query FROM publication GROUP BY query HAVING max(at_ms) < ?)",
        (before_ms,),
    ).rowcount
