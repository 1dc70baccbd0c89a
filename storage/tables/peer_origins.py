"""Table `peer_origin`: the facts that are known about the origins of each queue manager.

qmd/peers/origins.py decides with it which sessions may speak for a queue manager, and detects two
machines with one identity.
"""

import sqlite3
from typing import NamedTuple


class PeerOrigin(NamedTuple):
    """One fact about a queue manager: a key or an authority that it has proven, or an address."""

    queue_manager: bytes
    fact: str  # an address, key:FINGERPRINT or authority:FINGERPRINT
    origin: str  # to which the fact belongs
    bound: int  # `Bound` of qmd/peers/origins.py
    is_qmd: int
    host: str  # the last address
    public_key: bytes  # of a key; b"": not known
    starts: int  # of the last known run; 0: none is known
    nonce: bytes  # of that run
    first_seen_s: int
    last_seen_s: int


_COLUMNS = ", ".join(PeerOrigin._fields)


def remember(db: sqlite3.Connection, rows: list[PeerOrigin]) -> None:
    """Insert rows, or replace those of the same queue manager and fact."""
    values = ", ".join("?" * len(PeerOrigin._fields))
    db.executemany(f"INSERT OR REPLACE INTO peer_origin ({_COLUMNS}) VALUES ({values})", rows)


def forget(db: sqlite3.Connection, facts: list[tuple[bytes, str]]) -> None:
    """Delete facts, each given as queue manager and fact."""
    db.executemany("DELETE FROM peer_origin WHERE queue_manager = ? AND fact = ?", facts)


def list_all(db: sqlite3.Connection) -> list[PeerOrigin]:
    """Return all rows, the one seen last at the end."""
    rows = db.execute(
        f"SELECT {_COLUMNS} FROM peer_origin ORDER BY last_seen_s, queue_manager, fact"
    )
    return list(map(PeerOrigin._make, rows))
