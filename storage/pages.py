"""What the two tables of messages have in common: bounded pages, totals, lists of keys."""

import sqlite3
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, TypeVar

from storage.keys import LOOKUP_BITS

PAGE_ROWS_MAX = 256
PAGE_BYTES_MAX = 16 * 1024 * 1024

Row = TypeVar("Row", bound="tuple[Any, ...]")


class Totals(NamedTuple):
    messages: int
    bytes: int


EMPTY = Totals(0, 0)


def take(cursor: sqlite3.Cursor, make: Callable[[Iterable[Any]], Row], bytes_max: int) -> list[Row]:
    """The cursor's rows, up to and with the one that brings the packets to `bytes_max`.

    The packet stands last in a row.
    """
    rows, size = [], 0
    for row in map(make, cursor):
        rows.append(row)
        size += len(row[-1])
        if size >= bytes_max:
            break
    cursor.close()
    return rows


def totals_between(db: sqlite3.Connection, table: str, first: int, last: int) -> Totals:
    """Reads the head of each row in the range of keys, not its packet."""
    count, size = db.execute(
        f"SELECT count(*), coalesce(sum(length(packet)), 0) FROM {table} WHERE key BETWEEN ? AND ?",
        (first, last),
    ).fetchone()
    return Totals(count, size)


def totals_by_queue(db: sqlite3.Connection, table: str) -> dict[int, Totals]:
    """Totals by queue id, of those that hold something."""
    rows = db.execute(
        f"SELECT key >> {LOOKUP_BITS}, count(*), sum(length(packet)) FROM {table} GROUP BY 1"
    )
    return {queue_id: Totals(count, size) for queue_id, count, size in rows}


def key_list(keys: Sequence[int]) -> str:
    """A list of integers as one parameter, for `json_each`."""
    return f"[{','.join(map(str, keys))}]"
