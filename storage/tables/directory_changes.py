"""Table `directory_change`: changes of our public queues that the directory does not have yet.

A row is written in the commit of the change itself, and deleted when the directory has it.
"""

import sqlite3
from typing import NamedTuple


class DirectoryChange(NamedTuple):
    queue: bytes  # the GUID of its object
    path: str  # of the queue, as users write it
    deleted: bool  # False: its properties have changed
    at_s: int  # by the wall clock


def note(db: sqlite3.Connection, row: DirectoryChange) -> None:
    """Record a change; only the last change of a queue is kept."""
    db.execute(
        "INSERT OR REPLACE INTO directory_change (queue, path, deleted, at_s) VALUES (?, ?, ?, ?)",
        row,
    )


def forget(db: sqlite3.Connection, queue: bytes) -> None:
    """Delete the change of a queue; an unknown queue is ignored."""
    db.execute("DELETE FROM directory_change WHERE queue = ?", (queue,))


def list_all(db: sqlite3.Connection) -> list[DirectoryChange]:
    """Return all changes, the oldest first."""
    rows = db.execute("SELECT queue, path, deleted, at_s FROM directory_change ORDER BY at_s, path")
    return [DirectoryChange(queue, path, bool(deleted), at) for queue, path, deleted, at in rows]
