"""Whose time is over.  Both tables of messages have an index of the rows that can expire.

`expires_at_s` is the last second of a message's life: [MS-MQMQ] 2.2.19.1 lets it expire when more
than its time-out has passed.  So a row is expired when `now_s > expires_at_s`.
"""

import sqlite3

from storage import messages, outgoing, pages
from storage.messages import MessageRow
from storage.outgoing import OutgoingRow
from storage.pages import PAGE_BYTES_MAX


def expired_messages(
    db: sqlite3.Connection, now_s: int, rows_max: int, bytes_max: int = PAGE_BYTES_MAX
) -> list[MessageRow]:
    """Expired messages in our queues, those that expired first at the front."""
    cursor = _expired(db, "message", messages.COLUMNS, now_s, rows_max)
    return pages.take(cursor, MessageRow._make, bytes_max)


def expired_outgoing(
    db: sqlite3.Connection, now_s: int, rows_max: int, bytes_max: int = PAGE_BYTES_MAX
) -> list[OutgoingRow]:
    """Expired messages for elsewhere, those that expired first at the front."""
    cursor = _expired(db, "outgoing", outgoing.COLUMNS, now_s, rows_max)
    return pages.take(cursor, OutgoingRow._make, bytes_max)


def next_expiry(db: sqlite3.Connection) -> int | None:
    """The smallest `expires_at_s` of all; None when nothing expires.  Two seeks."""
    # The condition names the partial index; min() of its first column is its first entry.
    earliest = db.execute(
        "SELECT min(expires_at_s) FROM message WHERE expires_at_s IS NOT NULL"
        " UNION ALL SELECT min(expires_at_s) FROM outgoing WHERE expires_at_s IS NOT NULL"
    ).fetchall()
    return min((at_s for (at_s,) in earliest if at_s is not None), default=None)


def _expired(
    db: sqlite3.Connection, table: str, columns: str, now_s: int, rows_max: int
) -> sqlite3.Cursor:
    return db.execute(
        f"SELECT {columns} FROM {table} WHERE expires_at_s < ? ORDER BY expires_at_s LIMIT ?",
        (now_s, rows_max),
    )
