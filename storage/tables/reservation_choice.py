"""The choice of the next messages of a queue for a reader of a pipeline.

Most often these are successive keys without a lifetime: SQLite looks at some thousand rows and
returns one, with their number, ends and bytes.  Only stretches with a gap, with a message that
another reader has, or with a limit in them are read row by row.
"""

import sqlite3
from collections.abc import Iterable
from itertools import islice
from typing import NamedTuple, Protocol

from storage.tables.keys import LOOKUP_MASK
from storage.tables.ranges import CHUNK_ROWS, Scan, arrived, by_arrival
from storage.tables.runs import Run, runs_of

#: Rows of which SQLite returns the figures together.
STRETCH_ROWS = 2048

_COLUMNS = "key, length(packet) + part_bytes, expires_at_s, arrived_at_ms"


class Busy(Protocol):
    """Lookup ids that are not to be chosen."""

    def __contains__(self, lookup_id: int, /) -> bool: ...

    def touches(self, first: int, last: int, /) -> bool:
        """Return whether any lookup id from `first` to `last` is busy."""

    def first_free(self, lookup_id: int, /) -> int:
        """Return the first lookup id from this one on that is not busy."""


class Limits(NamedTuple):
    """The messages that a choice may have."""

    rows_max: int
    bytes_max: int
    now_s: int  # of our own clock: messages that have expired are left out
    until_ms: int | None = None  # of arrival; None: no limit
    stop_at_busy: bool = False  # end before the first busy message, instead of leaving it out


class Chosen(NamedTuple):
    """Messages for a reservation, in the order of their arrival."""

    runs: list[Run]
    messages: int
    bytes: int  # of their packets
    stop: int | None  # the key of the busy message at which the choice ended
    sizes: dict[int, int] | None  # bytes of each packet by key, if they were requested


class _Choice:
    """A choice under construction."""

    def __init__(self, limits: Limits, busy: Busy, *, with_sizes: bool) -> None:
        self._limits = limits
        self._busy = busy
        self._runs: list[Run] = []
        self._keys: list[int] = []  # chosen ones behind the runs
        self._sizes: dict[int, int] | None = {} if with_sizes else None
        self.messages = self.bytes = 0
        self.stop: int | None = None

    def chosen(self) -> Chosen:
        self._join_keys()
        return Chosen(self._runs, self.messages, self.bytes, self.stop, self._sizes)

    def _join_keys(self) -> None:
        keys, self._keys = self._keys, []
        for run in runs_of(keys):
            self._join(run)

    def _join(self, run: Run) -> None:
        if self._runs and self._runs[-1].last + 1 == run.first:
            self._runs[-1] = Run(self._runs[-1].first, run.last)
        else:
            self._runs.append(run)

    def add(self, run: Run, size: int) -> None:
        """Add successive keys, whose packets have `size` bytes."""
        self._join_keys()
        self._join(run)
        self.messages += run.messages
        self.bytes += size

    def add_keys(self, keys: list[int], size: int) -> None:
        """Add keys with gaps between them, whose packets have `size` bytes."""
        self._keys += keys
        self.messages += len(keys)
        self.bytes += size

    def add_rows(self, rows: Iterable[tuple[int, int, int | None, int]]) -> bool:
        """Add those of these rows that may be chosen; return False if the choice is complete."""
        limits, busy = self._limits, self._busy
        for key, packet_bytes, expires_at_s, arrived_at_ms in rows:
            if limits.until_ms is not None and arrived_at_ms > limits.until_ms:
                continue
            if key & LOOKUP_MASK in busy:
                if limits.stop_at_busy:
                    self.stop = key
                    return False
                continue
            if expires_at_s is not None and expires_at_s < limits.now_s:
                continue
            if self.messages == limits.rows_max or (
                self.messages and self.bytes + packet_bytes > limits.bytes_max
            ):
                return False
            self._keys.append(key)
            self.messages += 1
            self.bytes += packet_bytes
            if self._sizes is not None:
                self._sizes[key] = packet_bytes
        return True

    def fits(self, run: Run, size: int, expiring: int, latest_ms: int) -> bool:
        """Return whether all messages of a stretch may be chosen."""
        limits = self._limits
        return (
            not expiring
            and self.bytes + size <= limits.bytes_max
            and (limits.until_ms is None or latest_ms <= limits.until_ms)
            and not self._busy.touches(run.first & LOOKUP_MASK, run.last & LOOKUP_MASK)
        )


def choose(
    db: sqlite3.Connection,
    queue_id: int,
    limits: Limits,
    busy: Busy,
    *,
    after: int,
    until: int,
    with_sizes: bool = False,
) -> Chosen:
    """Return the next messages by arrival, after number `after` up to `until`, that are not busy.

    At least one is returned if there is one, `with_sizes` with the sizes of all.  No packet is
    read.
    """
    choice = _Choice(limits, busy, with_sizes=with_sizes)
    scans = arrived(db, queue_id, after, until)
    if len(scans) == 1 and not with_sizes:
        _choose_stretches(db, scans[0], choice, limits, busy)
        return choice.chosen()
    rows = by_arrival(db, _COLUMNS, queue_id, after, until)
    while choice.messages < limits.rows_max and (chunk := list(islice(rows, CHUNK_ROWS))):
        if not choice.add_rows(chunk):
            break
    return choice.chosen()


def _choose_stretches(
    db: sqlite3.Connection, scan: Scan, choice: _Choice, limits: Limits, busy: Busy
) -> None:
    """Choose from messages of one priority: `scan` has their keys behind the first argument."""
    behind, last_key = scan.arguments
    while choice.messages < limits.rows_max:
        if not limits.stop_at_busy:
            place = behind & LOOKUP_MASK
            behind += busy.first_free(place + 1) - place - 1
        rows_max = min(STRETCH_ROWS, limits.rows_max - choice.messages)
        count, first, last, size, expiring, latest_ms = db.execute(
            "SELECT count(*), min(key), max(key), sum(size), count(expires_at_s),"
            " max(arrived_at_ms) FROM (SELECT key, length(packet) + part_bytes AS size,"
            " expires_at_s, arrived_at_ms FROM message WHERE key > ? AND key <= ?"
            " ORDER BY key LIMIT ?)",
            (behind, last_key, rows_max),
        ).fetchone()
        if not count:
            return
        run = Run(first, last)
        if choice.fits(run, size, expiring, latest_ms):
            if run.messages == count:
                choice.add(run, size)
            else:
                keys = "SELECT key FROM message WHERE key > ? AND key <= ? ORDER BY key"
                choice.add_keys([key for (key,) in db.execute(keys, (behind, last))], size)
        else:
            rows = db.execute(
                f"SELECT {_COLUMNS} FROM message WHERE key > ? AND key <= ? ORDER BY key",
                (behind, last),
            )
            if not choice.add_rows(rows):
                return
        if count < rows_max:
            return
        behind = last
