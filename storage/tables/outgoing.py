"""Tables `outgoing_queue` and `outgoing`: what waits for other queue managers."""

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

from storage.errors import NoSuchQueue
from storage.tables import counters, damaged, pages, shared_parts
from storage.tables.damaged import checksum_of
from storage.tables.keys import (
    OUTGOING_TRANSACTIONAL_LEVEL,
    level_range,
    lookup_id_of,
    queue_range,
)
from storage.tables.pages import PAGE_BYTES_MAX, PAGE_ROWS_MAX, Head, Totals, key_list
from storage.tables.sequences import decode_sequence_id, encode_sequence_id
from storage.tables.shared_parts import PartOf


class OutgoingQueueRow(NamedTuple):
    id: int
    destination: str
    address: str
    paused: bool
    sequence_id: int
    base: int
    next_number: int
    created_at_s: int
    redirect: str | None = None
    peer: bytes | None = None
    renumbered_to: int = 0  # without the queue: packets up to this key bear an older sequence
    former: bytes = b""  # time stamps of its older sequences, 4 bytes each, the latest first
    unproven_from: int = 0  # base + the first number after a start, while no order ack has come


class OutgoingRow(NamedTuple):
    key: int
    expires_at_s: int | None
    checksum: int | None
    discard: bool
    part_id: int | None  # of its packet the end is shared with other messages
    packet: bytes

    @property
    def is_whole(self) -> bool:
        """Whether the packet is what was stored."""
        return damaged.is_whole(self.packet, self.checksum)


#: Key, expiry in s, packet, until when its final ack is waited for, whether it is no dead letter.
NewOutgoing = tuple[int, int | None, bytes, int | None, bool]
#: Sequence id (8 bytes), base, next number, outgoing queue id.
SequenceState = tuple[bytes, int, int, int]


class RowsOfCopies(Protocol):
    """Key, and the packet; with a `part` its head, which goes on with that.  They may be made when
    they are gone through, which may happen more than once and on another thread."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[tuple[int, bytes]]: ...


class NewCopies(NamedTuple):
    """Rows that differ in their keys and packets only, as the copies of one message do."""

    rows: RowsOfCopies
    expires_at_s: int | None
    confirm_by_s: int | None
    discard: bool
    part: PartOf | None


_MANY = 16  # rows from which on one statement for all is faster

SEQUENCE_TIMESTAMP = "sequence_timestamp"  # a counter

HEAD_BYTES = 2048  # with three names as long as they may be
FORMER_BYTES = 256  # of the time stamps of older sequences

QUEUE_COLUMNS = ", ".join(OutgoingQueueRow._fields)
COLUMNS = ", ".join(OutgoingRow._fields)


def insert(db: sqlite3.Connection, rows: Iterable[NewOutgoing]) -> None:
    db.executemany(
        "INSERT INTO outgoing (key, expires_at_s, packet, confirm_by_s, discard, checksum)"
        " VALUES (?, ?, ?, ?, ?, ?)",
        ((*row, checksum_of(row[2])) for row in rows),
    )


def insert_copies(db: sqlite3.Connection, copies: Iterable[NewCopies]) -> None:
    for each in copies:
        part_id, part_bytes = each.part or (None, 0)
        alike = each.expires_at_s, each.confirm_by_s, int(each.discard), part_id, part_bytes
        # What is the same in all rows stands in the statement: a value that is bound costs as much
        # as a third of the insert.
        values = ", ".join("NULL" if value is None else str(int(value)) for value in alike)
        db.executemany(
            "INSERT INTO outgoing (key, packet, checksum, expires_at_s, confirm_by_s, discard,"
            f" part_id, part_bytes) VALUES (?, ?, ?, {values})",
            ((key, packet, checksum_of(packet)) for key, packet in each.rows),
        )


def delete(db: sqlite3.Connection, keys: Sequence[int]) -> None:
    among, listed = "key IN (SELECT value FROM json_each(?))", (key_list(keys),)
    with shared_parts.leaving(db, "outgoing", among, listed):
        db.execute(f"DELETE FROM outgoing WHERE {among}", listed)


def delete_ranges(db: sqlite3.Connection, ranges: Iterable[tuple[int, int]]) -> None:
    """First and last key of each range, both included."""
    if not shared_parts.any_there(db):
        db.executemany("DELETE FROM outgoing WHERE key BETWEEN ? AND ?", ranges)
        return
    for each in ranges:
        with shared_parts.leaving(db, "outgoing", "key BETWEEN ? AND ?", each):
            db.execute("DELETE FROM outgoing WHERE key BETWEEN ? AND ?", each)


def identities(db: sqlite3.Connection, first: int, last: int) -> list[Head]:
    """Which messages the rows of a range hold, both ends included."""
    return pages.heads_between(db, "outgoing", first, last)


def release(db: sqlite3.Connection, first: int, last: int) -> Totals:
    """Delete the rows of a range, both ends included; how many they were."""
    released = pages.totals_between(db, "outgoing", first, last)
    with shared_parts.leaving(db, "outgoing", "key BETWEEN ? AND ?", (first, last)):
        db.execute("DELETE FROM outgoing WHERE key BETWEEN ? AND ?", (first, last))
    return released


def set_sequences(db: sqlite3.Connection, states: Sequence[SequenceState]) -> None:
    # A sequence that begins with another time stamp leaves the old one behind: peers speak of it.
    changed = db.executemany(
        "UPDATE outgoing_queue SET former = CASE"
        " WHEN substr(sequence_id, 1, 4) = substr(?1, 1, 4) THEN former ELSE"
        f" substr(CAST(substr(sequence_id, 1, 4) || former AS BLOB), 1, {FORMER_BYTES}) END,"
        " sequence_id = ?1, base = ?2, next_number = ?3 WHERE id = ?4",
        states,
    )
    assert changed.rowcount == len(states), "the state of an unknown outgoing queue would be lost"


def set_renumbered(db: sqlite3.Connection, outgoing_id: int, key: int) -> None:
    """Packets of the queue up to `key` bear a sequence that is over, and get theirs when sent."""
    db.execute("UPDATE outgoing_queue SET renumbered_to = ? WHERE id = ?", (key, outgoing_id))


def set_unproven(db: sqlite3.Connection, positions: Sequence[tuple[int, int]]) -> None:
    """Of each queue base + number from which on its peer may know other messages; 0: from none on.

    Positions and ids of the queues.
    """
    db.executemany("UPDATE outgoing_queue SET unproven_from = ? WHERE id = ?", positions)


def set_next_numbers(db: sqlite3.Connection, numbers: dict[int, int]) -> None:
    """Likewise where only the next number is another one; by outgoing queue."""
    if len(numbers) < _MANY:
        changed = db.executemany(
            "UPDATE outgoing_queue SET next_number = ? WHERE id = ?",
            [(number, outgoing_id) for outgoing_id, number in numbers.items()],
        )
    else:  # one statement: half of the time
        listed = ",".join([f'"{outgoing_id}":{number}' for outgoing_id, number in numbers.items()])
        changed = db.execute(
            "UPDATE outgoing_queue SET next_number = each.value FROM json_each(?) AS each"
            " WHERE outgoing_queue.id = CAST(each.key AS INTEGER)",
            (f"{{{listed}}}",),
        )
    assert changed.rowcount == len(numbers), "the state of an unknown queue would be lost"


def add_queues(db: sqlite3.Connection, rows: Iterable[OutgoingQueueRow]) -> None:
    """New destinations with ids of the caller's choice."""
    db.executemany(
        f"INSERT INTO outgoing_queue ({QUEUE_COLUMNS}, key)"
        f" VALUES ({', '.join('?' * (len(OutgoingQueueRow._fields) + 1))})",
        (
            (*row[:4], encode_sequence_id(row.sequence_id), *row[5:], row.destination.casefold())
            for row in rows
        ),
    )


def forget_queues(db: sqlite3.Connection, ids: Iterable[int], last_timestamp: int) -> None:
    """Destinations without messages, whose sequences are over.

    `last_timestamp`: the next sequence to any of them must have a greater one.
    """
    db.executemany("DELETE FROM outgoing_queue WHERE id = ?", ((id_,) for id_ in ids))
    counters.set_following(db, SEQUENCE_TIMESTAMP, last_timestamp)


def last_timestamp(db: sqlite3.Connection) -> int:
    """The greatest that the sequences of forgotten destinations had."""
    return counters.following(db, SEQUENCE_TIMESTAMP)


def list_queues(db: sqlite3.Connection) -> list[OutgoingQueueRow]:
    rows = db.execute(f"SELECT {QUEUE_COLUMNS} FROM outgoing_queue ORDER BY id")
    return list(map(_queue, rows))


def set_paused(db: sqlite3.Connection, outgoing_id: int, paused: bool) -> None:
    """Raises NoSuchQueue."""
    changed = db.execute("UPDATE outgoing_queue SET paused = ? WHERE id = ?", (paused, outgoing_id))
    if changed.rowcount == 0:
        raise NoSuchQueue(outgoing_id)


def find(db: sqlite3.Connection, key: int) -> OutgoingRow | None:
    row = db.execute(f"SELECT {COLUMNS} FROM outgoing WHERE key = ?", (key,)).fetchone()
    return None if row is None else shared_parts.whole(db, OutgoingRow._make(row))


def page(
    db: sqlite3.Connection,
    outgoing_id: int,
    from_lookup: int = 0,
    rows_max: int = PAGE_ROWS_MAX,
    bytes_max: int = PAGE_BYTES_MAX,
) -> list[OutgoingRow]:
    """As `messages.page`: the next rows from `from_lookup` on, in the order of sending."""
    cursor = db.execute(
        f"SELECT {COLUMNS} FROM outgoing WHERE key BETWEEN ? AND ? ORDER BY key LIMIT ?",
        (*queue_range(outgoing_id, from_lookup), rows_max),
    )
    return pages.take(cursor, OutgoingRow._make, bytes_max)


def keys(
    db: sqlite3.Connection, outgoing_id: int, from_lookup: int = 0, *, rows_max: int
) -> list[int]:
    """Where the next rows of a queue stand in it, from `from_lookup` on, itself included."""
    rows = db.execute(
        "SELECT key FROM outgoing WHERE key BETWEEN ? AND ? ORDER BY key LIMIT ?",
        (*queue_range(outgoing_id, from_lookup), rows_max),
    )
    return [lookup_id_of(key) for (key,) in rows]


def bounds(db: sqlite3.Connection, outgoing_id: int, level: int) -> tuple[int, int] | None:
    """The first and the last key that are there on one level; None when there are none."""
    first, last = db.execute(
        # Two subqueries: SQLite seeks one end each, where min() and max() together would scan.
        "SELECT (SELECT min(key) FROM outgoing WHERE key BETWEEN :first AND :last),"
        " (SELECT max(key) FROM outgoing WHERE key BETWEEN :first AND :last)",
        dict(zip(("first", "last"), level_range(outgoing_id, level), strict=True)),
    ).fetchone()
    return None if first is None else (first, last)


def totals(db: sqlite3.Connection, outgoing_id: int) -> Totals:
    return pages.totals_between(db, "outgoing", *queue_range(outgoing_id))


def totals_by_queue(db: sqlite3.Connection) -> dict[int, Totals]:
    return pages.by_queue(totals_by_level(db))


def totals_by_level(db: sqlite3.Connection) -> dict[tuple[int, int], Totals]:
    """By outgoing queue and level, of those that hold something."""
    return pages.totals_by_level(db, "outgoing")


def transactional_by_queue(db: sqlite3.Connection) -> dict[int, int]:
    """How many transactional messages each outgoing queue holds, of those that hold some."""
    return {
        outgoing_id: total.messages
        for (outgoing_id, level), total in totals_by_level(db).items()
        if level == OUTGOING_TRANSACTIONAL_LEVEL
    }


def redirect(db: sqlite3.Connection, outgoing_ids: Sequence[int], address: str | None) -> None:
    """From now on these go there; None: to the addresses of their names."""
    db.executemany(
        "UPDATE outgoing_queue SET redirect = ? WHERE id = ?",
        [(address, outgoing_id) for outgoing_id in outgoing_ids],
    )


def set_peers(db: sqlite3.Connection, outgoing_ids: Sequence[int], peer: bytes) -> None:
    """Whom their transactional messages are handed to."""
    db.executemany(
        "UPDATE outgoing_queue SET peer = ? WHERE id = ?",
        [(peer, outgoing_id) for outgoing_id in outgoing_ids],
    )


def heads(db: sqlite3.Connection, outgoing_id: int) -> Iterable[bytes]:
    """What stands before the body in each packet of a queue, in the order of sending."""
    cursor = db.execute(
        "SELECT substr(packet, 1, ?) FROM outgoing WHERE key BETWEEN ? AND ? ORDER BY key",
        (HEAD_BYTES, *queue_range(outgoing_id)),
    )
    return (packet for (packet,) in cursor)


def _queue(row: tuple[Any, ...]) -> OutgoingQueueRow:
    return OutgoingQueueRow._make(
        (*row[:3], bool(row[3]), decode_sequence_id(row[4]), *row[5:]),
    )
