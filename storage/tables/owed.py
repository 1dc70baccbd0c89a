"""Table `owed`: messages that ended in outgoing queues, with acknowledgments still to be sent.

A row is written in the commit that ends the message, and deleted in the commit that inserts the
acknowledgment: the acknowledgment is built from the row only when the end is committed.
"""

import sqlite3
from collections.abc import Sequence
from typing import NamedTuple

from storage.tables.damaged import checksum_of, is_whole
from storage.vault import open_row, writing_vault


class Owed(NamedTuple):
    id: int  # in the order in which they ended
    message_class: int
    for_others: bool  # it was being routed through this computer
    packet: bytes


def add(db: sqlite3.Connection, rows: Sequence[Owed]) -> None:
    vault = writing_vault(db)
    if vault is not None:
        db.executemany(
            "INSERT INTO owed (id, message_class, for_others, packet, checksum, seal)"
            " VALUES (?, ?, ?, ?, ?, ?)",
            [(*row[:3], *vault.stored("owed", row.id, row.packet)) for row in rows],
        )
        return
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
        "SELECT id, message_class, for_others, packet, checksum, seal FROM owed ORDER BY id"
    )
    found = []
    for id_, message_class, for_others, stored, of_stored, seal in rows.fetchall():
        packet, checksum = open_row(db, "owed", id_, stored, seal, of_stored)
        owed = Owed(id_, message_class, bool(for_others), packet)
        found.append((owed, is_whole(packet, checksum)))
    return found
