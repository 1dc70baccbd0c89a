"""Tables `reader`, `reader_queue`, `reservation`: ranges of queues that stay fixed for a reader.

Each reader numbers the messages of a queue separately.  A reservation assigns the next number, the
*position*, to a message, in the commit that records its reader; docs/decisions/0019.  The row id of
table `reservation` consists of the id of the reader's queue and the position, so a range is one
scan; `ranges.py` reads pages of it.
"""

import sqlite3
from collections.abc import Set
from itertools import islice
from typing import Any, NamedTuple

from storage.tables import counters, shared_parts
from storage.tables.keys import LOOKUP_MASK, arrival_of
from storage.tables.pages import key_list
from storage.tables.ranges import (
    CHUNK_ROWS,
    POSITION_BITS,
    POSITION_MAX,
    by_arrival,
    in_chunks,
    position_range,
)


class ReaderRow(NamedTuple):
    id: int
    name: str
    fence: int
    opened_at_s: int


class ReaderQueueRow(NamedTuple):
    id: int
    reader_id: int
    queue_id: int
    queue: bytes  # its GUID
    shared: bool
    position: int
    next_number: int
    arrival: int
    reserved_at_s: int
    consumed_messages: int
    consumed_bytes: int


_QUEUE_COLUMNS = ", ".join(ReaderQueueRow._fields)


# Readers.


def open_reader(db: sqlite3.Connection, name: str, now_s: int) -> ReaderRow:
    """Return the reader of that name, created if needed, with a fence above all earlier ones."""
    fence = counters.reserve(db, "fence", 1)
    db.execute(
        "INSERT INTO reader (name, fence, opened_at_s) VALUES (?1, ?2, ?3) ON CONFLICT (name)"
        " DO UPDATE SET fence = ?2, opened_at_s = ?3",
        (name, fence, now_s),
    )
    row = db.execute(
        "SELECT id, name, fence, opened_at_s FROM reader WHERE name = ?", (name,)
    ).fetchone()
    return ReaderRow._make(row)


def add_queue(
    db: sqlite3.Connection,
    reader_id: int,
    queue_id: int,
    queue: bytes,
    *,
    shared: bool,
    arrival: int,
) -> ReaderQueueRow:
    """Add a queue to a reader, which starts with messages that arrived after `arrival`."""
    db.execute(
        "INSERT INTO reader_queue (reader_id, queue_id, queue, shared, position, next_number,"
        " arrival, reserved_at_s, consumed_messages, consumed_bytes)"
        " VALUES (?, ?, ?, ?, 0, 1, ?, 0, 0, 0)",
        (reader_id, queue_id, queue, shared, arrival),
    )
    row = db.execute(
        f"SELECT {_QUEUE_COLUMNS} FROM reader_queue WHERE reader_id = ? AND queue = ?",
        (reader_id, queue),
    ).fetchone()
    return _reader_queue(row)


def list_readers(db: sqlite3.Connection) -> list[ReaderRow]:
    rows = db.execute("SELECT id, name, fence, opened_at_s FROM reader ORDER BY name")
    return list(map(ReaderRow._make, rows))


def list_queues(db: sqlite3.Connection) -> list[ReaderQueueRow]:
    return [
        _reader_queue(row)
        for row in db.execute(f"SELECT {_QUEUE_COLUMNS} FROM reader_queue ORDER BY id")
    ]


def keys(db: sqlite3.Connection) -> list[tuple[int, int]]:
    """Return reader's queue and message key of all reservations, in the order of positions."""
    return db.execute(f"SELECT id >> {POSITION_BITS}, key FROM reservation ORDER BY id").fetchall()


def forget_reader(db: sqlite3.Connection, reader_id: int) -> None:
    """Delete a reader with all of its queues, none of which may have reservations."""
    db.execute("DELETE FROM reader_queue WHERE reader_id = ?", (reader_id,))
    db.execute("DELETE FROM reader WHERE id = ?", (reader_id,))


def forget_queue(db: sqlite3.Connection, reader_queue_id: int) -> None:
    """Delete a reader's queue and its reservations: the reader or the queue was deleted."""
    _delete_up_to(db, reader_queue_id, POSITION_MAX)
    db.execute("DELETE FROM reader_queue WHERE id = ?", (reader_queue_id,))


def _reader_queue(row: tuple[Any, ...]) -> ReaderQueueRow:
    found = ReaderQueueRow._make(row)
    return found._replace(shared=bool(found.shared))


# Reserving.


def first_arrival_since(
    db: sqlite3.Connection, queue_id: int, *, until: int, since_ms: int
) -> int | None:
    """Return the number of the first message, by arrival, that arrived at `since_ms` or later."""
    for key, arrived_at_ms in by_arrival(db, "key, arrived_at_ms", queue_id, 0, until):
        if arrived_at_ms >= since_ms:
            return arrival_of(key)
    return None


class Chosen(NamedTuple):
    """Messages for a reservation, in the order of their arrival."""

    keys: list[int]
    sizes: list[int]  # of their packets, in bytes
    stop: int | None = None  # the key of the busy message at which the choice ended


def choose(
    db: sqlite3.Connection,
    queue_id: int,
    *,
    after: int,
    until: int,
    busy: Set[int],
    stop_at_busy: bool,
    until_ms: int | None = None,
    now_s: int,
    rows_max: int,
    bytes_max: int,
) -> Chosen:
    """Return the next messages by arrival, after `after` up to `until`, that are not in `busy`.

    `busy` are lookup ids.  With `stop_at_busy` the choice ends before the first busy message.
    Expired messages are left out, and with `until_ms` those that arrived later.  No packet is read.
    """
    chosen = Chosen([], [])
    size = 0
    rows = by_arrival(
        db, "key, length(packet) + part_bytes, expires_at_s, arrived_at_ms", queue_id, after, until
    )
    while len(chosen.keys) < rows_max and (chunk := list(islice(rows, CHUNK_ROWS))):
        keys, sizes, expires_at_s, arrived_at_ms = zip(*chunk, strict=True)
        is_plain = (
            len(chosen.keys) + len(keys) <= rows_max
            and size + sum(sizes) <= bytes_max
            and expires_at_s.count(None) == len(keys)
            and (until_ms is None or max(arrived_at_ms) <= until_ms)
            and (not busy or busy.isdisjoint([key & LOOKUP_MASK for key in keys]))
        )
        if is_plain:
            chosen.keys.extend(keys)
            chosen.sizes.extend(sizes)
            size += sum(sizes)
            continue
        for key, packet_bytes, expires, arrived in chunk:
            if until_ms is not None and arrived > until_ms:
                continue
            if key & LOOKUP_MASK in busy:
                if stop_at_busy:
                    return chosen._replace(stop=key)
                continue
            if expires is not None and expires < now_s:
                continue
            if len(chosen.keys) == rows_max or (chosen.keys and size + packet_bytes > bytes_max):
                return chosen
            chosen.keys.append(key)
            chosen.sizes.append(packet_bytes)
            size += packet_bytes
    return chosen


def reserve(
    db: sqlite3.Connection,
    reader_queue_id: int,
    candidates: list[int],
    *,
    at_s: int,
    arrival: int | None,
) -> tuple[int, list[int]]:
    """Assign the next positions to the messages with these keys.

    Returns the first position, and the keys that got one: messages that no longer exist get none.
    Messages that arrived up to `arrival` are not offered to the reader again.
    """
    (first,) = db.execute(
        "SELECT next_number FROM reader_queue WHERE id = ?", (reader_queue_id,)
    ).fetchone()
    base = reader_queue_id << POSITION_BITS | first
    found = candidates
    if not _inserted(db, base, found):
        listed = key_list(candidates)
        among = "SELECT key FROM message WHERE key IN (SELECT value FROM json_each(?))"
        there = {key for (key,) in db.execute(among, (listed,))}
        found = [key for key in candidates if key in there]
        _inserted(db, base, found)
    db.execute(
        "UPDATE reader_queue SET next_number = ?, arrival = coalesce(?, arrival),"
        " reserved_at_s = ? WHERE id = ?",
        (first + len(found), arrival, at_s, reader_queue_id),
    )
    return first, found


def _inserted(db: sqlite3.Connection, base: int, keys: list[int]) -> bool:
    """Insert reservations of these messages, numbered from `base`; False: not all exist.

    Nothing is inserted then.
    """
    if not keys:
        return True
    if keys == list(range(keys[0], keys[0] + len(keys))):
        # As many rows as numbers from the first key to the last: all of them exist.
        count = db.execute(
            "INSERT INTO reservation (id, key) SELECT key + ?, key FROM message"
            " WHERE key BETWEEN ? AND ?",
            (base - keys[0], keys[0], keys[-1]),
        ).rowcount
    else:
        # One statement for all: the key of an element of a list is its index.
        count = db.execute(
            "INSERT INTO reservation (id, key) SELECT ? + listed.key, listed.value"
            " FROM json_each(?) AS listed CROSS JOIN message WHERE message.key = listed.value",
            (base, key_list(keys)),
        ).rowcount
    if count == len(keys):
        return True
    db.execute("DELETE FROM reservation WHERE id >= ? AND id < ?", (base, base + len(keys)))
    return False


class Measured(NamedTuple):
    end: int
    messages: int
    bytes: int
    is_cut: bool  # a limit was reached


def measure(
    db: sqlite3.Connection,
    reader_queue_id: int,
    after: int,
    *,
    rows_max: int,
    bytes_max: int,
    one_always: bool = True,
) -> Measured:
    """Measure how many reservations after a position fit into the limits.

    Without a limit of bytes (0) no message is read.  With `one_always` one reservation always fits.
    """
    first, last = position_range(reader_queue_id, after, POSITION_MAX)
    size = count = 0
    end = after
    for position, packet_bytes in db.execute(
        f"SELECT r.id & {POSITION_MAX}, length(m.packet) + m.part_bytes FROM reservation r"
        " LEFT JOIN message m ON m.key = r.key WHERE r.id BETWEEN ? AND ? ORDER BY r.id",
        (first, last),
    ):
        is_free = count == 0 and one_always
        if count == rows_max or (
            bytes_max and not is_free and size + (packet_bytes or 0) > bytes_max
        ):
            return Measured(end, count, size, True)
        end = position
        count += 1
        size += packet_bytes or 0
    return Measured(end, count, size, False)


# Consuming.


class HeldRow(NamedTuple):
    """A reservation with its message; the packet is None if the message does not exist."""

    position: int
    key: int
    checksum: int | None
    seal: bytes | None
    part_id: int | None
    packet: bytes | None

    @property
    def table(self) -> str:
        return "message"


#: A `HeldRow`, most often without field names.
Held = tuple[int, int, int | None, bytes | None, int | None, bytes | None]


def held_keys(
    db: sqlite3.Connection, reader_queue_id: int, after: int, until: int, *, rows_max: int
) -> tuple[list[int], int]:
    """Return the keys of the next reservations of a range, and the position of the last of them.

    That position is `after` if there are none.
    """
    rows = db.execute(
        "SELECT id, key FROM reservation WHERE id BETWEEN ? AND ? ORDER BY id LIMIT ?",
        (*position_range(reader_queue_id, after, until), rows_max),
    ).fetchall()
    return [key for _, key in rows], rows[-1][0] & POSITION_MAX if rows else after


def held_page(
    db: sqlite3.Connection,
    reader_queue_id: int,
    after: int,
    until: int,
    *,
    rows_max: int,
    bytes_max: int,
) -> list[Held]:
    """Return the next reservations of a range with their messages, at least one if there is any."""
    rows = db.execute(
        f"SELECT r.id & {POSITION_MAX}, r.key, m.checksum, m.seal, m.part_id, m.packet"
        " FROM reservation r LEFT JOIN message m ON m.key = r.key WHERE r.id BETWEEN ? AND ?"
        " ORDER BY r.id LIMIT ?",
        (*position_range(reader_queue_id, after, until), rows_max),
    )
    found: list[Held] = []
    size = 0
    for chunk in in_chunks(rows, bytes_max):
        if any(row[-2] is not None or row[-3] is not None for row in chunk):
            chunk = [shared_parts.whole(db, HeldRow._make(row)) for row in chunk]
        added = sum([len(row[-1] or b"") for row in chunk])
        if size + added < bytes_max:
            found += chunk
            size += added
            continue
        for row in chunk:
            found.append(row)
            size += len(row[-1] or b"")
            if size >= bytes_max:
                return found
    return found


def consumed(
    db: sqlite3.Connection, reader_queue_id: int, position: int, messages: int, size: int
) -> None:
    """Record the messages and bytes that a reader consumed, up to a position."""
    _delete_up_to(db, reader_queue_id, position)
    db.execute(
        "UPDATE reader_queue SET position = max(position, ?),"
        " consumed_messages = consumed_messages + ?, consumed_bytes = consumed_bytes + ?"
        " WHERE id = ?",
        (position, messages, size, reader_queue_id),
    )


def release(db: sqlite3.Connection, reader_queue_id: int) -> None:
    """Delete all reservations; their positions are not used again."""
    _delete_up_to(db, reader_queue_id, POSITION_MAX)
    db.execute(
        "UPDATE reader_queue SET position = next_number - 1 WHERE id = ?", (reader_queue_id,)
    )


def raise_fence(db: sqlite3.Connection, reader_id: int) -> int:
    """Invalidate all earlier openings of the reader; return the new fence."""
    fence = counters.reserve(db, "fence", 1)
    db.execute("UPDATE reader SET fence = ? WHERE id = ?", (fence, reader_id))
    return fence


def _delete_up_to(db: sqlite3.Connection, reader_queue_id: int, position: int) -> None:
    db.execute(
        "DELETE FROM reservation WHERE id BETWEEN ? AND ?",
        position_range(reader_queue_id, -1, position),
    )
