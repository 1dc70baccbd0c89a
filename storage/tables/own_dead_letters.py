"""Table `own_dead_letter`: messages with a dead-letter queue of their application's own.

A row is written with its message, and stays until a later scan finds the message gone: so removing
a message is not slowed down.
"""

import sqlite3
from collections.abc import Iterable, Sequence
from itertools import repeat
from typing import NamedTuple

from storage.tables.pages import key_list


class OwnDeadLetter(NamedTuple):
    number: int  # of the message; we are its source
    queue_id: int  # its dead-letter queue
    place: str  # the table that holds it: message or outgoing
    key: int


COLUMNS = ", ".join(OwnDeadLetter._fields)


def insert(db: sqlite3.Connection, rows: Iterable[OwnDeadLetter]) -> None:
    # Numbers repeat after 2**32 messages; a number then belongs to the newer message.
    db.executemany(f"INSERT OR REPLACE INTO own_dead_letter ({COLUMNS}) VALUES (?, ?, ?, ?)", rows)


def insert_all(
    db: sqlite3.Connection, columns: tuple[Sequence[int], Sequence[int], Sequence[int]], place: str
) -> None:
    """Insert many rows of one `place`: their numbers, the ids of their queues, and their keys."""
    numbers, queue_ids, keys = columns
    insert(db, map(OwnDeadLetter, numbers, queue_ids, repeat(place), keys))


def any_stored(db: sqlite3.Connection) -> bool:
    """Return whether there is a row."""
    return db.execute("SELECT 1 FROM own_dead_letter LIMIT 1").fetchone() is not None


def page(db: sqlite3.Connection, after: int, rows_max: int) -> dict[int, int]:
    """Return the dead-letter queues of messages after the number `after`, by ascending number."""
    return dict(
        db.execute(
            "SELECT number, queue_id FROM own_dead_letter WHERE number > ? ORDER BY number LIMIT ?",
            (after, rows_max),
        )
    )


def queue_of(db: sqlite3.Connection, number: int) -> int | None:
    """Return the dead-letter queue of one message; None: it has none of its own."""
    row = db.execute("SELECT queue_id FROM own_dead_letter WHERE number = ?", (number,)).fetchone()
    return None if row is None else row[0]


def queues_of(db: sqlite3.Connection, numbers: Sequence[int]) -> dict[int, tuple[int, str]]:
    """Return message number -> (id, name) of its dead-letter queue, where that queue exists."""
    return {
        number: (queue_id, name)
        for number, queue_id, name in db.execute(
            "SELECT number, queue.id, name FROM own_dead_letter"
            " JOIN queue ON queue.id = queue_id"
            " WHERE number IN (SELECT value FROM json_each(?))",
            (key_list(numbers),),
        )
    }


def gone(db: sqlite3.Connection, after: int, rows_max: int) -> tuple[list[int], int | None]:
    """Return messages after the number `after` that are gone, and the number to continue after.

    A message is gone if it is neither where it was stored nor awaiting a final ack.  The second
    value is None at the end.
    """
    rows = db.execute(
        "SELECT number, CASE place WHEN 'outgoing'"
        " THEN EXISTS (SELECT 1 FROM outgoing WHERE outgoing.key = own_dead_letter.key)"
        " ELSE EXISTS (SELECT 1 FROM message WHERE message.key = own_dead_letter.key) END"
        " OR EXISTS (SELECT 1 FROM awaiting WHERE awaiting.number = own_dead_letter.number)"
        " FROM own_dead_letter WHERE number > ? ORDER BY number LIMIT ?",
        (after, rows_max),
    ).fetchall()
    found = [number for number, is_there in rows if not is_there]
    return found, rows[-1][0] if len(rows) == rows_max else None


def moved(db: sqlite3.Connection, moves: Iterable[tuple[int, int, int]]) -> None:
    """Update the keys of messages that moved in our queues: number, old key, new key of each."""
    db.executemany(
        "UPDATE own_dead_letter SET key = :to WHERE number = :number AND key = :key"
        " AND place = 'message'",
        ({"number": number, "key": key, "to": to} for number, key, to in moves),
    )


def delete(db: sqlite3.Connection, numbers: Sequence[int]) -> None:
    db.execute(
        "DELETE FROM own_dead_letter WHERE number IN (SELECT value FROM json_each(?))",
        (key_list(numbers),),
    )
