"""Tables `reader`, `reader_queue`, `reservation`: ranges of queues that stay fixed for a reader.

A reader counts the messages of a queue for itself.  A reservation gives a message the next number,
its *position*, in the commit that writes who has it; docs/decisions/0019.  The row ids of table
`reservation` are those of the reader's queue and the position, so a range is one scan.
"""

import sqlite3
from collections.abc import Callable, Iterator, Sequence, Set
from heapq import merge
from itertools import accumulate
from typing import Any, NamedTuple

from storage import counters, shared_parts
from storage.keys import (
    ARRIVAL_MAX,
    LOOKUP_MASK,
    arrival_of,
    level_of,
    level_range,
    message_key,
    queue_range,
)
from storage.pages import key_list

POSITION_BITS = 44
POSITION_MAX = (1 << POSITION_BITS) - 1


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


class RangeRow(NamedTuple):
    """A message in a range.  The packet may be only its beginning."""

    position: int
    key: int
    arrived_at_ms: int
    expires_at_s: int | None
    reason: str | None
    abort_count: int
    move_count: int
    checksum: int | None
    part_id: int | None  # as of `MessageRow`
    packet: bytes


#: A `RangeRow` that has no names yet: they cost as much as the row itself.
Plain = tuple[Any, ...]

_QUEUE_COLUMNS = ", ".join(ReaderQueueRow._fields)
_MESSAGE_COLUMNS = (
    "m.arrived_at_ms, m.expires_at_s, m.reason, m.abort_count, m.move_count, m.checksum, m.part_id"
)


# Readers.


def open_reader(db: sqlite3.Connection, name: str, now_s: int) -> ReaderRow:
    """The reader of that name, with a fence above all that there ever were."""
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
    """A reader begins with a queue: with what arrived after `arrival`."""
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
    """Reader's queue and message key of all that is reserved, in the order of positions."""
    return db.execute(f"SELECT id >> {POSITION_BITS}, key FROM reservation ORDER BY id").fetchall()


def forget_reader(db: sqlite3.Connection, reader_id: int) -> None:
    """With all of its queues, of which nothing may be reserved any more."""
    db.execute("DELETE FROM reader_queue WHERE reader_id = ?", (reader_id,))
    db.execute("DELETE FROM reader WHERE id = ?", (reader_id,))


def forget_queue(db: sqlite3.Connection, reader_queue_id: int) -> None:
    """A reader, or its queue, is no more."""
    _delete_up_to(db, reader_queue_id, POSITION_MAX)
    db.execute("DELETE FROM reader_queue WHERE id = ?", (reader_queue_id,))


def _reader_queue(row: tuple[Any, ...]) -> ReaderQueueRow:
    found = ReaderQueueRow._make(row)
    return found._replace(shared=bool(found.shared))


# Reserving.


#: A message's key, and the bytes of its packet.
Candidate = tuple[int, int]


def choose(
    db: sqlite3.Connection,
    queue_id: int,
    *,
    after: int,
    until: int,
    busy: Set[int],
    stop_at_busy: bool,
    now_s: int,
    rows_max: int,
    bytes_max: int,
) -> tuple[list[Candidate], int | None]:
    """The next messages by arrival, from behind `after` to `until`, that nobody of `busy` has.

    `busy` are keys; with `stop_at_busy` nothing behind one of them is chosen either, and it is the
    second value.  Those whose time is over are left out.  No packet is read.
    """
    chosen: list[Candidate] = []
    size = 0
    for key, packet_bytes, expires_at_s in _by_arrival(
        db, "key, length(packet) + part_bytes, expires_at_s", queue_id, after, until
    ):
        if key in busy:
            if stop_at_busy:
                return chosen, key
            continue
        if expires_at_s is not None and expires_at_s < now_s:
            continue
        if len(chosen) == rows_max or (chosen and size + packet_bytes > bytes_max):
            break
        chosen.append((key, packet_bytes))
        size += packet_bytes
    return chosen, None


def reserve(
    db: sqlite3.Connection,
    reader_queue_id: int,
    candidates: Sequence[int],
    *,
    at_s: int,
    arrival: int | None,
) -> tuple[int, Sequence[int]]:
    """Give the messages at these keys the next positions; the first of them, and who got one.

    Those that are not there any more get none.  `arrival`: what arrived up to it is done with.
    """
    found = candidates
    listed = key_list(candidates)
    among = "FROM message WHERE key IN (SELECT value FROM json_each(?))"
    (count,) = db.execute(f"SELECT count(*) {among}", (listed,)).fetchone()
    if count != len(candidates):
        there = {key for (key,) in db.execute(f"SELECT key {among}", (listed,))}
        found = [key for key in candidates if key in there]
    (first,) = db.execute(
        "SELECT next_number FROM reader_queue WHERE id = ?", (reader_queue_id,)
    ).fetchone()
    base = reader_queue_id << POSITION_BITS | first
    # One statement for all: the key of an element of a list is its index.
    db.execute(
        "INSERT INTO reservation (id, key) SELECT ? + key, value FROM json_each(?)",
        (base, key_list(found)),
    )
    db.execute(
        "UPDATE reader_queue SET next_number = ?, arrival = coalesce(?, arrival),"
        " reserved_at_s = ? WHERE id = ?",
        (first + len(found), arrival, at_s, reader_queue_id),
    )
    return first, found


class Measured(NamedTuple):
    end: int
    messages: int
    bytes: int
    is_cut: bool  # a limit ended it


def measure(
    db: sqlite3.Connection,
    reader_queue_id: int,
    after: int,
    *,
    rows_max: int,
    bytes_max: int,
) -> Measured:
    """How far the limits reach into what is reserved behind a position.

    Without a limit of bytes (0) no message is looked at.
    """
    first, last = _range(reader_queue_id, after, POSITION_MAX)
    size = count = 0
    end = after
    for position, packet_bytes in db.execute(
        f"SELECT r.id & {POSITION_MAX}, length(m.packet) + m.part_bytes FROM reservation r"
        " LEFT JOIN message m ON m.key = r.key WHERE r.id BETWEEN ? AND ? ORDER BY r.id",
        (first, last),
    ):
        if count == rows_max or (count and bytes_max and size + (packet_bytes or 0) > bytes_max):
            return Measured(end, count, size, True)
        end = position
        count += 1
        size += packet_bytes or 0
    return Measured(end, count, size, False)


# Reading.


def reserved_page(
    db: sqlite3.Connection,
    reader_queue_id: int,
    after: int,
    until: int,
    *,
    rows_max: int,
    bytes_max: int,
    prefix: int | None = None,
) -> tuple[list[Plain], bool]:
    """The next messages of a reserved range, and whether there may be more of it.

    `prefix`: only so many bytes of each packet.
    """
    rows = db.execute(
        f"SELECT r.id & {POSITION_MAX}, m.key, {_MESSAGE_COLUMNS}, {_packet(prefix)}"
        " FROM reservation r JOIN message m ON m.key = r.key WHERE r.id BETWEEN ? AND ?"
        " ORDER BY r.id LIMIT ?",
        (*_range(reader_queue_id, after, until), rows_max),
    )
    return _take(db, _in_chunks(rows, bytes_max), rows_max, bytes_max, prefix)


def arrival_page(
    db: sqlite3.Connection,
    queue_id: int,
    after: int,
    until: int,
    *,
    rows_max: int,
    bytes_max: int,
    prefix: int | None = None,
) -> tuple[list[Plain], bool]:
    """The next messages of a queue by arrival, whoever has them; and whether there may be more."""
    columns = f"key & {ARRIVAL_MAX}, key, {_MESSAGE_COLUMNS}, {_packet(prefix)}"
    scans = _scans(db, columns, queue_id, after, until)
    if len(scans) == 1:
        return _take(db, _in_chunks(scans[0], bytes_max), rows_max, bytes_max, prefix)
    rows = ([row] for row in _merged(scans, key_at=1))
    return _take(db, rows, rows_max, bytes_max, prefix)


class QuickPage(NamedTuple):
    """The next messages of a range in columns, where nothing but their packets marks them."""

    positions: list[int]
    lookup_ids: list[int]
    arrived_at_ms: list[int]
    checksums: list[int | None]
    packets: list[bytes]
    may_be_more: bool


#: Whether a message has anything that few have; then its row is read as a whole.
_RARE = (
    "m.abort_count OR m.move_count OR m.expires_at_s IS NOT NULL OR m.reason IS NOT NULL"
    " OR m.part_id IS NOT NULL"
)
_QUICK_COLUMNS = f"m.key & {LOOKUP_MASK}, m.arrived_at_ms, m.checksum, {_RARE}, m.packet"


def quick_reserved_page(
    db: sqlite3.Connection,
    reader_queue_id: int,
    after: int,
    until: int,
    *,
    rows_max: int,
    bytes_max: int,
) -> QuickPage | None:
    """What `reserved_page` finds, in half the time; None: some of it is rare, or there is none."""
    rows = db.execute(
        f"SELECT r.id & {POSITION_MAX}, {_QUICK_COLUMNS}"
        " FROM reservation r JOIN message m ON m.key = r.key WHERE r.id BETWEEN ? AND ?"
        " ORDER BY r.id LIMIT ?",
        (*_range(reader_queue_id, after, until), rows_max),
    )
    return _quick(rows, rows_max, bytes_max)


def quick_arrival_page(
    db: sqlite3.Connection,
    queue_id: int,
    after: int,
    until: int,
    *,
    rows_max: int,
    bytes_max: int,
) -> QuickPage | None:
    """What `arrival_page` finds, likewise; None also where messages have several priorities."""
    scans = _scans(db, f"m.key & {ARRIVAL_MAX}, {_QUICK_COLUMNS}", queue_id, after, until)
    if len(scans) != 1:
        return None
    page = _quick(scans[0], rows_max, bytes_max)
    if page is None or len(page.packets) <= rows_max:
        return page
    return QuickPage(
        page.positions[:rows_max],
        page.lookup_ids[:rows_max],
        page.arrived_at_ms[:rows_max],
        page.checksums[:rows_max],
        page.packets[:rows_max],
        True,
    )


def _quick(rows: sqlite3.Cursor, rows_max: int, bytes_max: int) -> QuickPage | None:
    found = QuickPage([], [], [], [], [], False)
    size = 0
    for chunk in _in_chunks(rows, bytes_max):
        positions, lookup_ids, arrived_at_ms, checksums, rare, packets = zip(*chunk, strict=True)
        if any(rare):
            return None
        end = len(chunk)
        added = sum(map(len, packets))
        if size + added >= bytes_max:
            sizes = accumulate(map(len, packets), initial=size)
            end = next(at for at, before in enumerate(sizes) if before >= bytes_max)
        found.positions.extend(positions[:end])
        found.lookup_ids.extend(lookup_ids[:end])
        found.arrived_at_ms.extend(arrived_at_ms[:end])
        found.checksums.extend(checksums[:end])
        found.packets.extend(packets[:end])
        size += added
        if size >= bytes_max or len(found.packets) >= rows_max:
            return found._replace(may_be_more=True)
    return found if found.packets else None


_CHUNK_ROWS = 1024


def _in_chunks(rows: sqlite3.Cursor, bytes_max: int) -> Iterator[list[Plain]]:
    """As many rows at once as are about to fit; a few at first."""
    size = count = 0
    wanted = 16
    while chunk := rows.fetchmany(wanted):
        yield chunk
        count += len(chunk)
        size += sum([len(row[-1] or b"") for row in chunk])
        left = max(bytes_max - size, 0) * count // max(size, 1)
        wanted = max(min(left, _CHUNK_ROWS, 4 * wanted), 1)


def _packet(prefix: int | None) -> str:
    return "m.packet" if prefix is None else f"substr(m.packet, 1, {prefix})"


def _take(
    db: sqlite3.Connection,
    chunks: Iterator[list[Plain]],
    rows_max: int,
    bytes_max: int,
    prefix: int | None,
) -> tuple[list[Plain], bool]:
    """One always."""
    found: list[Plain] = []
    size = 0
    for chunk in chunks:
        if any(row[-2] is not None for row in chunk):
            chunk = [_with_part(db, row, prefix) for row in chunk]
        added = sum(len(row[-1]) for row in chunk)
        if size + added < bytes_max and len(found) + len(chunk) < rows_max:
            found += chunk
            size += added
            continue
        for row in chunk:
            found.append(row)
            size += len(row[-1])
            if size >= bytes_max or len(found) == rows_max:
                return found, True
    return found, False


def _with_part(db: sqlite3.Connection, row: Plain, prefix: int | None) -> Plain:
    if row[-2] is None or (prefix is not None and len(row[-1]) >= prefix):
        return row
    whole = shared_parts.whole(db, RangeRow._make(row))
    return whole._replace(packet=whole.packet[:prefix])


def bounds(db: sqlite3.Connection, queue_id: int, after: int, until: int) -> tuple[int, int] | None:
    """The first and the last arrival in a range; None: it is empty."""
    firsts, lasts = [], []
    for level in _levels(db, queue_id):
        low, high = message_key(queue_id, level, after), message_key(queue_id, level, until)
        first, last = db.execute(
            "SELECT (SELECT min(key) FROM message WHERE key > ?1 AND key <= ?2),"
            " (SELECT max(key) FROM message WHERE key > ?1 AND key <= ?2)",
            (low, high),
        ).fetchone()
        if first is not None:
            firsts.append(arrival_of(first))
            lasts.append(arrival_of(last))
    return (min(firsts), max(lasts)) if firsts else None


def arrivals(db: sqlite3.Connection, queue_id: int, after: int, until: int) -> list[int]:
    """All arrivals in a range, sorted.  Reads the head of each row."""
    found: list[int] = []
    for level in _levels(db, queue_id):
        low, high = message_key(queue_id, level, after), message_key(queue_id, level, until)
        found += [
            key & ARRIVAL_MAX
            for (key,) in db.execute(
                "SELECT key FROM message WHERE key > ? AND key <= ? ORDER BY key", (low, high)
            )
        ]
    found.sort()
    return found


def _by_arrival(
    db: sqlite3.Connection, columns: str, queue_id: int, after: int, until: int
) -> Iterator[Plain]:
    """Rows of a queue from behind `after` to `until`; the first column is their key."""
    return _merged(_scans(db, columns, queue_id, after, until), key_at=0)


def _scans(
    db: sqlite3.Connection, columns: str, queue_id: int, after: int, until: int
) -> list[sqlite3.Cursor]:
    """One for each level that there is."""
    statement = f"SELECT {columns} FROM message m WHERE key > ? AND key <= ? ORDER BY key"
    return [
        db.execute(
            statement,
            (message_key(queue_id, level, after), message_key(queue_id, level, until)),
        )
        for level in _levels(db, queue_id)
    ]


def _merged(scans: list[sqlite3.Cursor], *, key_at: int) -> Iterator[Plain]:
    if len(scans) == 1:
        return iter(scans[0])
    in_order: Callable[[Plain], int] = lambda row: row[key_at] & ARRIVAL_MAX  # noqa: E731
    return merge(*scans, key=in_order)


def _levels(db: sqlite3.Connection, queue_id: int) -> list[int]:
    """Those at which the queue holds something: from one to the next by a seek."""
    found: list[int] = []
    first, last = queue_range(queue_id)
    while True:
        (key,) = db.execute(
            "SELECT min(key) FROM message WHERE key BETWEEN ? AND ?", (first, last)
        ).fetchone()
        if key is None:
            return found
        found.append(level_of(key))
        first = level_range(queue_id, level_of(key))[1] + 1


# Consuming.


class HeldRow(NamedTuple):
    """A reservation with its message; without one (packet None) where that is not there."""

    position: int
    key: int
    checksum: int | None
    part_id: int | None
    packet: bytes | None


def held_page(
    db: sqlite3.Connection,
    reader_queue_id: int,
    after: int,
    until: int,
    *,
    rows_max: int,
    bytes_max: int,
    with_packets: bool,
) -> list[HeldRow]:
    """The next reservations of a range; one at least, where there is one."""
    packet = "m.packet" if with_packets else "NULL"
    rows = db.execute(
        f"SELECT r.id & {POSITION_MAX}, r.key, m.checksum, m.part_id, {packet} FROM reservation r"
        " LEFT JOIN message m ON m.key = r.key WHERE r.id BETWEEN ? AND ? ORDER BY r.id LIMIT ?",
        (*_range(reader_queue_id, after, until), rows_max),
    )
    if not with_packets:
        return list(map(HeldRow._make, rows))
    found: list[HeldRow] = []
    size = 0
    for chunk in _in_chunks(rows, bytes_max):
        for row in map(HeldRow._make, chunk):
            if row.part_id is not None and row.packet is not None:
                row = shared_parts.whole(db, row)
            found.append(row)
            size += len(row.packet or b"")
            if size >= bytes_max:
                return found
    return found


def consumed(
    db: sqlite3.Connection, reader_queue_id: int, position: int, messages: int, size: int
) -> None:
    """A reader is done with all up to a position: so many messages more, and bytes of packets."""
    _delete_up_to(db, reader_queue_id, position)
    db.execute(
        "UPDATE reader_queue SET position = max(position, ?),"
        " consumed_messages = consumed_messages + ?, consumed_bytes = consumed_bytes + ?"
        " WHERE id = ?",
        (position, messages, size, reader_queue_id),
    )


def release(db: sqlite3.Connection, reader_queue_id: int) -> None:
    """What was reserved is so no more; the positions are used up."""
    _delete_up_to(db, reader_queue_id, POSITION_MAX)
    db.execute(
        "UPDATE reader_queue SET position = next_number - 1 WHERE id = ?", (reader_queue_id,)
    )


def raise_fence(db: sqlite3.Connection, reader_id: int) -> int:
    """Whoever has opened the reader before can do nothing any more; the new fence."""
    fence = counters.reserve(db, "fence", 1)
    db.execute("UPDATE reader SET fence = ? WHERE id = ?", (fence, reader_id))
    return fence


def _delete_up_to(db: sqlite3.Connection, reader_queue_id: int, position: int) -> None:
    db.execute(
        "DELETE FROM reservation WHERE id BETWEEN ? AND ?",
        _range(reader_queue_id, -1, position),
    )


def _range(reader_queue_id: int, after: int, until: int) -> tuple[int, int]:
    base = reader_queue_id << POSITION_BITS
    return base + after + 1, base + min(until, POSITION_MAX)
