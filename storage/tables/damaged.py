"""Table `damaged`: messages that differ from their stored content, set aside.

A disk may return other bytes than were written.  SQLite detects that in its own structures, not in
the content of rows; so every packet is stored with a checksum (CRC-32: 0.5 µs for a message of 1
KiB).  A packet that does not match its checksum is kept in table `damaged` for an operator to
examine (`qmd check`): it is neither dropped nor delivered.
"""

import sqlite3
from typing import NamedTuple
from zlib import crc32

from protocol import parse_user_message
from protocol.errors import ProtocolError
from storage.tables import shared_parts, tally
from storage.vault import open_row, writing_vault


class DamagedRow(NamedTuple):
    id: int
    at_s: int
    place: str
    key: int
    packet: bytes


COLUMNS = ", ".join(DamagedRow._fields)


checksum_of = crc32  # of a packet


def is_whole(packet: bytes, checksum: int | None) -> bool:
    """Return whether the packet matches its checksum; without a checksum it must be a valid
    message.

    Rows from before schema 2 have no checksum.
    """
    if checksum is not None:
        return crc32(packet) == checksum
    try:
        parse_user_message(packet)
    except ProtocolError:
        return False
    return True


def set_aside(db: sqlite3.Connection, table: str, key: int, at_s: int) -> bool:
    """Move a row of `message` or `outgoing` here; return False if there is no such row."""
    row = db.execute(f"SELECT packet, part_id, seal FROM {table} WHERE key = ?", (key,)).fetchone()
    if row is None:
        return False
    packet, part_id, seal = row
    packet, _ = open_row(db, table, key, packet, seal, None, part_id)
    part = None if part_id is None else shared_parts.find(db, part_id)
    keep(db, table, key, packet if part is None else packet + part[0], at_s)
    tally.leaving(db, table, "key = ?", (key,))
    with shared_parts.leaving(db, table, "key = ?", (key,)):
        db.execute(f"DELETE FROM {table} WHERE key = ?", (key,))
    return True


def keep(db: sqlite3.Connection, place: str, key: int, packet: bytes, at_s: int) -> None:
    """Keep a packet that was in table `place`; the caller deletes it there."""
    vault = writing_vault(db)
    if vault is not None:
        (id_,) = db.execute("SELECT coalesce(max(id), 0) + 1 FROM damaged").fetchone()
        stored, _, seal = vault.stored("damaged", id_, packet)
        db.execute(
            "INSERT INTO damaged (id, at_s, place, key, packet, seal) VALUES (?, ?, ?, ?, ?, ?)",
            (id_, at_s, place, key, stored, seal),
        )
        return
    db.execute(
        "INSERT INTO damaged (at_s, place, key, packet) VALUES (?, ?, ?, ?)",
        (at_s, place, key, packet),
    )


def list_all(db: sqlite3.Connection) -> list[DamagedRow]:
    """Return all damaged messages, those set aside first at the front."""
    rows = db.execute(f"SELECT {COLUMNS}, seal FROM damaged ORDER BY id").fetchall()
    return [
        DamagedRow(id_, at_s, place, key, open_row(db, "damaged", id_, packet, seal, None)[0])
        for id_, at_s, place, key, packet, seal in rows
    ]
