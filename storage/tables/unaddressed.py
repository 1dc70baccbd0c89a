"""Table `unaddressed`: our acknowledgments to public queues that the directory has not yet
resolved.

A row is written in the commit of the acknowledged event, and deleted in the commit that sends the
acknowledgment, or that records why it is not sent.
"""

import sqlite3
from typing import NamedTuple

from storage.tables.damaged import checksum_of, is_whole
from storage.vault import open_row, writing_vault


class Unaddressed(NamedTuple):
    id: int  # in the order of sending
    queue: bytes  # the GUID of PUBLIC=
    at_s: int  # by the wall clock
    packet: bytes


def add(db: sqlite3.Connection, row: Unaddressed) -> None:
    vault = writing_vault(db)
    if vault is not None:
        db.execute(
            "INSERT INTO unaddressed (id, queue, at_s, packet, checksum, seal)"
            " VALUES (?, ?, ?, ?, ?, ?)",
            (*row[:3], *vault.stored("unaddressed", row.id, row.packet)),
        )
        return
    db.execute(
        "INSERT INTO unaddressed (id, queue, at_s, packet, checksum) VALUES (?, ?, ?, ?, ?)",
        (*row, checksum_of(row.packet)),
    )


def remove(db: sqlite3.Connection, ids: list[int]) -> None:
    """Delete rows; unknown ids are ignored."""
    db.executemany("DELETE FROM unaddressed WHERE id = ?", [(each,) for each in ids])


def list_all(db: sqlite3.Connection) -> list[tuple[Unaddressed, bool]]:
    """Return all rows in order, each with whether its packet is intact."""
    rows = db.execute("SELECT id, queue, at_s, packet, checksum, seal FROM unaddressed ORDER BY id")
    found = []
    for id_, queue, at_s, stored, of_stored, seal in rows.fetchall():
        packet, checksum = open_row(db, "unaddressed", id_, stored, seal, of_stored)
        found.append((Unaddressed(id_, queue, at_s, packet), is_whole(packet, checksum)))
    return found
