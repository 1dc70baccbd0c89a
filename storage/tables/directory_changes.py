"""Table `directory_change`: what the directory has yet to hear of public queues of ours.

A row goes to disk with the change itself, and leaves when the directory has it.
"""

import sqlite3
from typing import NamedTuple


class DirectoryChange(NamedTuple):
    queue: bytes  # the GUID of its object
    path: str  # of the queue, as people call it
    deleted: bool  # else: its properties are others
    at_s: int  # by the wall clock


def note(db: sqlite3.Connection, row: DirectoryChange) -> None:
    """The last change of a queue is the one that counts."""
    db.execute(
        "INSERT OR REPLACE INTO directory_change (queue, path, deleted, at_s) VALUES (?, ?, ?, ?)",
        row,
    )


def forget(db: sqlite3.Connection, queue: bytes) -> None:
    """A queue that is not there is no error."""
    db.execute("DELETE FROM directory_change WHERE queue = ?", (queue,))


def list_all(db: sqlite3.Connection) -> list[DirectoryChange]:
    """The oldest first."""
    rows = db.execute("SELECT queue, path, deleted, at_s FROM directory_change ORDER BY at_s, path")
    return [DirectoryChange(queue, path, bool(deleted), at) for queue, path, deleted, at in rows]
