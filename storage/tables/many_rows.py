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
    at = 0
    if len(rows) >= WIDTHS[-1] and packet_bytes <= len(rows) * PACKET_BYTES_MAX:
        columns = list(zip(*rows, strict=True))
        nulls = [each for each in often_null if columns[each].count(None) == len(rows)]
        for each in reversed(nulls):
            del columns[each]
        for width in WIDTHS:
            while len(rows) - at >= width:
                some = zip(*[column[at : at + width] for column in columns], strict=True)
                db.execute(
                    _statement(into, tuple(nulls), width, conflict), list(chain.from_iterable(some))
                )
                at += width
    if at < len(rows):
        db.executemany(_statement(into, (), 1, conflict), rows[at:])


@cache
def _statement(into: str, without: tuple[int, ...], rows: int, conflict: str) -> str:
    table, _, names = into.rstrip(")").partition(" (")
    columns = [name for at, name in enumerate(names.split(", ")) if at not in without]
    row = f"({', '.join('?' * len(columns))})"
    return f"INSERT INTO {table} ({', '.join(columns)}) VALUES {', '.join([row] * rows)} {conflict}"
