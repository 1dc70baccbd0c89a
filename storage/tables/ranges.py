"""Pages of messages in a range: by arrival, or by the positions that a reader has reserved.

A range is one scan of adjacent rows or, if a queue has messages of several priorities, one scan per
priority, merged.  This module only reads.

Most messages consist of their packets only: `quick_page` reads those in columns, in half the time.
"""

import sqlite3
from array import array
from collections.abc import Callable, Iterator
from heapq import merge
from itertools import accumulate
from typing import Any, NamedTuple
from zlib import crc32

from storage.tables import shared_parts
from storage.tables.keys import (
    ARRIVAL_MAX,
    LOOKUP_MASK,
    arrival_of,
    level_of,
    level_range,
    message_key,
    queue_range,
)
from storage.tables.runs import POSITION_MAX, HeldRun, held_runs, position_range
from storage.vault import open_row, vault_of

#: Runs of which the positions are computed one by one.
FEW_RUNS = 64

#: Rows that are fetched together: their memory is reused for the next chunk.
CHUNK_ROWS = 256
FIRST_ROWS = 16


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
    seal: bytes | None  # as in `MessageRow`
    part_id: int | None  # as in `MessageRow`
    packet: bytes

    @property
    def table(self) -> str:
        return "message"


#: A `RangeRow` without field names: creating the NamedTuple costs as much as reading the row.
Plain = tuple[Any, ...]

_MESSAGE_COLUMNS = (
    "m.arrived_at_ms, m.expires_at_s, m.reason, m.abort_count, m.move_count, m.checksum, m.seal,"
    " m.part_id"
)


class Scan(NamedTuple):
    """A source of messages in order: a part of a statement, and its arguments."""

    position: str
    source: str
    arguments: tuple[int, ...]
    held: tuple[int, int, int] | None = None  # reader's queue, and the positions of the range

    def run(self, db: sqlite3.Connection, columns: str, rows_max: int = -1) -> sqlite3.Cursor:
        return db.execute(f"SELECT {columns} {self.source} LIMIT {rows_max}", self.arguments)


def arrived(db: sqlite3.Connection, queue_id: int, after: int, until: int) -> list[Scan]:
    """Return the scans of a queue, one per priority in use; reserved messages are included."""
    return [
        Scan(
            f"m.key & {ARRIVAL_MAX}",
            "FROM message m WHERE m.key > ? AND m.key <= ? ORDER BY m.key",
            (message_key(queue_id, level, after), message_key(queue_id, level, until)),
        )
        for level in _levels(db, queue_id)
    ]


def reserved(reader_queue_id: int, after: int, until: int) -> list[Scan]:
    """Return the scan of the messages that a reader has reserved in a queue."""
    return [held(reader_queue_id, after, until)]


def held(reader_queue_id: int, after: int, until: int) -> Scan:
    """Return the scan of the messages that a reader has reserved and that exist.

    For each run of the range SQLite scans its keys; the first and the last run may begin before the
    range, and end behind it.
    """
    low, high = position_range(reader_queue_id, after, until)
    return Scan(
        f"m.key - r.key + (r.id & {POSITION_MAX})",
        "FROM reservation r CROSS JOIN message m WHERE r.id BETWEEN ?1 AND coalesce("
        "(SELECT min(id) FROM reservation WHERE id BETWEEN ?2 AND ?3), ?2)"
        " AND m.key BETWEEN r.key - min(r.messages - 1, r.id - ?1) AND r.key - max(r.id - ?2, 0)"
        " ORDER BY r.id, m.key",
        (low, high, low | POSITION_MAX),
        (reader_queue_id, after, until),
    )


# Reading by rows.


def page(
    db: sqlite3.Connection,
    scans: list[Scan],
    *,
    rows_max: int,
    bytes_max: int,
    prefix: int | None = None,
) -> tuple[list[Plain], bool]:
    """Return the next messages of a range, at least one, and whether there may be more.

    With `prefix`, only that many bytes of each packet are read.
    """
    # An encrypted packet must be read to its end.
    is_whole = prefix is None or vault_of(db) is not None
    packet = "m.packet" if is_whole else f"substr(m.packet, 1, {prefix})"
    found = [
        scan.run(db, f"{scan.position}, m.key, {_MESSAGE_COLUMNS}, {packet}") for scan in scans
    ]
    chunks = (
        in_chunks(found[0], bytes_max)
        if len(found) == 1
        else ([row] for row in _merged(found, key_at=1))
    )
    return _take(db, chunks, rows_max, bytes_max, prefix)


def by_arrival(
    db: sqlite3.Connection, columns: str, queue_id: int, after: int, until: int
) -> Iterator[Plain]:
    """Yield rows of a queue after arrival `after` up to `until`; the first column is the key."""
    scans = arrived(db, queue_id, after, until)
    return _merged([scan.run(db, columns) for scan in scans], key_at=0)


def in_chunks(rows: sqlite3.Cursor, bytes_max: int) -> Iterator[list[Plain]]:
    """Yield chunks of rows that are likely to fit, few at first.  The last column is the packet."""
    size = count = 0
    while chunk := rows.fetchmany(_likely_rows(count, size, bytes_max)):
        yield chunk
        count += len(chunk)
        size += sum([len(row[-1] or b"") for row in chunk])


def _likely_rows(count: int, size: int, bytes_max: int) -> int:
    """Return how many rows to fetch after `count` rows of `size` bytes."""
    if not count:
        return FIRST_ROWS
    left = max(bytes_max - size, 0) * count // max(size, 1)
    return max(min(left, CHUNK_ROWS, 4 * count), 1)


def _take(
    db: sqlite3.Connection,
    chunks: Iterator[list[Plain]],
    rows_max: int,
    bytes_max: int,
    prefix: int | None,
) -> tuple[list[Plain], bool]:
    found: list[Plain] = []
    size = 0
    for chunk in chunks:
        if any(row[-2] is not None or row[-3] is not None for row in chunk):
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
    has_enough = row[-2] is None or (prefix is not None and len(row[-1]) >= prefix)
    if has_enough and row[-3] is None:
        return row
    whole = shared_parts.whole(db, RangeRow._make(row))
    return whole._replace(packet=whole.packet[:prefix])


def _merged(scans: list[sqlite3.Cursor], *, key_at: int) -> Iterator[Plain]:
    if len(scans) == 1:
        return iter(scans[0])
    in_order: Callable[[Plain], int] = lambda row: row[key_at] & ARRIVAL_MAX  # noqa: E731
    return merge(*scans, key=in_order)


# Reading by columns.


class QuickPage(NamedTuple):
    """The next messages of a range in columns, if they have no properties outside their packets."""

    positions: "array[int]"
    lookup_ids: "array[int]"
    arrived_at_ms: "array[int]"
    offsets: "array[int]"  # packet i is packets[offsets[i]:offsets[i + 1]]
    packets: bytes
    may_be_more: bool


#: 0 for a message with any rare property: it is then read as a complete row.
_LOOKUP_ID = (
    "CASE WHEN m.abort_count OR m.move_count OR m.expires_at_s IS NOT NULL OR m.reason IS NOT NULL"
    f" OR m.part_id IS NOT NULL THEN 0 ELSE m.key & {LOOKUP_MASK} END"
)


def quick_page(
    db: sqlite3.Connection, scans: list[Scan], *, rows_max: int, bytes_max: int
) -> QuickPage | None:
    """Return the messages that `page` finds, with all packets as stored.

    Returns None if a message has a rare property or is damaged, if there are several priorities, or
    if the range is empty.
    """
    if len(scans) != 1:
        return None
    scan = scans[0]
    # Before the rows: what is consumed in between is missing, and the others keep their positions.
    runs = None if scan.held is None else held_runs(db, *scan.held, runs_max=FEW_RUNS)
    # Each column costs as much as a fifth of the rest of the row: positions follow from the runs,
    # if these are few.
    positions = [scan.position] if runs is not None and len(runs) == FEW_RUNS else []
    has_vault = vault_of(db) is not None
    seals = ["m.key", "m.seal"] if has_vault else []
    columns = [*positions, _LOOKUP_ID, "m.arrived_at_ms", "m.checksum", *seals, "m.packet"]
    found = _Columns()
    rows = scan.run(db, ", ".join(columns))
    while chunk := rows.fetchmany(found.likely_rows(bytes_max)):
        if has_vault:
            chunk = [_opened(db, row) for row in chunk]
        *first, lookup_ids, arrived_at_ms, checksums, packets = zip(*chunk, strict=True)
        if not all(lookup_ids) or tuple(map(crc32, packets)) != checksums:
            return None
        sizes = list(map(len, packets))
        end = _end(sizes, rows_max - found.count, bytes_max - found.bytes)
        if end < len(sizes):
            lookup_ids, arrived_at_ms, packets = (
                lookup_ids[:end],
                arrived_at_ms[:end],
                packets[:end],
            )
            sizes = sizes[:end]
        found.add(first[0][:end] if first else (), lookup_ids, arrived_at_ms)
        found.add_packets(packets, sizes)
        if found.bytes >= bytes_max or found.count >= rows_max:
            return found.page(runs, may_be_more=True)
    return found.page(runs, may_be_more=False) if found.count else None


def _positions(runs: list[HeldRun], lookup_ids: "array[int]") -> "array[int] | None":
    """Return the positions of messages in the order of the runs; None if others are there."""
    found, at, count = array("q"), 0, len(lookup_ids)
    for run in runs:
        if at == count:
            break
        first, last = run.places
        size = min(count - at, last - first + 1)
        if (lookup_ids[at], lookup_ids[at + size - 1]) == (first, first + size - 1):
            found.extend(range(run.position, run.position + size))
            at += size
            continue
        while at < count and first <= lookup_ids[at] <= last:  # others of the run are gone
            found.append(run.position + lookup_ids[at] - first)
            at += 1
    return found if at == count else None


def _opened(db: sqlite3.Connection, row: Plain) -> Plain:
    """Return a row of `quick_page` without key and seal, with its decrypted packet."""
    *others, checksum, key, seal, packet = row
    packet, checksum = open_row(db, "message", key, packet, seal, checksum)
    return (*others, checksum, packet)


def _end(sizes: list[int], rows_max: int, bytes_max: int) -> int:
    """Return how many packets fit; the one that fills the page is its last."""
    if sum(sizes) < bytes_max:
        return min(rows_max, len(sizes))
    fills = next(at for at, size in enumerate(accumulate(sizes), 1) if size >= bytes_max)
    return min(rows_max, fills)


class _Columns:
    """A page under construction.  Packets are joined in groups as they are read."""

    def __init__(self) -> None:
        self.positions, self.lookup_ids, self.arrived_at_ms = array("q"), array("q"), array("q")
        self.sizes = array("i")
        self.packets: list[bytes] = []
        self.bytes = 0

    @property
    def count(self) -> int:
        return len(self.lookup_ids)

    def add(
        self,
        positions: tuple[int, ...],
        lookup_ids: tuple[int, ...],
        arrived_at_ms: tuple[int, ...],
    ) -> None:
        self.positions.extend(positions)
        self.lookup_ids.extend(lookup_ids)
        self.arrived_at_ms.extend(arrived_at_ms)

    def add_packets(self, packets: tuple[bytes, ...], sizes: list[int]) -> None:
        joined = b"".join(packets)
        self.sizes.extend(sizes)
        self.packets.append(joined)
        self.bytes += len(joined)

    def likely_rows(self, bytes_max: int) -> int:
        """Return how many rows to fetch next: those that are likely to fit, few at first."""
        return _likely_rows(self.count, self.bytes, bytes_max)

    def page(self, runs: list[HeldRun] | None, *, may_be_more: bool) -> QuickPage | None:
        """Return the page; `runs` are those of a reader, and None if it reads by arrival."""
        if self.positions:
            positions = self.positions
        elif runs is None:
            positions = _arrivals(self.lookup_ids)
        elif (found := _positions(runs, self.lookup_ids)) is not None:
            positions = found
        else:
            return None
        return QuickPage(
            positions,
            self.lookup_ids,
            self.arrived_at_ms,
            array("i", accumulate(self.sizes, initial=0)),
            b"".join(self.packets),
            may_be_more,
        )


def _arrivals(lookup_ids: "array[int]") -> "array[int]":
    """Return the arrival numbers: all are masked in one operation, as one large integer."""
    masks = array("q", [ARRIVAL_MAX]).tobytes() * len(lookup_ids)
    both = int.from_bytes(lookup_ids.tobytes(), "little") & int.from_bytes(masks, "little")
    return array("q", both.to_bytes(len(masks), "little"))


# Extent of a range.


def bounds(db: sqlite3.Connection, queue_id: int, after: int, until: int) -> tuple[int, int] | None:
    """Return the first and the last arrival in a range; None if it is empty."""
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
    """Return all arrivals in a range, sorted.  Reads the head of each row."""
    scans = arrived(db, queue_id, after, until)
    return sorted(row[0] for scan in scans for row in scan.run(db, scan.position))


def count(db: sqlite3.Connection, queue_id: int, after: int, until: int, most: int) -> int:
    """Count the messages in a range of arrival, at most `most` of them."""
    found = 0
    for scan in arrived(db, queue_id, after, until):
        found += db.execute(
            f"SELECT count(*) FROM (SELECT 1 {scan.source} LIMIT {int(most - found)})",
            scan.arguments,
        ).fetchone()[0]
    return found


def _levels(db: sqlite3.Connection, queue_id: int) -> list[int]:
    """Return the levels on which the queue has messages; finds each by a seek."""
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
