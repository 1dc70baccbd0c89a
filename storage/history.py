"""Table `message_id_history`: plain messages that came already.  [MS-MQQB] 3.1.1.3

A ring of the last entries: whoever comes again is written again, with the new time, and the later
entry counts.
"""

import sqlite3
from collections.abc import Sequence
from typing import NamedTuple


class HistoryRow(NamedTuple):
    source: bytes
    number: int
    at_s: int


def remember(
    db: sqlite3.Connection,
    rows: Sequence[HistoryRow | tuple[bytes, int, int]],
    entries_max: int,
) -> None:
    (last,) = db.execute("SELECT coalesce(max(position), 0) FROM message_id_history").fetchone()
    db.executemany(
        "INSERT INTO message_id_history (position, source, number, at_s) VALUES (?, ?, ?, ?)",
        ((position, *row) for position, row in enumerate(rows, last + 1)),
    )
    db.execute(
        "DELETE FROM message_id_history WHERE position <= ?", (last + len(rows) - entries_max,)
    )


def entries(db: sqlite3.Connection) -> list[HistoryRow]:
    """The oldest first; a message that came twice stands there twice."""
    rows = db.execute("SELECT source, number, at_s FROM message_id_history ORDER BY position")
    return list(map(HistoryRow._make, rows))


def forget(db: sqlite3.Connection, before_s: int) -> int:
    """Delete what is older than `before_s`; how many entries that were.

    The newest entry stays, whatever its age: its position is where the ring goes on.
    """
    return db.execute(
        "DELETE FROM message_id_history WHERE at_s < ?"
        " AND position < (SELECT max(position) FROM message_id_history)",
        (before_s,),
    ).rowcount
