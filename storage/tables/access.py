"""Table `access_entry`: rights of principals, and the owners of queues.

Principals and rights are plain text: an operator can read them with any tool for SQLite.  The
entries and the owner of a queue are deleted in the commit that deletes the queue, so that the next
queue of that name does not get them.
"""

import sqlite3
from collections.abc import Callable, Iterable
from typing import NamedTuple

from storage.errors import NoSuchQueue

HOST = "host"  # the object of the rights on the host
ALL_QUEUES = "*"  # the object of the rights that all queues inherit
ALLOW, DENY, OWN = "allow", "deny", "own"  # the effects


class EntryRow(NamedTuple):
    object: str
    effect: str
    principal: str
    number: int | None
    rights: str


COLUMNS = ", ".join(EntryRow._fields)


def entries(db: sqlite3.Connection) -> list[EntryRow]:
    """Return all entries, and the owners as entries with the effect OWN."""
    rows = db.execute(f"SELECT {COLUMNS} FROM access_entry ORDER BY object, effect, principal")
    return list(map(EntryRow._make, rows))


def if_there(
    db: sqlite3.Connection,
    *,
    queue_id: int,
    name: str,
    change: Callable[[sqlite3.Connection], None],
) -> None:
    """Make a change, if the queue exists.  Raises NoSuchQueue."""
    check_queue(db, queue_id, name)
    change(db)


def check_queue(db: sqlite3.Connection, queue_id: int, name: str) -> None:
    """Raise NoSuchQueue unless the queue exists."""
    row = db.execute("SELECT name FROM queue WHERE id = ?", (queue_id,)).fetchone()
    if row is None or row[0] != name:
        raise NoSuchQueue(queue_id)


def put(db: sqlite3.Connection, row: EntryRow) -> None:
    """Insert an entry, or replace the one for the same object, effect and principal."""
    db.execute(f"INSERT OR REPLACE INTO access_entry ({COLUMNS}) VALUES (?, ?, ?, ?, ?)", row)


def remove(db: sqlite3.Connection, row: EntryRow) -> None:
    """Delete the entry for the object, the effect and the principal of `row`."""
    db.execute(
        "DELETE FROM access_entry WHERE object = ? AND effect = ? AND principal = ?", row[:3]
    )


def set_owner(db: sqlite3.Connection, row: EntryRow) -> None:
    """Replace the owner of a queue."""
    db.execute("DELETE FROM access_entry WHERE object = ? AND effect = ?", (row.object, OWN))
    put(db, row)


def take_in(
    db: sqlite3.Connection,
    *,
    entries: Iterable[EntryRow],
    owners: Iterable[EntryRow],
    queues: Iterable[tuple[int, str]],
    replace: bool,
) -> None:
    """Add entries and set owners; `replace`: remove all other entries.

    `queues` are the ids and names of the queues among their objects.  Raises NoSuchQueue, without a
    change, if one of them does not exist.
    """
    for queue_id, name in queues:
        check_queue(db, queue_id, name)
    if replace:
        db.execute("DELETE FROM access_entry WHERE effect <> ?", (OWN,))
    for entry in entries:
        put(db, entry)
    for owner in owners:
        set_owner(db, owner)


def forget(db: sqlite3.Connection, key: str) -> None:
    """Delete the owner and the entries of a queue."""
    db.execute("DELETE FROM access_entry WHERE object = ?", (key,))
