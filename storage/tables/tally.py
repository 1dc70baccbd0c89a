"""The tally: how many rows of messages each queue must have, kept in the commit that changes them.

SQLite cannot show that another program has deleted a row.  So each commit that inserts or deletes
messages records the number of rows of each queue that it changed, and the sum of their keys, in its
block of events (column `tally`): no page more is written.  Table `tally` has the same for the
queues that changed before the block in its column `block`, so that some hundred blocks are read
at most.  Later the rows are counted and compared: `differences`.

The functions of the tables report their changes to the tally of the connection; other connections
have none.  Deletions are counted by SQLite: if it has deleted other rows than expected, the commit
is undone, and written again with a look at each row first (`Recount`).
"""

import sqlite3
import struct
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from storage.tables import counters
from storage.tables.keys import LOOKUP_BITS, queue_range

#: The counter of the block before which table `tally` has everything.
COUNTER = "tally"
#: Blocks after which the table is brought up to date.
BLOCKS_MAX = 512
#: Commits that look at each row first, after one that had to be written again.
CAREFUL_COMMITS = 64

#: The tables, with the column of their keys, and whether they are counted by queue.
TABLES = {
    "message": (0, "key", True),
    "outgoing": (1, "key", True),
    "awaiting": (2, "number", False),
    "delayed": (3, "number", False),
}
_TABLE_BITS = 16
_ENTRY = struct.Struct("<IQI")  # place, rows, digest
_MASK = (1 << 32) - 1

#: By place: rows, and the sum of their keys modulo 2**32.
Counts = dict[int, tuple[int, int]]


class Recount(Exception):
    """Rows that were to be deleted were not there: the commit has to be written again."""


class Difference(NamedTuple):
    """A queue with other rows than its tally."""

    table: str
    queue_id: int  # 0: of a table that is counted as a whole
    rows: int  # present rows minus expected ones: below 0 if rows have vanished
    digest: int  # the same of the sums of keys, modulo 2**32


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
        self._careful = 0
        self.begin()

    @property
    def is_careful(self) -> bool:
        """Whether deletions look at the rows first."""
        return self._careful > 0

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

    def changed(self, table: str, keys: Sequence[int], sign: int) -> None:
        """Count rows that were inserted (`sign` 1) or deleted (-1)."""
        if not keys:
            return
        number, _, by_queue = TABLES[table]
        first = min(keys) >> LOOKUP_BITS if by_queue else 0
        if not by_queue or first == max(keys) >> LOOKUP_BITS:
            self._add(number << _TABLE_BITS | first, sign * len(keys), sign * sum(keys))
            return
        for key in keys:
            self._add(number << _TABLE_BITS | key >> LOOKUP_BITS, sign, sign * key)

    def changed_range(self, table: str, first: int, last: int) -> None:
        """Count the deletion of all rows of a range of keys of one queue."""
        count = last - first + 1
        place = place_of(table, first >> LOOKUP_BITS)
        self._add(place, -count, -((first + last) * count // 2))

    def _add(self, place: int, rows: int, digest: int) -> None:
        before = self._changes.get(place) or self._counts.get(place, (0, 0))
        self._changes[place] = before[0] + rows, (before[1] + digest) & _MASK
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
            "INSERT OR REPLACE INTO tally (place, row_count, digest, block) VALUES (?, ?, ?, ?)",
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
        self._careful = max(0, self._careful - 1)

    def be_careful(self) -> None:
        self._careful = CAREFUL_COMMITS

    def adjust(self, table: str, queue_id: int, rows: int, digest: int) -> None:
        """Accept a difference, in a unit: it is not reported again."""
        self._add(place_of(table, queue_id), rows, digest)


def _entry(place: int, counted: tuple[int, int]) -> bytes:
    return _ENTRY.pack(place, max(counted[0], 0), counted[1])


# For the functions of the tables.


def tally_of(db: sqlite3.Connection) -> Tally | None:
    """Return the tally of this connection; None if it keeps none."""
    return getattr(db, "tally", None)


def inserted(db: sqlite3.Connection, table: str, keys: Sequence[int]) -> None:
    """Count rows that were inserted."""
    if (tally := tally_of(db)) is not None:
        tally.changed(table, keys, 1)


def to_delete(
    db: sqlite3.Connection, table: str, keys: Sequence[int], among: str, listed: Sequence[object]
) -> Sequence[int]:
    """Return the keys that a deletion will delete: those given, or those that exist."""
    tally = tally_of(db)
    if tally is None or not tally.is_careful:
        return keys
    column = TABLES[table][1]
    return [key for (key,) in db.execute(f"SELECT {column} FROM {table} WHERE {among}", listed)]


def deleted(db: sqlite3.Connection, table: str, keys: Sequence[int], count: int) -> None:
    """Count rows that were deleted: `count`, of `keys`.  Raises Recount."""
    tally = tally_of(db)
    if tally is None:
        return
    if count != len(keys):
        raise Recount
    tally.changed(table, keys, -1)


def delete_ranges(db: sqlite3.Connection, table: str, ranges: Sequence[tuple[int, int]]) -> int:
    """Delete rows by ranges of keys, both ends included; return their number.  Raises Recount."""
    tally = tally_of(db)
    delete = f"DELETE FROM {table} WHERE key BETWEEN ? AND ?"
    if tally is not None and tally.is_careful:
        # One after the other: ranges may overlap, and a row is counted once.
        count = 0
        for each in ranges:
            leaving(db, table, *each)
            count += db.execute(delete, each).rowcount
        return count
    count = db.executemany(delete, ranges).rowcount
    if tally is not None:
        if count != sum(last - first + 1 for first, last in ranges):
            raise Recount
        for first, last in ranges:
            tally.changed_range(table, first, last)
    return count


def leaving(db: sqlite3.Connection, table: str, first: int, last: int) -> None:
    """Count rows of a range of keys that are deleted next; keys may be missing in it."""
    if (tally := tally_of(db)) is not None:
        keys = db.execute(f"SELECT key FROM {table} WHERE key BETWEEN ? AND ?", (first, last))
        tally.changed(table, [key for (key,) in keys], -1)


# Reading.


def load(db: sqlite3.Connection) -> Tally:
    """Return the tally of a database, with what it should contain.

    A database without one, from an earlier version or a repair, gets that of its present rows.
    """
    known, block = expected(db), _newest_block(db)
    if known is None:
        db.execute("BEGIN IMMEDIATE")
        known = Known(counted(db), block, set())
        db.execute("DELETE FROM tally")
        db.executemany(
            "INSERT INTO tally (place, row_count, digest, block) VALUES (?, ?, ?, ?)",
            [(place, *each, block) for place, each in known.counts.items()],
        )
        counters.set_following(db, COUNTER, block)
        db.execute("COMMIT")
    return Tally(known, block)


def expected(db: sqlite3.Connection) -> Known | None:
    """Return the rows that the database should have; None if it does not know."""
    since = db.execute("SELECT value FROM counter WHERE name = ?", (COUNTER,)).fetchone()
    if since is None:
        return None
    counts: Counts = {}
    blocks: dict[int, int] = {}
    in_blocks: set[int] = set()
    for place, rows, digest, block in db.execute("SELECT * FROM tally"):
        counts[place], blocks[place] = (rows, digest), block
    later = db.execute("SELECT id, tally FROM event_block WHERE id > ? ORDER BY id", since)
    for block, entries in later:
        for place, rows, digest in _ENTRY.iter_unpack(entries or b""):
            if block > blocks.get(place, -1):
                counts[place] = rows, digest
            in_blocks.add(place)
    return Known(counts, since[0], in_blocks)


def counted(db: sqlite3.Connection) -> Counts:
    """Count the rows of all tables: reads the head of each row, not its packet."""
    counts: Counts = {}
    for table, (_, column, by_queue) in TABLES.items():
        figures = f"SELECT count(*), coalesce(sum({column} & {_MASK}), 0) FROM {table}"
        if not by_queue:
            rows, digest = db.execute(figures).fetchone()
            counts[place_of(table, 0)] = rows, digest & _MASK
            continue
        last = -1
        while True:
            (key,) = db.execute(f"SELECT min(key) FROM {table} WHERE key > ?", (last,)).fetchone()
            if key is None:
                break
            queue_id = key >> LOOKUP_BITS
            first, last = queue_range(queue_id)
            rows, digest = db.execute(
                f"{figures} WHERE key BETWEEN ? AND ?", (first, last)
            ).fetchone()
            counts[place_of(table, queue_id)] = rows, digest & _MASK
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
        rows, digest = present.get(place, (0, 0))
        other_rows, other_digest = wanted.counts.get(place, (0, 0))
        if (rows, digest) != (other_rows, other_digest):
            queue_id = place & ((1 << _TABLE_BITS) - 1)
            found.append(
                Difference(
                    names[place >> _TABLE_BITS],
                    queue_id,
                    rows - other_rows,
                    (digest - other_digest) & _MASK,
                )
            )
    return found


def accept(db: sqlite3.Connection, found: Iterable[Difference]) -> None:
    """Let the tally agree with the present rows, as a unit of the writer."""
    tally = tally_of(db)
    assert tally is not None
    for each in found:
        tally.adjust(each.table, each.queue_id, each.rows, each.digest)


def _newest_block(db: sqlite3.Connection) -> int:
    (block,) = db.execute("SELECT coalesce(max(id), 0) FROM event_block").fetchone()
    return int(block)
