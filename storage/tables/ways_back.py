"""Table `way_back`: over whom the messages of a queue manager came that is not beside us."""

import sqlite3
from typing import NamedTuple


class WayBack(NamedTuple):
    source: bytes
    via: bytes
    host: str  # where that one was
    seen_s: int


def remember(db: sqlite3.Connection, row: WayBack) -> None:
    db.execute(
        "INSERT OR REPLACE INTO way_back (source, via, host, seen_s) VALUES (?, ?, ?, ?)", row
    )


def forget(db: sqlite3.Connection, source: bytes) -> None:
    db.execute("DELETE FROM way_back WHERE source = ?", (source,))


def list_all(db: sqlite3.Connection) -> list[WayBack]:
    """The one that was seen first comes first."""
    rows = db.execute("SELECT source, via, host, seen_s FROM way_back ORDER BY seen_s, source")
    return list(map(WayBack._make, rows))
