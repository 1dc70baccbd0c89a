"""Inserts of many rows by few statements.

The sqlite3 module gives up the interpreter at each step of a statement, and takes it again from the
event loop: up to a tenth of a millisecond for each, if the loop is busy (`SWITCH_INTERVAL_S` of
qmd/daemon.py).  `executemany` makes a step for each row; a statement with 64 rows makes one, and
SQLite works beside the loop meanwhile.
"""

import sqlite3
from collections.abc import Sequence
from functools import cache
from itertools import chain

#: Rows of one statement: as many as fit, then the smaller ones.  Few different ones, because the
#: connection keeps compiled statements by their text.
WIDTHS = (64, 16, 4)
#: Packets that are longer on average are bound one by one: SQLite copies what is bound.
PACKET_BYTES_MAX = 4096


def insert(
    db: sqlite3.Connection,
    into: str,
    rows: Sequence[Sequence[object]],
    packet_bytes: int,
    *,
    conflict: str = "",
    often_null: tuple[int, ...] = (),
) -> None:
    """Insert rows; `into` is the table with its columns, as in `message (key, packet)`.

    packet_bytes: the bytes of all their packets.  `conflict` is the clause for rows that exist, as
    in `ON CONFLICT DO NOTHING`.  `often_null` are the positions of columns without a default: if
    one is NULL in all rows, it is left out of the statements, which saves up to a sixth of them.
    """
    if rows:
        columns = list(zip(*rows, strict=True))
        insert_columns(db, into, columns, packet_bytes, conflict=conflict, often_null=often_null)


def insert_columns(
    db: sqlite3.Connection,
    into: str,
    columns: Sequence[Sequence[object]],
    packet_bytes: int,
    *,
    conflict: str = "",
    often_null: tuple[int, ...] = (),
) -> None:
    """Insert rows as `insert` does; `columns` has a list of their values for each column."""
    at, rows = 0, len(columns[0])
    nulls = [each for each in often_null if columns[each].count(None) == rows]
    columns = [column for each, column in enumerate(columns) if each not in nulls]
    if packet_bytes <= rows * PACKET_BYTES_MAX:
        for width in WIDTHS:
            while rows - at >= width:
                some = zip(*[column[at : at + width] for column in columns], strict=True)
                db.execute(
                    _statement(into, tuple(nulls), width, conflict), list(chain.from_iterable(some))
                )
                at += width
    if at < rows:
        some = zip(*[column[at:] for column in columns], strict=True)
        db.executemany(_statement(into, tuple(nulls), 1, conflict), some)


@cache
def _statement(into: str, without: tuple[int, ...], rows: int, conflict: str) -> str:
    table, _, names = into.rstrip(")").partition(" (")
    columns = [name for at, name in enumerate(names.split(", ")) if at not in without]
    row = f"({', '.join('?' * len(columns))})"
    return f"INSERT INTO {table} ({', '.join(columns)}) VALUES {', '.join([row] * rows)} {conflict}"
