"""Tables `audit_entry` and `audit_anchor`: the requests of operators, as a chain of digests.

    digest of entry n = SHA-256(digest of entry n - 1, number n as 8 bytes, the entry as UTF-8)

The chain begins with 32 zero bytes.  The oldest entries are dropped by size; `audit_anchor` keeps
number and digest of the last one that was dropped, and the drop is an entry itself.
"""

import hashlib
import sqlite3
from typing import NamedTuple

NO_DIGEST = bytes(32)
#: Bytes of a row besides its text: number, digest, and the overhead of SQLite.
ROW_BYTES = 56


class AuditRow(NamedTuple):
    number: int
    entry: str
    digest: bytes


class Anchor(NamedTuple):
    """The entry before the first one that is kept."""

    number: int = 0
    digest: bytes = NO_DIGEST


def anchor(db: sqlite3.Connection) -> Anchor:
    row = db.execute("SELECT number, digest FROM audit_anchor").fetchone()
    return Anchor() if row is None else Anchor(*row)


def append(db: sqlite3.Connection, entry: str) -> int:
    """Append an entry, a JSON object; return its number."""
    row = db.execute(
        "SELECT number, digest FROM audit_entry ORDER BY number DESC LIMIT 1"
    ).fetchone()
    before = anchor(db) if row is None else Anchor(*row)
    number = before.number + 1
    digest = hashlib.sha256(before.digest + number.to_bytes(8, "big") + entry.encode()).digest()
    db.execute("INSERT INTO audit_entry VALUES (?, ?, ?)", (number, entry, digest))
    return number


def page(db: sqlite3.Connection, start: int, rows_max: int) -> tuple[Anchor, list[AuditRow]]:
    """Return the entries from number `start` on, and the anchor.  With a negative `start`: the
    last entries."""
    if start < 0:
        rows = db.execute(
            "SELECT * FROM (SELECT number, entry, digest FROM audit_entry ORDER BY number DESC"
            " LIMIT ?) ORDER BY number",
            (min(-start, rows_max),),
        )
    else:
        rows = db.execute(
            "SELECT number, entry, digest FROM audit_entry WHERE number >= ? ORDER BY number"
            " LIMIT ?",
            (start, rows_max),
        )
    return anchor(db), [AuditRow._make(row) for row in rows]


def trim(db: sqlite3.Connection, bytes_max: int, rows_max: int, at_ms: int) -> int:
    """Drop the oldest entries beyond `bytes_max`, at most `rows_max`; return how many."""
    (size,) = db.execute(
        "SELECT coalesce(sum(length(CAST(entry AS BLOB)) + ?), 0) FROM audit_entry", (ROW_BYTES,)
    ).fetchone()
    if size <= bytes_max:
        return 0
    import json  # a log rarely reaches its limit

    last, dropped = None, 0
    for row in db.execute(
        "SELECT number, entry, digest FROM audit_entry ORDER BY number LIMIT ?", (rows_max,)
    ):
        if size <= bytes_max:
            break
        last, dropped = AuditRow._make(row), dropped + 1
        size -= len(last.entry.encode()) + ROW_BYTES
    assert last is not None
    db.execute(
        "INSERT INTO audit_anchor VALUES (1, ?, ?) ON CONFLICT (id) DO UPDATE SET"
        " number = excluded.number, digest = excluded.digest",
        (last.number, last.digest),
    )
    append(
        db,
        json.dumps(
            {"at_ms": at_ms, "kind": "dropped", "up_to": last.number, "digest": last.digest.hex()}
        ),
    )
    db.execute("DELETE FROM audit_entry WHERE number <= ?", (last.number,))
    return dropped
