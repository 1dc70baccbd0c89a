"""Table `known_host`: hosts whose sessions have places when there are few.

qmd/peers/known_hosts.py decides which hosts these are.
"""

import sqlite3
from collections.abc import Iterable
from typing import NamedTuple


class KnownHost(NamedTuple):
    host: str  # its address, or the network of its IPv6 address
    seen_s: int  # wall clock, in seconds since 1970


def remember(db: sqlite3.Connection, row: KnownHost, forgotten: Iterable[str]) -> None:
    """Store a host, and delete those that make room for it."""
    db.executemany("DELETE FROM known_host WHERE host = ?", [(host,) for host in forgotten])
    db.execute("INSERT OR REPLACE INTO known_host (host, seen_s) VALUES (?, ?)", row)


def list_all(db: sqlite3.Connection) -> list[KnownHost]:
    """Return all hosts, the one that was not seen for the longest time first."""
    rows = db.execute("SELECT host, seen_s FROM known_host ORDER BY seen_s")
    return list(map(KnownHost._make, rows))
