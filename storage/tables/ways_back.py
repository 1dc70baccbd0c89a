"""Table `way_back`: the last hop over which messages of a distant queue manager arrived."""

import sqlite3
from typing import NamedTuple


class WayBack(NamedTuple):
    source: bytes
    via: bytes
    host: str  # address of that hop
    seen_s: int


def remember(db: sqlite3.Connection, row: WayBack) -> None:
    db.execute(
        "INSERT OR REPLACE INTO way_back (source, via, host, seen_s) VALUES (?, ?, ?, ?)", row
    )


def forget(db: sqlite3.Connection, source: bytes) -> None:
    db.execute("DELETE FROM way_back WHERE source = ?", (source,))


def list_all(db: sqlite3.Connection) -> list[WayBack]:
    """Return all rows, the one seen first at the front."""
    rows = db.execute("SELECT source, via, host, seen_s FROM way_back ORDER BY seen_s, source")
    return list(map(WayBack._make, rows))
