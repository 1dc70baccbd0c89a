"""Table `peer_instance`: the last known run of each queue manager.

qmd/peers/identity_conflicts.py uses it to detect two queue managers with one identity.
"""

import sqlite3
from typing import NamedTuple


class PeerInstance(NamedTuple):
    queue_manager: bytes
    starts: int
    nonce: bytes
    host: str
    seen_s: int


def remember(db: sqlite3.Connection, row: PeerInstance) -> None:
    db.execute(
        "INSERT OR REPLACE INTO peer_instance (queue_manager, starts, nonce, host, seen_s)"
        " VALUES (?, ?, ?, ?, ?)",
        row,
    )


def forget(db: sqlite3.Connection, queue_manager: bytes) -> None:
    db.execute("DELETE FROM peer_instance WHERE queue_manager = ?", (queue_manager,))


def list_all(db: sqlite3.Connection) -> list[PeerInstance]:
    rows = db.execute(
        "SELECT queue_manager, starts, nonce, host, seen_s FROM peer_instance ORDER BY seen_s"
    )
    return list(map(PeerInstance._make, rows))
