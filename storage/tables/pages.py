"""Shared functions of the two tables of messages: bounded pages, totals, lists of keys."""

import sqlite3
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, TypeVar

from storage.tables import shared_parts

PAGE_ROWS_MAX = 256
PAGE_BYTES_MAX = 16 * 1024 * 1024

Row = TypeVar("Row", bound="tuple[Any, ...]")


class Totals(NamedTuple):
    messages: int
    bytes: int


EMPTY = Totals(0, 0)


def take(cursor: sqlite3.Cursor, make: Callable[[Iterable[Any]], Row], bytes_max: int) -> list[Row]:
    """Return the cursor's rows, up to and with the one that brings the packets to `bytes_max`.

    The packet is the last value of a row, preceded by its seal and the id of the part that
    completes it.
    """
    rows, size = [], 0
    for row in map(make, cursor):
        if row[-2] is not None or row[-3] is not None:
            row = shared_parts.whole(cursor.connection, row)
        rows.append(row)
        size += len(row[-1])
        if size >= bytes_max:
            break
    cursor.close()
    return rows


def totals_between(db: sqlite3.Connection, table: str, first: int, last: int) -> Totals:
    """Return the totals of a range of keys; reads the head of each row, not its packet."""
    count, size = db.execute(
        f"SELECT count(*), coalesce(sum(length(packet) + part_bytes), 0) FROM {table}"
        " WHERE key BETWEEN ? AND ?",
        (first, last),
    ).fetchone()
    return Totals(count, size)


class Head(NamedTuple):
    """The identity of the message in a row, at fixed offsets of its packet.  [MS-MQMQ] 2.2.19.2"""

    key: int
    source: bytes
    number: int
    size: int  # bytes of the packet


#: For `head`: SourceQueueManager to MessageId.  The rest of a long packet is not read.
HEAD = "key, substr(packet, 17, 44), length(packet) + part_bytes"


def head(row: tuple[int, bytes, int]) -> Head:
    key, identity, size = row
    # A damaged row also gets an identity, whatever its content.
    return Head(
        key, identity[:16].ljust(16, b"\0"), int.from_bytes(identity[40:44], "little"), size
    )


def heads(db: sqlite3.Connection, table: str, keys: Sequence[int]) -> list[Head]:
    """Return the identities of the messages with these keys, in the order of the keys."""
    rows = db.execute(
        f"SELECT {HEAD} FROM {table} WHERE key IN (SELECT value FROM json_each(?)) ORDER BY key",
        (key_list(keys),),
    )
    return list(map(head, rows))


def heads_between(db: sqlite3.Connection, table: str, first: int, last: int) -> list[Head]:
    """Return the identities of the messages in a range of keys, both ends included."""
    rows = db.execute(
        f"SELECT {HEAD} FROM {table} WHERE key BETWEEN ? AND ? ORDER BY key", (first, last)
    )
    return list(map(head, rows))


def keys_among(column: str, keys: Sequence[int]) -> tuple[str, tuple[object, ...]]:
    """Return a condition for rows with these keys, and its parameters.

    Consecutive keys are a range, which SQLite does not need to sort.
    """
    if keys and list(keys) == list(range(keys[0], keys[0] + len(keys))):
        return f"{column} BETWEEN ? AND ?", (keys[0], keys[-1])
    return f"{column} IN (SELECT value FROM json_each(?))", (key_list(keys),)


def key_list(keys: Sequence[int]) -> str:
    """Return a list of integers as one parameter, for `json_each`."""
    return f"[{','.join(map(str, keys))}]"
