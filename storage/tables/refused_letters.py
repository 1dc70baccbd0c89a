"""Table `refused_letter`: the dead letters that messages of other hosts have caused.

A row is written in the commit of its dead letter.  The rows of dead letters that have left their
queue are deleted from time to time.
"""

import sqlite3
from collections.abc import Sequence
from typing import NamedTuple


class RefusedLetter(NamedTuple):
    key: int  # of the row of `message`
    host: str  # that sent it
    bytes: int  # of its packet
    at_s: int  # by the queue manager's own clock


def add(db: sqlite3.Connection, row: RefusedLetter) -> None:
    db.execute("INSERT OR REPLACE INTO refused_letter VALUES (?, ?, ?, ?)", row)


def remove(db: sqlite3.Connection, keys: Sequence[int]) -> None:
    """Delete rows; unknown keys are ignored."""
    db.executemany("DELETE FROM refused_letter WHERE key = ?", [(key,) for key in keys])


def remove_gone(db: sqlite3.Connection) -> list[int]:
    """Delete the rows of dead letters that have left their queue; return their keys."""
    rows = db.execute(
        "DELETE FROM refused_letter WHERE NOT EXISTS"
        " (SELECT 1 FROM message WHERE message.key = refused_letter.key) RETURNING key"
    )
    return [key for (key,) in rows.fetchall()]


def list_all(db: sqlite3.Connection) -> list[RefusedLetter]:
    """Return the rows of dead letters that are still there, the oldest first."""
    rows = db.execute(
        "SELECT key, host, bytes, at_s FROM refused_letter"
        # Not IN: that would collect the keys of all messages first.
        " WHERE EXISTS (SELECT 1 FROM message WHERE message.key = refused_letter.key)"
        " ORDER BY at_s, key"
    )
    return list(map(RefusedLetter._make, rows))
