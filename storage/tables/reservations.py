"""Tables `reader`, `reader_queue`, `reservation`: ranges of queues that stay fixed for a reader.

Each reader numbers the messages of a queue separately.  A reservation assigns the next number, the
*position*, to a message, in the commit that records its reader; docs/decisions/0019.

A row of table `reservation` is a run of messages with successive positions and successive keys.  It
names the last one of both, so that the beginning of a run is consumed by lowering its number of
messages.  The row id consists of the id of the reader's queue and the position: the runs of a range
are one scan.  `ranges.py` reads pages of their messages.
"""

import sqlite3
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate, chain
from typing import Any, NamedTuple
from zlib import crc32

from storage.tables import counters, many_rows, shared_parts
from storage.tables.keys import arrival_of
from storage.tables.pages import key_list
from storage.tables.ranges import Scan, by_arrival, held, in_chunks
from storage.tables.runs import (
    POSITION_BITS,
    POSITION_MAX,
    HeldRun,
    Run,
    held_runs,
    position_range,
    runs_of,
)
from storage.vault import vault_of


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


#: Runs that are looked at one by one.
_FEW = 64

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


def runs(db: sqlite3.Connection) -> list[tuple[int, Run]]:
    """Return reader's queue and run of all reservations, in the order of positions."""
    rows = db.execute(
        f"SELECT id >> {POSITION_BITS}, key - messages + 1, key FROM reservation ORDER BY id"
    )
    return [(reader_queue_id, Run(first, last)) for reader_queue_id, first, last in rows]


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


class Reserved(NamedTuple):
    """The result of a reservation."""

    position: int  # of the first message
    runs: list[Run]
    missing: list[Run]  # messages that do not exist any more


def reserve(
    db: sqlite3.Connection,
    reader_queue_id: int,
    candidates: Sequence[Run],
    *,
    at_s: int,
    arrival: int | None,
) -> Reserved:
    """Assign the next positions to the messages of these runs of one queue.

    Messages that no longer exist get none.  Those that arrived up to `arrival` are not offered to
    the reader again.
    """
    (first,) = db.execute(
        "SELECT next_number FROM reader_queue WHERE id = ?", (reader_queue_id,)
    ).fetchone()
    found, missing = _present(db, candidates)
    rows: list[tuple[int, int, int]] = []
    base = reader_queue_id << POSITION_BITS
    following = first
    for first_key, last_key in found:
        count = last_key - first_key + 1
        following += count
        rows.append((base | following - 1, last_key, count))
    many_rows.insert(db, "reservation (id, key, messages)", rows, 0)
    db.execute(
        "UPDATE reader_queue SET next_number = ?, arrival = coalesce(?, arrival),"
        " reserved_at_s = ? WHERE id = ?",
        (following, arrival, at_s, reader_queue_id),
    )
    return Reserved(first, found, missing)


def are_there(db: sqlite3.Connection, runs: Iterable[Run]) -> bool:
    """Return whether all messages of these runs exist."""
    counted = "SELECT count(*) FROM message WHERE key BETWEEN ? AND ?"
    # They do if there are as many rows as numbers from the first key to the last.
    return all(db.execute(counted, run).fetchone() == (run.messages,) for run in runs)


def _present(db: sqlite3.Connection, candidates: Sequence[Run]) -> tuple[list[Run], list[Run]]:
    """Return the messages of these runs that exist, in the same order, and those that do not."""
    if len(candidates) < _FEW and are_there(db, candidates):
        return list(candidates), []
    keys = list(chain.from_iterable([range(first, last + 1) for first, last in candidates]))
    among = "FROM message WHERE key IN (SELECT value FROM json_each(?))"
    listed = (key_list(keys),)
    if db.execute(f"SELECT count(*) {among}", listed).fetchone() == (len(keys),):
        return list(candidates), []
    there = {key for (key,) in db.execute(f"SELECT key {among}", listed)}
    return (
        runs_of(key for key in keys if key in there),
        runs_of(key for key in keys if key not in there),
    )


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
    size = count = 0
    end = after
    for run in held_runs(db, reader_queue_id, after, POSITION_MAX):
        if not bytes_max:
            taken = min(run.last - run.first + 1, rows_max - count)
            size += bytes_of(db, [Run(run.first, run.first + taken - 1)])
            count += taken
            end = run.position + taken - 1 if taken else end
            if end < run.end:
                return Measured(end, count, size, True)
            continue
        sizes: dict[int, int] = dict(
            db.execute(
                "SELECT key, length(packet) + part_bytes FROM message WHERE key BETWEEN ? AND ?"
                " LIMIT ?",
                (run.first, run.last, rows_max - count + 1),
            )
        )
        for key in range(run.first, run.last + 1):
            packet_bytes = sizes.get(key, 0)
            is_free = count == 0 and one_always
            if count == rows_max or (not is_free and size + packet_bytes > bytes_max):
                return Measured(end, count, size, True)
            end = run.position + key - run.first
            count += 1
            size += packet_bytes
    return Measured(end, count, size, False)


def bytes_of(db: sqlite3.Connection, runs: Iterable[Run]) -> int:
    """Return the bytes of the packets of the messages of these runs that exist."""
    found = 0
    for run in runs:
        (size,) = db.execute(
            "SELECT sum(length(packet) + part_bytes) FROM message WHERE key BETWEEN ? AND ?", run
        ).fetchone()
        found += size or 0
    return found


# Consuming.


class HeldRow(NamedTuple):
    """A reserved message."""

    key: int
    checksum: int | None
    seal: bytes | None
    part_id: int | None
    packet: bytes

    @property
    def table(self) -> str:
        return "message"


class HeldPage(NamedTuple):
    """The next messages of a range, in columns, with complete packets."""

    end: int  # the position of the last one, or of the range
    keys: list[int]
    checksums: list[int | None]
    packets: list[bytes]
    gone: list[Run]  # messages of the range up to `end` that do not exist


def held_page(
    db: sqlite3.Connection,
    reader_queue_id: int,
    after: int,
    until: int,
    *,
    rows_max: int,
    bytes_max: int,
) -> HeldPage:
    """Return the next messages of a range, at least one if there is any."""
    scan = held(reader_queue_id, after, until)
    (keys, checksums, packets), is_cut = _rows(db, scan, rows_max, bytes_max)
    end, gone = _end_of(db, scan, keys, is_cut=is_cut)
    return HeldPage(end, keys, checksums, packets, gone)


def noted_page(
    db: sqlite3.Connection,
    reader_queue_id: int,
    after: int,
    until: int,
    *,
    rows_max: int,
    bytes_max: int,
    note: Callable[[Sequence[bytes]], None],
) -> HeldPage | None:
    """Return what `held_page` returns, without checksums and packets, in half the time.

    `note` gets the packets of some messages at a time, while the processor has them in its cache;
    their checksums are correct.  Returns None if a packet is not complete in its row, or damaged.
    """
    if vault_of(db):
        return None
    scan = held(reader_queue_id, after, until)
    checksum = (
        f"CASE WHEN m.part_id IS NULL AND m.seal IS NULL THEN m.checksum ELSE {_ELSEWHERE} END"
    )
    keys: list[int] = []
    size, is_cut = 0, False
    cursor = scan.run(db, f"m.key, {checksum}, m.packet", rows_max)
    for chunk in in_chunks(cursor, bytes_max):
        more_keys, checksums, packets = zip(*chunk, strict=True)
        if tuple(map(crc32, packets)) != checksums:
            return None
        added = sum(map(len, packets))
        if size + added >= bytes_max:
            fill = accumulate(map(len, packets), initial=size)
            end = next(at for at, all_ in enumerate(fill) if all_ >= bytes_max)
            more_keys, packets, is_cut = more_keys[:end], packets[:end], True
        keys += more_keys
        size += added
        note(packets)
        if is_cut:
            break
    end, gone = _end_of(db, scan, keys, is_cut=is_cut or len(keys) == rows_max)
    return HeldPage(end, keys, [], [], gone)


def _end_of(
    db: sqlite3.Connection, scan: Scan, keys: list[int], *, is_cut: bool
) -> tuple[int, list[Run]]:
    """Return the end of the page with these keys, and its messages that do not exist."""
    assert scan.held is not None
    reader_queue_id, after, until = scan.held
    runs = held_runs(db, reader_queue_id, after, until, runs_max=len(keys) + 1 if keys else -1)
    if not keys:
        return until, [Run(run.first, run.last) for run in runs]
    if is_cut:
        is_known = any(run.first <= keys[-1] <= run.last for run in runs)
    else:
        is_known = runs[-1].end == until
    if not is_known:  # more runs than rows: messages are gone
        runs = held_runs(db, reader_queue_id, after, until)
    return _until(runs, keys, None if is_cut else until)


#: Keys, checksums and packets of messages.
_Columns = tuple[list[int], list[int | None], list[bytes]]

#: In place of the checksum of a packet that is not complete in its row.
_ELSEWHERE = -1


def _rows(
    db: sqlite3.Connection, scan: Scan, rows_max: int, bytes_max: int
) -> tuple[_Columns, bool]:
    """Return the columns of rows with complete packets, and whether a limit was reached."""
    keys: list[int] = []
    checksums: list[int | None] = []
    packets: list[bytes] = []
    size = 0
    for row in scan.run(db, "m.key, m.checksum, m.seal, m.part_id, m.packet", rows_max):
        whole = shared_parts.whole(db, HeldRow._make(row))
        keys.append(whole.key)
        checksums.append(whole.checksum)
        packets.append(whole.packet)
        size += len(whole.packet)
        if size >= bytes_max:
            return (keys, checksums, packets), True
    return (keys, checksums, packets), len(keys) == rows_max


def _until(runs: Sequence[HeldRun], keys: Sequence[int], end: int | None) -> tuple[int, list[Run]]:
    """Return the position of the last of these keys of a range, or `end`, and the keys up to it
    that the range has besides."""
    first = runs[0]
    if keys[0] == first.first and keys[-1] == first.first + len(keys) - 1 <= first.last:
        position = first.position + len(keys) - 1
        if position == end or end is None:
            return position, []
    last = keys[-1]
    if end is None:
        covered = 0
        for position, first_key, last_key in runs:
            if first_key <= last <= last_key:
                if covered + last - first_key + 1 == len(keys):
                    return position + last - first_key, []
                break
            covered += last_key - first_key + 1
    elif sum([last_key - first_key for _, first_key, last_key in runs]) + len(runs) == len(keys):
        return end, []
    there = set(keys)
    gone: list[Run] = []
    for run in runs:
        is_last = run.first <= last <= run.last
        stop = last if is_last and end is None else run.last
        gone += runs_of(key for key in range(run.first, stop + 1) if key not in there)
        if is_last and end is None:
            return run.position + last - run.first, gone
    assert end is not None
    return end, gone


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
    low, high = position_range(reader_queue_id, -1, position)
    db.execute("DELETE FROM reservation WHERE id BETWEEN ? AND ?", (low, high))
    # The run that begins before that position keeps the messages behind it.
    db.execute(
        "UPDATE reservation SET messages = id - ?1 WHERE id - messages < ?1 AND id ="
        " (SELECT min(id) FROM reservation WHERE id > ?1 AND id <= ?2)",
        (high, low | POSITION_MAX),
    )
