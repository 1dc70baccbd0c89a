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
) -> None:
    """Insert rows; `into` is the table with its columns, as in `message (key, packet)`.

    packet_bytes: the bytes of all their packets.  `conflict` is the clause for rows that exist, as
    in `ON CONFLICT DO NOTHING`.
    """
    at, columns = 0, into.count(",") + 1
    if packet_bytes <= len(rows) * PACKET_BYTES_MAX:
        for width in WIDTHS:
            while len(rows) - at >= width:
                some = rows[at : at + width]
                db.execute(
                    _statement(into, columns, width, conflict), list(chain.from_iterable(some))
                )
                at += width
    if at < len(rows):
        db.executemany(_statement(into, columns, 1, conflict), rows[at:])


@cache
def _statement(into: str, columns: int, rows: int, conflict: str) -> str:
    row = f"({', '.join('?' * columns)})"
    return f"INSERT INTO {into} VALUES {', '.join([row] * rows)} {conflict}"
