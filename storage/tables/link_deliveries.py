"""Table `link_delivery`: deliveries of senders over AMQP, in the commit of their messages.

A sender that lost its connection resumes its link, and learns which of its messages are stored.  A
row has the deliveries of one link in one commit.  Rows end when the sender has settled all of their
deliveries, with their link, or after a while.
"""

import sqlite3
from collections.abc import Iterable
from typing import NamedTuple


class LinkRow(NamedTuple):
    """Deliveries of a link; rows of earlier positions than `kept_from` are not needed any more."""

    owner: bytes
    link: bytes
    position: int
    deliveries: bytes
    at_s: int
    kept_from: int


def record(db: sqlite3.Connection, rows: Iterable[LinkRow]) -> None:
    """Record deliveries, and delete the rows that are not needed any more."""
    rows = list(rows)
    db.executemany(
        "INSERT OR REPLACE INTO link_delivery (owner, link, position, deliveries, at_s)"
        " VALUES (?, ?, ?, ?, ?)",
        [row[:5] for row in rows],
    )
    ended = [(row.link, row.kept_from) for row in rows if row.kept_from]
    if ended:
        db.executemany("DELETE FROM link_delivery WHERE link = ? AND position < ?", ended)


def find(db: sqlite3.Connection, link: bytes) -> list[tuple[int, bytes]]:
    """Return the positions and the deliveries of a link, in their order."""
    query = "SELECT position, deliveries FROM link_delivery WHERE link = ? ORDER BY position"
    return list(db.execute(query, (link,)))


def delete(db: sqlite3.Connection, link: bytes) -> int:
    """Delete the rows of a link; return how many there were."""
    return db.execute("DELETE FROM link_delivery WHERE link = ?", (link,)).rowcount


def forget(db: sqlite3.Connection, before_s: int, rows_max: int) -> int:
    """Delete rows recorded before `before_s`, the oldest first; return how many."""
    return db.execute(
        "DELETE FROM link_delivery WHERE at_s < ? AND id IN"
        " (SELECT id FROM link_delivery ORDER BY id LIMIT ?)",
        (before_s, rows_max),
    ).rowcount


def clients_with_many(db: sqlite3.Connection, rows_max: int) -> list[tuple[bytes, int]]:
    """Return the clients with more than so many rows, and how many rows each has."""
    query = "SELECT owner, count(*) FROM link_delivery GROUP BY owner HAVING count(*) > ?"
    return list(db.execute(query, (rows_max,)))


def forget_oldest(db: sqlite3.Connection, owner: bytes, count: int) -> int:
    """Delete the oldest rows of a client; return how many."""
    return db.execute(
        "DELETE FROM link_delivery WHERE id IN"
        " (SELECT id FROM link_delivery WHERE owner = ? ORDER BY id LIMIT ?)",
        (owner, count),
    ).rowcount
