"""Table `owed`: messages that ended in outgoing queues, with acknowledgments still to be sent.

A row is written in the commit that ends the message, and deleted in the commit that inserts the
acknowledgment: the acknowledgment is built from the row only when the end is committed.
"""

import sqlite3
from collections.abc import Sequence
from typing import NamedTuple

from storage.tables.damaged import checksum_of, is_whole


class Owed(NamedTuple):
    id: int  # in the order in which they ended
    message_class: int
    for_others: bool  # it was being routed through this computer
    packet: bytes


def add(db: sqlite3.Connection, rows: Sequence[Owed]) -> None:
    db.executemany(
        "INSERT INTO owed (id, message_class, for_others, packet, checksum) VALUES (?, ?, ?, ?, ?)",
        [(*row, checksum_of(row.packet)) for row in rows],
    )


def remove(db: sqlite3.Connection, ids: Sequence[int]) -> None:
    """Delete rows; unknown ids are ignored."""
    db.executemany("DELETE FROM owed WHERE id = ?", [(each,) for each in ids])


def list_all(db: sqlite3.Connection) -> list[tuple[Owed, bool]]:
    """Return all rows in order, each with whether its packet is intact."""
    rows = db.execute(
        "SELECT id, message_class, for_others, packet, checksum FROM owed ORDER BY id"
    )
    return [(Owed(row[0], row[1], bool(row[2]), row[3]), is_whole(row[3], row[4])) for row in rows]
