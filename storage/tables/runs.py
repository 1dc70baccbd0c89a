"""Runs: messages with successive keys, and their positions in the reservations of a reader.

Table `reservation`: `reservations.py`.
"""

import sqlite3
from collections.abc import Iterable
from typing import NamedTuple

from storage.tables.keys import LOOKUP_MASK

#: Row ids of table `reservation`: the id of a reader's queue, and the position of the last message.
POSITION_BITS = 44
POSITION_MAX = (1 << POSITION_BITS) - 1


class Run(NamedTuple):
    """Messages of a queue with successive keys."""

    first: int  # the key of the first one
    last: int

    @property
    def messages(self) -> int:
        return self.last - self.first + 1


class HeldRun(NamedTuple):
    """A part of a reservation: a run, and the position of its first message."""

    position: int
    first: int  # the key of the first message
    last: int

    @property
    def messages(self) -> int:
        return self.last - self.first + 1

    @property
    def end(self) -> int:
        """The position of its last message."""
        return self.position + self.last - self.first

    @property
    def places(self) -> tuple[int, int]:
        """The lookup ids of its first and its last message."""
        return self.first & LOOKUP_MASK, self.last & LOOKUP_MASK


def runs_of(keys: Iterable[int]) -> list[Run]:
    """Return keys, or lookup ids, as runs: each that follows the one before it extends its run."""
    found: list[Run] = []
    first = last = -1
    for key in keys:
        if key != last + 1 or last < 0:
            if last >= 0:
                found.append(Run(first, last))
            first = key
        last = key
    if last >= 0:
        found.append(Run(first, last))
    return found


def position_range(reader_queue_id: int, after: int, until: int) -> tuple[int, int]:
    """Return the row ids of reservations after one position and up to another."""
    base = reader_queue_id << POSITION_BITS
    return base + after + 1, base + min(until, POSITION_MAX)


def held_runs(
    db: sqlite3.Connection,
    reader_queue_id: int,
    after: int,
    until: int,
    *,
    runs_max: int = -1,
) -> list[HeldRun]:
    """Return the parts of reservations in a range, in the order of positions; -1: all of them."""
    low, high = position_range(reader_queue_id, after, until)
    rows = db.execute(
        f"SELECT (id & {POSITION_MAX}) - messages + 1, key - messages + 1, key FROM reservation"
        " WHERE id BETWEEN ?1 AND coalesce((SELECT min(id) FROM reservation"
        " WHERE id BETWEEN ?2 AND ?3), ?2) ORDER BY id LIMIT ?4",
        (low, high, low | POSITION_MAX, runs_max),
    )
    found = list(map(HeldRun._make, rows))
    if found and found[0].position <= after:
        position, first, last = found[0]
        found[0] = HeldRun(after + 1, first + after + 1 - position, last)
    if found and found[-1].end > until:
        position, first, last = found.pop()
        if position <= until:
            found.append(HeldRun(position, first, first + until - position))
    return found
