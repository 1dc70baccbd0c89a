"""The tally: how many rows of messages each queue must have, kept in the commit that changes them.

SQLite cannot show that another program has deleted a row, and it counts rows by reading them all.
So each commit that inserts or deletes messages records the figures of each queue that it changed
(`Figures`), in its block of events (column `tally`): no page more is written.  Table `tally` has
the same for the queues that changed before the block in its column `block`, so that some hundred
blocks are read at most.  A start takes its counts from here, however long the queues are.  Later
the rows are counted and compared: `differences`.

The functions of the tables report their changes to the tally of the connection; other connections
have none.  Rows that are to be deleted are looked at before: a row that another program has deleted
is not counted out a second time.
"""

import sqlite3
import struct
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from storage.tables import counters
from storage.tables.keys import (
    ARRIVAL_BITS,
    LEVEL_MAX,
    LOOKUP_BITS,
    OUTGOING_TRANSACTIONAL_LEVEL,
    level_of,
    queue_range,
)
from storage.tables.pages import Totals

#: The counter of the block before which table `tally` has everything.
COUNTER = "tally"
#: The same of schema 40, whose tally had neither bytes nor transactional rows.
COUNTER_OF_ROWS = "tally_of_rows"
#: Blocks after which the table is brought up to date.
BLOCKS_MAX = 512

#: The tables: number, column of the keys, bytes of a row, and whether keys begin with the queue.
TABLES = {
    "message": (0, "key", "length(packet) + part_bytes", True),
    "outgoing": (1, "key", "length(packet) + part_bytes", True),
    "awaiting": (2, "number", "length(packet) + part_bytes", False),
    "delayed": (3, "number", "bytes", False),
}
#: Tables with the queue in a column; `delayed` is counted as a whole.
WITH_QUEUE_COLUMN = frozenset(("awaiting",))
_TABLE_BITS = 16
_QUEUE_MASK = (1 << _TABLE_BITS) - 1
_ENTRY = struct.Struct("<IQIQQ")  # place, and the figures
_ENTRY_OF_ROWS = struct.Struct("<IQI")  # of schema 40: place, rows, digest
_MASK = (1 << 32) - 1


class Figures(NamedTuple):
    """The rows of one queue in one table, or changes of them."""

    rows: int
    digest: int  # the sum of their keys, modulo 2**32
    bytes: int  # of their packets
    transactional: int  # rows of `outgoing` that are part of the queue's sequence

    def plus(self, other: "Figures") -> "Figures":
        return Figures(
            self.rows + other.rows,
            self.digest + other.digest & _MASK,
            self.bytes + other.bytes,
            self.transactional + other.transactional,
        )

    def minus(self, other: "Figures") -> "Figures":
        return Figures(
            self.rows - other.rows,
            self.digest - other.digest & _MASK,
            self.bytes - other.bytes,
            self.transactional - other.transactional,
        )


NONE = Figures(0, 0, 0, 0)

Counts = dict[int, Figures]  # by place


class Difference(NamedTuple):
    """A queue with other rows than its tally."""

    table: str
    queue_id: int  # 0: of a table that is counted as a whole
    figures: Figures  # present rows minus expected ones: below 0 if rows have vanished

    @property
    def rows(self) -> int:
        return self.figures.rows

    @property
    def digest(self) -> int:
        return self.figures.digest


def place_of(table: str, queue_id: int) -> int:
    return TABLES[table][0] << _TABLE_BITS | queue_id


class Known(NamedTuple):
    """The rows that a database should have, and the places that say so."""

    counts: Counts
    since: int  # the block up to which table `tally` is complete
    in_blocks: set[int]  # places with entries in later blocks


class Saved(NamedTuple):
    """The changes of a transaction up to some moment."""

    changes: Counts
    unwritten: set[int]
    new_block: int
    trimmed: int


class Tally:
    """The tally of an open database; used by the thread of its writing connection."""

    def __init__(self, known: "Known", block: int) -> None:
        """`known` is the state after the newest event block, `block`."""
        self._counts = known.counts
        self._stored_at = known.since  # table `tally` is complete up to this block
        self._in_blocks = known.in_blocks  # places that have changed since
        self._block = block
        self.begin()

    # A commit.

    def begin(self) -> None:
        """Begin a transaction; what an earlier one has left, which was rolled back, is dropped."""
        self._changes: Counts = {}
        self._unwritten: set[int] = set()
        self._new_block = self._block
        self._trimmed = 0
        self._is_stored = False

    def saved(self) -> "Saved":
        """Return the changes so far, for `restore`."""
        return Saved(dict(self._changes), set(self._unwritten), self._new_block, self._trimmed)

    def restore(self, saved: "Saved") -> None:
        """Drop the changes since `saved`: a part of the transaction was rolled back.

        Its event block is gone too: the next one gets the same number.
        """
        self._changes, self._unwritten, self._new_block, self._trimmed = saved

    def add(self, place: int, change: Figures) -> None:
        """Count rows in; a change below 0 counts them out."""
        before = self._changes.get(place) or self._counts.get(place, NONE)
        self._changes[place] = before.plus(change)
        self._unwritten.add(place)

    def for_block(self) -> bytes | None:
        """Return the entries for the next event block of this commit; None if there are none."""
        return b"".join([_entry(each, self._changes[each]) for each in self._unwritten]) or None

    def written_in(self, block: int) -> None:
        """Note that the entries are in this block."""
        self._new_block, self._unwritten = block, set()

    def trimmed(self, block: int) -> None:
        """Note that this transaction deletes event blocks up to `block`, which have entries."""
        self._trimmed = max(self._trimmed, block)

    def finish(self, db: sqlite3.Connection) -> None:
        """Write, before the commit, what no block of events has; now and then everything."""
        due = self._trimmed > self._stored_at or self._new_block - self._stored_at >= BLOCKS_MAX
        places = self._unwritten
        if due:
            places = places | self._in_blocks | self._changes.keys()
        if not places and not due:
            return
        counts = self._counts | self._changes
        db.executemany(
            _STORE,
            [(place, *counts[place], self._new_block) for place in places],
        )
        if due:
            counters.set_following(db, COUNTER, self._new_block)
            self._is_stored = True
        self._unwritten = set()

    def committed(self) -> None:
        """Keep the changes of a transaction that is durable."""
        self._counts |= self._changes
        self._block = self._new_block
        if self._is_stored:
            self._stored_at, self._in_blocks = self._block, set()
        else:
            self._in_blocks |= self._changes.keys()


_STORE = (
    "INSERT OR REPLACE INTO tally (place, row_count, digest, bytes, transactional, block)"
    " VALUES (?, ?, ?, ?, ?, ?)"
)


def _entry(place: int, counted: Figures) -> bytes:
    rows, digest, size, transactional = counted
    return _ENTRY.pack(place, max(rows, 0), digest, max(size, 0), max(transactional, 0))


# For the functions of the tables.


def tally_of(db: sqlite3.Connection) -> Tally | None:
    """Return the tally of this connection; None if it keeps none."""
    return getattr(db, "tally", None)


def inserted(db: sqlite3.Connection, table: str, keys: Sequence[int], sizes: Sequence[int]) -> None:
    """Count rows that were inserted, by their keys and the bytes of their packets."""
    tally = tally_of(db)
    if tally is None or not keys:
        return
    number, _, _, by_queue = TABLES[table]
    first, last = min(keys), max(keys)
    levels = first >> ARRIVAL_BITS, last >> ARRIVAL_BITS
    if not by_queue or levels[0] == levels[1]:  # nearly always: of one queue, and of one level
        queue_id = first >> LOOKUP_BITS if by_queue else 0
        transactional = len(keys) if by_queue and _is_transactional(table, first) else 0
        change = Figures(len(keys), sum(keys), sum(sizes), transactional)
        tally.add(number << _TABLE_BITS | queue_id, change)
        return
    for key, size in zip(keys, sizes, strict=True):
        change = Figures(1, key, size, int(_is_transactional(table, key)))
        tally.add(number << _TABLE_BITS | key >> LOOKUP_BITS, change)


def removed(db: sqlite3.Connection, table: str, key: int, size: int) -> None:
    """Count a row out that exists and is deleted next, of a table whose keys begin with the queue.

    `size`: the bytes of its packet.
    """
    leave(db, table, key >> LOOKUP_BITS, Figures(1, key, size, _is_transactional(table, key)))


def leave(db: sqlite3.Connection, table: str, queue_id: int, gone: Figures) -> None:
    """Count rows of a queue out that exist and are deleted next."""
    tally = tally_of(db)
    if tally is not None:
        tally.add(place_of(table, queue_id), NONE.minus(gone))


def arrived(db: sqlite3.Connection, table: str, among: str, values: Sequence[object]) -> None:
    """Count the rows that a condition selects, which are new."""
    tally = tally_of(db)
    if tally is not None:
        for place, figures in _selected(db, table, among, values):
            tally.add(place, figures)


def leaving(db: sqlite3.Connection, table: str, among: str, values: Sequence[object]) -> Totals:
    """Count the rows that a condition selects, which are deleted next; return their totals."""
    tally = tally_of(db)
    messages = size = 0
    for place, figures in _selected(db, table, among, values):
        if tally is not None:
            tally.add(place, NONE.minus(figures))
        messages += figures.rows
        size += figures.bytes
    return Totals(messages, size)


def _selected(
    db: sqlite3.Connection, table: str, among: str, values: Sequence[object]
) -> list[tuple[int, Figures]]:
    """Return the figures of rows by place.  Reads the head of each row, not its packet."""
    number, column, _, by_queue = TABLES[table]
    if table in WITH_QUEUE_COLUMN:
        return list(_figures_by_column(db, table, among, values).items())
    figures = _figures_of(table)
    if not by_queue:
        row = db.execute(f"SELECT {figures} FROM {table} WHERE {among}", values).fetchone()
        return [(number << _TABLE_BITS, _made(row))] if row[0] else []
    first, last, *row = db.execute(
        f"SELECT min({column}), max({column}), {figures} FROM {table} WHERE {among}", values
    ).fetchone()
    if first is None:
        return []
    if first >> LOOKUP_BITS == last >> LOOKUP_BITS:
        return [(number << _TABLE_BITS | first >> LOOKUP_BITS, _made(row))]
    rows = db.execute(
        f"SELECT {column} >> {LOOKUP_BITS}, {figures} FROM {table} WHERE {among} GROUP BY 1", values
    )
    return [(number << _TABLE_BITS | queue_id, _made(row)) for queue_id, *row in rows]


def _figures_by_column(
    db: sqlite3.Connection, table: str, among: str = "true", values: Sequence[object] = ()
) -> Counts:
    """Return the figures of rows by place, of a table with the queue in a column."""
    number, column, size, _ = TABLES[table]
    rows = db.execute(
        # Materialized: SQLite would sort the packets, to take their lengths afterwards.
        f"WITH each AS MATERIALIZED (SELECT queue_id, {column} & {_MASK} AS digest, {size} AS size"
        f" FROM {table} WHERE {among})"
        " SELECT queue_id, count(*), sum(digest), sum(size), 0 FROM each GROUP BY queue_id",
        values,
    )
    return {number << _TABLE_BITS | queue_id: _made(row) for queue_id, *row in rows}


def _figures_of(table: str) -> str:
    """Return the columns of a query for the figures of all selected rows."""
    _, column, size, _ = TABLES[table]
    transactional = "0"
    if table == "outgoing":
        level = f"{column} >> {ARRIVAL_BITS} & {LEVEL_MAX}"
        transactional = f"sum({level} = {OUTGOING_TRANSACTIONAL_LEVEL})"
    return f"count(*), sum({column} & {_MASK}), sum({size}), {transactional}"


def _made(row: Iterable[int | None]) -> Figures:
    rows, digest, size, transactional = (value or 0 for value in row)
    return Figures(rows, digest & _MASK, size, transactional)


def _is_transactional(table: str, key: int) -> bool:
    return table == "outgoing" and level_of(key) == OUTGOING_TRANSACTIONAL_LEVEL


# Reading.


def load(db: sqlite3.Connection) -> Tally:
    """Return the tally of a database, with what it should contain.

    A database without one, from an earlier version or a repair, gets that of its present rows: its
    next start reads them all, once.  Schema 41 counted all rows of `awaiting` together: the next
    start reads those.
    """
    known, block = expected(db), _newest_block(db)
    if known is not None and not _lacks_queues(known.counts):
        return Tally(known, block)
    db.execute("BEGIN IMMEDIATE")
    if known is None:
        counts = _counts_of_rows(db)
    else:
        counts = known.counts
        _split(counts, "awaiting", _figures_by_column(db, "awaiting"))
    db.execute("DELETE FROM tally")
    db.executemany(_STORE, [(place, *each, block) for place, each in counts.items()])
    db.execute("DELETE FROM counter WHERE name = ?", (COUNTER_OF_ROWS,))
    counters.set_following(db, COUNTER, block)
    db.execute("COMMIT")
    return Tally(Known(counts, block, set()), block)


def _lacks_queues(counts: Counts) -> bool:
    """Return whether a table with queues was counted as a whole."""
    numbers = {TABLES[table][0] for table in WITH_QUEUE_COLUMN}
    divided = {place >> _TABLE_BITS for place in counts if place & _QUEUE_MASK}
    return any(counts.get(each << _TABLE_BITS, NONE) != NONE for each in numbers - divided)


def _split(counts: Counts, table: str, present: Counts) -> None:
    """Replace the figures of a whole table by those of each queue, which are `present`.

    What the rows lack stays at queue 0: they have vanished, and `differences` shows it.
    """
    lacking = counts.pop(place_of(table, 0), NONE)
    for figures in present.values():
        lacking = lacking.minus(figures)
    counts |= present
    if lacking != NONE:
        counts[place_of(table, 0)] = lacking


def totals(db: sqlite3.Connection, table: str) -> dict[int, Figures]:
    """Return the figures of a table by queue, of those that have rows.  For a start."""
    known = expected(db)
    assert known is not None, "the storage has loaded it"
    number = TABLES[table][0]
    return {
        place & _QUEUE_MASK: figures
        for place, figures in known.counts.items()
        if place >> _TABLE_BITS == number and figures.rows > 0
    }


def expected(db: sqlite3.Connection) -> Known | None:
    """Return the rows that the database should have; None if it does not know."""
    known = _expected(db, COUNTER, "row_count, digest, bytes, transactional", _ENTRY)
    if known is None:
        return None
    counts = {place: Figures._make(each) for place, each in known[0].items()}
    return Known(counts, known[1], known[2])


def _expected(
    db: sqlite3.Connection, counter: str, columns: str, entry: struct.Struct
) -> tuple[dict[int, tuple[int, ...]], int, set[int]] | None:
    since = db.execute("SELECT value FROM counter WHERE name = ?", (counter,)).fetchone()
    if since is None:
        return None
    counts: dict[int, tuple[int, ...]] = {}
    blocks: dict[int, int] = {}
    in_blocks: set[int] = set()
    for place, block, *figures in db.execute(f"SELECT place, block, {columns} FROM tally"):
        counts[place], blocks[place] = tuple(figures), block
    later = db.execute("SELECT id, tally FROM event_block WHERE id > ? ORDER BY id", since)
    for block, entries in later:
        for place, *figures in entry.iter_unpack(entries or b""):
            if block > blocks.get(place, -1):
                counts[place] = tuple(figures)
            in_blocks.add(place)
    return counts, since[0], in_blocks


def _counts_of_rows(db: sqlite3.Connection) -> Counts:
    """Count the rows.  Numbers that schema 40 has recorded stay: `differences` compares them."""
    counts = counted(db)
    before = _expected(db, COUNTER_OF_ROWS, "row_count, digest", _ENTRY_OF_ROWS)
    if before is not None:
        apart = {
            place: counts.pop(place)
            for place in list(counts)
            for table in WITH_QUEUE_COLUMN
            if place >> _TABLE_BITS == TABLES[table][0]
        }
        for place, (rows, digest) in before[0].items():
            counts[place] = counts.get(place, NONE)._replace(rows=rows, digest=digest)
        for place in counts.keys() - before[0].keys():
            counts[place] = counts[place]._replace(rows=0, digest=0)
        for table in WITH_QUEUE_COLUMN:
            whole = place_of(table, 0)
            size = sum(each.bytes for each in apart.values())
            counts[whole] = counts.get(whole, NONE)._replace(bytes=size)
            _split(counts, table, apart)
    return counts


def counted(db: sqlite3.Connection) -> Counts:
    """Count the rows of all tables: reads the head of each row, not its packet."""
    counts: Counts = {}
    for table, (_, column, _, by_queue) in TABLES.items():
        if table in WITH_QUEUE_COLUMN:
            counts |= _figures_by_column(db, table)
            continue
        figures = f"SELECT {_figures_of(table)} FROM {table}"
        if not by_queue:
            counts[place_of(table, 0)] = _made(db.execute(figures).fetchone())
            continue
        last = -1
        while True:
            (key,) = db.execute(
                f"SELECT min({column}) FROM {table} WHERE {column} > ?", (last,)
            ).fetchone()
            if key is None:
                break
            queue_id = key >> LOOKUP_BITS
            first, last = queue_range(queue_id)
            row = db.execute(f"{figures} WHERE {column} BETWEEN ? AND ?", (first, last)).fetchone()
            counts[place_of(table, queue_id)] = _made(row)
    return counts


def differences(db: sqlite3.Connection) -> list[Difference]:
    """Compare the rows with the tally, both of one state of the database.

    Takes about a second for two million rows; some milliseconds for an empty database.
    """
    db.execute("BEGIN")
    try:
        wanted, present = expected(db), counted(db)
    finally:
        db.execute("COMMIT")
    if wanted is None:
        return []
    names = {number: table for table, (number, *_) in TABLES.items()}
    found = []
    for place in sorted(wanted.counts.keys() | present.keys()):
        figures, other = present.get(place, NONE), wanted.counts.get(place, NONE)
        if figures != other:
            table, queue_id = names[place >> _TABLE_BITS], place & _QUEUE_MASK
            found.append(Difference(table, queue_id, figures.minus(other)))
    return found


def accept(db: sqlite3.Connection, found: Iterable[Difference]) -> None:
    """Let the tally agree with the present rows, as a unit of the writer: they are not reported
    again.
    """
    tally = tally_of(db)
    assert tally is not None
    for each in found:
        tally.add(place_of(each.table, each.queue_id), each.figures)


def _newest_block(db: sqlite3.Connection) -> int:
    (block,) = db.execute("SELECT coalesce(max(id), 0) FROM event_block").fetchone()
    return int(block)
