"""The location of one message, in all tables that hold messages.

All functions only read, for `Storage.read`.  The history in `event_block` leads to the row in most
cases (`at`); otherwise `search` scans a table, in pages.
"""

import sqlite3
from typing import NamedTuple

from storage.tables import shared_parts
from storage.tables.keys import LOOKUP_BITS
from storage.tables.messages import COLUMNS as MESSAGE_COLUMNS
from storage.tables.messages import MessageRow
from storage.tables.outgoing import COLUMNS as OUTGOING_COLUMNS
from storage.tables.outgoing import OutgoingRow
from storage.tables.sequences import decode_sequence_id

# Offsets in a packet, from 1 on.  [MS-MQMQ] 2.2.19.2
_IS_IT = "substr(packet, 17, 16) = :source AND substr(packet, 57, 4) = :number"


class InQueue(NamedTuple):
    """A message in one of our queues, and the number of stored messages in front of it.

    `ahead` is None if there are more than were counted.
    """

    row: MessageRow
    ahead: int | None


class InOutgoing(NamedTuple):
    """A message in an outgoing queue, with the number of messages in front of it."""

    row: OutgoingRow
    ahead: int | None


class Awaiting(NamedTuple):
    """An order-acknowledged message that waits for its final ack."""

    queue_id: int  # of the outgoing queue
    sequence_id: int
    position: int
    since_s: int
    expires_at_s: int | None


class Damaged(NamedTuple):
    """A message that differs from its stored content, and was set aside."""

    id: int
    at_s: int
    place: str
    key: int


class Page(NamedTuple):
    """The result of searching a part of a table."""

    keys: list[int]
    next_key: int | None  # the start of the next part; None: the search is complete
    rows: int  # rows examined


def in_queue(db: sqlite3.Connection, key: int, ahead_max: int) -> InQueue | None:
    row = db.execute(f"SELECT {MESSAGE_COLUMNS} FROM message WHERE key = ?", (key,)).fetchone()
    if row is None:
        return None
    whole = shared_parts.whole(db, MessageRow._make(row))
    return InQueue(whole, _ahead(db, "message", key, ahead_max))


def in_outgoing(db: sqlite3.Connection, key: int, ahead_max: int) -> InOutgoing | None:
    row = db.execute(f"SELECT {OUTGOING_COLUMNS} FROM outgoing WHERE key = ?", (key,)).fetchone()
    if row is None:
        return None
    whole = shared_parts.whole(db, OutgoingRow._make(row))
    return InOutgoing(whole, _ahead(db, "outgoing", key, ahead_max))


def awaiting(db: sqlite3.Connection, number: int) -> Awaiting | None:
    """Return the entry of a message that we sent, by its number; None if there is none."""
    row = db.execute(
        "SELECT queue_id, sequence_id, position, since_s, expires_at_s FROM awaiting"
        " WHERE number = ?",
        (number,),
    ).fetchone()
    if row is None:
        return None
    queue_id, sequence_id, position, since_s, expires_at_s = row
    return Awaiting(queue_id, decode_sequence_id(sequence_id), position, since_s, expires_at_s)


def awaiting_count(db: sqlite3.Connection, outgoing_id: int) -> int:
    """Return how many messages of that outgoing queue wait for a final ack."""
    (count,) = db.execute(
        "SELECT count(*) FROM awaiting WHERE queue_id = ?", (outgoing_id,)
    ).fetchone()
    return int(count)


def damaged(db: sqlite3.Connection, source: bytes, number: int) -> list[Damaged]:
    rows = db.execute(
        f"SELECT id, at_s, place, key FROM damaged WHERE {_IS_IT}", _it(source, number)
    )
    return list(map(Damaged._make, rows))


def search(
    db: sqlite3.Connection,
    table: str,
    source: bytes,
    number: int,
    *,
    from_key: int = 0,
    to_key: int = (1 << 63) - 1,
    rows_max: int,
) -> Page:
    """Search the next rows of `message` or `outgoing`, both ends included."""
    assert table in ("message", "outgoing")
    rows = db.execute(
        f"SELECT key, {_IS_IT} FROM {table} WHERE key BETWEEN :first AND :last"
        " ORDER BY key LIMIT :rows",
        {**_it(source, number), "first": from_key, "last": to_key, "rows": rows_max},
    ).fetchall()
    next_key = rows[-1][0] + 1 if len(rows) == rows_max else None
    return Page([key for key, is_it in rows if is_it], next_key, len(rows))


def _it(source: bytes, number: int) -> dict[str, bytes]:
    return {"source": source, "number": number.to_bytes(4, "little")}


def _ahead(db: sqlite3.Connection, table: str, key: int, ahead_max: int) -> int | None:
    first = key >> LOOKUP_BITS << LOOKUP_BITS
    (count,) = db.execute(
        f"SELECT count(*) FROM (SELECT 1 FROM {table} WHERE key >= ? AND key < ? LIMIT ?)",
        (first, key, ahead_max + 1),
    ).fetchone()
    return None if count > ahead_max else int(count)
