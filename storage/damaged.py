"""Messages that are not what was stored: known by their checksums, and set aside.

A disk may give back other bytes than it was given.  SQLite notices it in its own structures, not in
what rows hold; so every packet has a checksum beside it (CRC-32: 0.5 µs for a message of 1 KiB).
Table `damaged` keeps what does not fit its own, for a person to look at (`qmd check`): nothing is
dropped, and nothing of it is delivered.
"""

import sqlite3
from typing import NamedTuple
from zlib import crc32

from protocol import parse_user_message
from protocol.errors import ProtocolError


class DamagedRow(NamedTuple):
    id: int
    at_s: int
    place: str
    key: int
    packet: bytes


COLUMNS = ", ".join(DamagedRow._fields)


def checksum_of(packet: bytes) -> int:
    return crc32(packet)


def is_whole(packet: bytes, checksum: int | None) -> bool:
    """Whether the packet is what was stored; one from before there were checksums must at least
    be a message."""
    if checksum is not None:
        return crc32(packet) == checksum
    try:
        parse_user_message(packet)
    except ProtocolError:
        return False
    return True


def set_aside(db: sqlite3.Connection, table: str, key: int, at_s: int) -> bool:
    """Move a row of `message` or `outgoing` here; False when there is none."""
    moved = db.execute(
        "INSERT INTO damaged (at_s, place, key, packet)"
        f" SELECT ?, ?, key, packet FROM {table} WHERE key = ?",
        (at_s, table, key),
    )
    db.execute(f"DELETE FROM {table} WHERE key = ?", (key,))
    return moved.rowcount == 1


def list_all(db: sqlite3.Connection) -> list[DamagedRow]:
    """Those that were set aside first at the front."""
    return list(map(DamagedRow._make, db.execute(f"SELECT {COLUMNS} FROM damaged ORDER BY id")))
