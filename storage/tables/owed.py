"""Table `owed`: messages that have ended in outgoing queues, of whose end we still have to tell.

A row goes to disk in the commit of the end, and leaves with the commit that has the acknowledgment:
what the acknowledgment has to say is on disk, and read from there, only when the end is committed.
"""

import sqlite3
from collections.abc import Sequence
from typing import NamedTuple

from storage.tables.damaged import checksum_of, is_whole


class Owed(NamedTuple):
    id: int  # in the order in which they ended
    message_class: int
    for_others: bool  # it was on its way over this computer
    packet: bytes


def add(db: sqlite3.Connection, rows: Sequence[Owed]) -> None:
    db.executemany(
        "INSERT INTO owed (id, message_class, for_others, packet, checksum) VALUES (?, ?, ?, ?, ?)",
        [(*row, checksum_of(row.packet)) for row in rows],
    )


def remove(db: sqlite3.Connection, ids: Sequence[int]) -> None:
    """An id that is not there is no error."""
    db.executemany("DELETE FROM owed WHERE id = ?", [(each,) for each in ids])


def list_all(db: sqlite3.Connection) -> list[tuple[Owed, bool]]:
    """In their order, each with whether it is what was stored."""
    rows = db.execute(
        "SELECT id, message_class, for_others, packet, checksum FROM owed ORDER BY id"
    )
    return [(Owed(row[0], row[1], bool(row[2]), row[3]), is_whole(row[3], row[4])) for row in rows]
