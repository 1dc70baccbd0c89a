"""Table `delayed`: messages that are to be delivered at a later time.

A row is written in the commit of the send, and deleted in the commit that sends the message to its
queue, cancels it or ends it.  It has the message as its application gave it, and the numbers that
it got then: a packet, and a place in a sequence, exist from its release on.  Table `delayed_total`
has the number and the bytes of those for each destination: a start does not count them.
"""

import sqlite3
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from storage.tables import damaged, tally
from storage.tables.damaged import checksum_of, is_whole
from storage.tables.pages import EMPTY, Totals, key_list
from storage.vault import open_row, writing_vault

WALL_CLOCK, OWN_CLOCK = 0, 1


class DelayedRow(NamedTuple):
    """A delayed message."""

    number: int  # the first of its numbers
    clock: int
    due_ms: int
    queue: str
    size: int
    owner: str
    sent_at_ms: int
    data: bytes
    is_whole: bool = True


class NextDue(NamedTuple):
    """The earliest due times, in milliseconds; None: no message is delayed by that clock."""

    wall_ms: int | None
    own_ms: int | None


COLUMNS = "number, clock, due_ms, queue, bytes, owner, sent_at_ms, data, checksum, seal"


def add(db: sqlite3.Connection, rows: Sequence[DelayedRow]) -> None:
    """Store delayed messages."""
    tally.inserted(db, "delayed", [row.number for row in rows], [row.size for row in rows])
    _count(db, _by_queue(rows), sign=1)
    vault = writing_vault(db)
    db.executemany(
        f"INSERT INTO delayed ({COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        [
            (
                *row[:7],
                *(
                    (row.data, checksum_of(row.data), None)
                    if vault is None
                    else vault.stored("delayed", row.number, row.data)
                ),
            )
            for row in rows
        ],
    )


def delete(db: sqlite3.Connection, numbers: Sequence[int]) -> int:
    """Delete the messages with these first numbers; return the number of those that existed."""
    among, listed = "number IN (SELECT value FROM json_each(?))", (key_list(numbers),)
    going = tally.leaving(db, "delayed", among, listed)
    by_queue = db.execute(
        f"SELECT queue, count(*), sum(bytes) FROM delayed WHERE {among} GROUP BY queue", listed
    )
    _count(db, {queue: Totals(*total) for queue, *total in by_queue}, sign=-1)
    db.execute(f"DELETE FROM delayed WHERE {among}", listed)
    return going.messages


def set_aside(db: sqlite3.Connection, *, number: int, at_s: int) -> None:
    """Move a damaged row to table `damaged`."""
    row = find(db, number)
    if row is not None:
        damaged.keep(db, "delayed", number, row.data, at_s)
        delete(db, [number])


def due(
    db: sqlite3.Connection,
    *,
    wall_ms: int,
    own_ms: int,
    without: Iterable[str],
    rows_max: int,
    bytes_max: int,
) -> list[DelayedRow]:
    """Return messages that are due at these times of the two clocks, the earliest first.

    Those for the queues in `without` are left out.  The result ends after `rows_max` messages, or
    with the one that brings their data to `bytes_max`.
    """
    left_out = tuple(without)
    condition = f" AND queue NOT IN ({', '.join('?' * len(left_out))})" if left_out else ""
    found: list[tuple[int, int]] = []
    # Due times of our own clock are compared with the others as times of the wall clock.
    for clock, now_ms, ahead_ms in (
        (WALL_CLOCK, wall_ms, 0),
        (OWN_CLOCK, own_ms, wall_ms - own_ms),
    ):
        rows = db.execute(
            f"SELECT due_ms + ?, number FROM delayed WHERE clock = ? AND due_ms <= ?{condition}"
            " ORDER BY due_ms, number LIMIT ?",
            (ahead_ms, clock, now_ms, *left_out, rows_max),
        )
        found += rows.fetchall()
    numbers = [number for _, number in sorted(found)[:rows_max]]
    taken: list[DelayedRow] = []
    size = 0
    for number in numbers:
        row = find(db, number)
        if row is not None:
            taken.append(row)
            size += len(row.data)
        if size >= bytes_max:
            break
    return taken


def next_due(db: sqlite3.Connection) -> NextDue:
    """Return the earliest due times."""
    first = [
        db.execute("SELECT min(due_ms) FROM delayed WHERE clock = ?", (clock,)).fetchone()[0]
        for clock in (WALL_CLOCK, OWN_CLOCK)
    ]
    return NextDue(*first)


def find(db: sqlite3.Connection, number: int) -> DelayedRow | None:
    """Return the message with this first number."""
    row = db.execute(f"SELECT {COLUMNS} FROM delayed WHERE number = ?", (number,)).fetchone()
    return None if row is None else _opened(db, row)


def around(db: sqlite3.Connection, number: int) -> DelayedRow | None:
    """Return the message that may have this number: the last one with a first number up to it."""
    row = db.execute(
        f"SELECT {COLUMNS} FROM delayed WHERE number <= ? ORDER BY number DESC LIMIT 1", (number,)
    ).fetchone()
    return None if row is None else _opened(db, row)


def page(
    db: sqlite3.Connection, *, queue: str, start: int, rows_max: int, bytes_max: int
) -> list[DelayedRow]:
    """Return messages from the number `start` on, in order; of all queues for ""."""
    where, values = ("queue = ? AND ", (queue,)) if queue else ("", ())
    rows = db.execute(
        f"SELECT {COLUMNS} FROM delayed WHERE {where}number >= ? ORDER BY number LIMIT ?",
        (*values, start, rows_max),
    )
    taken: list[DelayedRow] = []
    size = 0
    for row in rows:
        taken.append(_opened(db, row))
        size += len(taken[-1].data)
        if size >= bytes_max:
            break
    rows.close()
    return taken


def totals_by_queue(db: sqlite3.Connection) -> dict[str, Totals]:
    """Return the totals of each destination with delayed messages, without counting."""
    rows = db.execute("SELECT queue, messages, bytes FROM delayed_total")
    return {queue: Totals(*total) for queue, *total in rows}


def count_anew(db: sqlite3.Connection) -> None:
    """Let the totals agree with the rows: after a repair, or if rows have vanished."""
    db.execute("DELETE FROM delayed_total")
    db.execute(
        "INSERT INTO delayed_total (queue, messages, bytes)"
        " SELECT queue, count(*), sum(bytes) FROM delayed GROUP BY queue"
    )


def _by_queue(rows: Iterable[DelayedRow]) -> dict[str, Totals]:
    found: dict[str, Totals] = {}
    for row in rows:
        messages, size = found.get(row.queue, EMPTY)
        found[row.queue] = Totals(messages + 1, size + row.size)
    return found


def _count(db: sqlite3.Connection, totals: dict[str, Totals], *, sign: int) -> None:
    """Count messages in (`sign` 1) or out (-1); a destination without messages has no row."""
    db.executemany(
        "INSERT INTO delayed_total (queue, messages, bytes) VALUES (?, ?, ?) ON CONFLICT (queue)"
        " DO UPDATE SET messages = messages + excluded.messages, bytes = bytes + excluded.bytes",
        [(queue, sign * messages, sign * size) for queue, (messages, size) in totals.items()],
    )
    if sign < 0:
        db.executemany(
            "DELETE FROM delayed_total WHERE queue = ? AND messages <= 0",
            [(queue,) for queue in totals],
        )


def _opened(db: sqlite3.Connection, row: tuple[object, ...]) -> DelayedRow:
    *columns, stored, of_stored, seal = row
    data, checksum = open_row(db, "delayed", columns[0], stored, seal, of_stored)  # type: ignore[arg-type]
    return DelayedRow(*columns, data, is_whole(data, checksum))  # type: ignore[arg-type, call-arg]
