"""Expired messages.  Both tables of messages have an index of the rows that can expire.

`expires_at_s` is the last second of a message's life, by the queue manager's own clock: [MS-MQMQ]
2.2.19.1 lets it expire when more than its time-out has passed.  So a row is expired when `now_s >
expires_at_s`.
"""

import sqlite3
from typing import NamedTuple


class Expired(NamedTuple):
    key: int
    size: int  # bytes of the packet, which is not read


def expired_messages(db: sqlite3.Connection, now_s: int, rows_max: int) -> list[Expired]:
    """Return expired messages in our queues, the earliest expiry first."""
    return _expired(db, "message", now_s, rows_max)


def expired_outgoing(db: sqlite3.Connection, now_s: int, rows_max: int) -> list[Expired]:
    """Return expired outgoing messages, the earliest expiry first."""
    return _expired(db, "outgoing", now_s, rows_max)


def next_expiry(db: sqlite3.Connection) -> int | None:
    """Return the smallest `expires_at_s` of all; None if no message expires.  Takes two seeks."""
    # The condition selects the partial index; min() of its first column is its first entry.
    earliest = db.execute(
        "SELECT min(expires_at_s) FROM message WHERE expires_at_s IS NOT NULL"
        " UNION ALL SELECT min(expires_at_s) FROM outgoing WHERE expires_at_s IS NOT NULL"
    ).fetchall()
    return min((at_s for (at_s,) in earliest if at_s is not None), default=None)


def _expired(db: sqlite3.Connection, table: str, now_s: int, rows_max: int) -> list[Expired]:
    rows = db.execute(
        f"SELECT key, length(packet) + part_bytes FROM {table} WHERE expires_at_s < ?"
        " ORDER BY expires_at_s LIMIT ?",
        (now_s, rows_max),
    )
    return list(map(Expired._make, rows))
