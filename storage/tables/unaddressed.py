"""Table `unaddressed`: acknowledgments of ours to public queues that the directory has yet to find.

A row goes to disk with what the acknowledgment speaks of, and leaves with the commit that sends it,
or that says why it is not sent.
"""

import sqlite3
from typing import NamedTuple

from storage.tables.damaged import checksum_of, is_whole


class Unaddressed(NamedTuple):
    id: int  # in the order in which they are to be sent
    queue: bytes  # the GUID of PUBLIC=
    at_s: int  # by the wall clock
    packet: bytes


def add(db: sqlite3.Connection, row: Unaddressed) -> None:
    db.execute(
        "INSERT INTO unaddressed (id, queue, at_s, packet, checksum) VALUES (?, ?, ?, ?, ?)",
        (*row, checksum_of(row.packet)),
    )


def remove(db: sqlite3.Connection, ids: list[int]) -> None:
    """An id that is not there is no error."""
    db.executemany("DELETE FROM unaddressed WHERE id = ?", [(each,) for each in ids])


def list_all(db: sqlite3.Connection) -> list[tuple[Unaddressed, bool]]:
    """In their order, each with whether it is what was stored."""
    rows = db.execute("SELECT id, queue, at_s, packet, checksum FROM unaddressed ORDER BY id")
    return [(Unaddressed(*row[:4]), is_whole(row[3], row[4])) for row in rows]
