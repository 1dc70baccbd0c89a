"""Table `incoming_sequence`: how far each remote queue manager has come.  [MS-MQQB] 3.1.1.5

A row changes in the same commit as the message that moved it on, so that after a crash the two
agree.  (The state of our own sequences stands with the outgoing queue: outgoing.py.)

A source has a sequence for each name by which it knows a queue, so that two names of one queue are
two rows ([MS-MQDMPR] 3.1.1.5, FormatName).
"""

import sqlite3
from collections.abc import Iterable, Sequence
from typing import NamedTuple


class IncomingSequenceRow(NamedTuple):
    id: int
    source: bytes
    queue_id: int
    sequence_id: int
    number: int
    last_seen_s: int
    name: bytes  # by which the source knows the queue; empty: not known yet
    rejected: int = 0  # messages since one was last accepted
    contradictions: int = 0  # messages that bore the position of another one
    last_message: int = 0  # the number of the message that was accepted last; 0: not known


#: Id, GUID of the source, queue id, name, seen at s.
NewSequence = tuple[int, bytes, int, bytes, int]
#: Sequence id (8 bytes), number, seen at s, rejected, contradictions, last message, row id.
SequenceState = tuple[bytes, int, int, int, int, int, int]


def encode_sequence_id(sequence_id: int) -> bytes:
    """Unsigned 64 bits, big-endian: SQLite's integers are signed, and these bytes also sort."""
    return sequence_id.to_bytes(8, "big")


def decode_sequence_id(stored: bytes) -> int:
    return int.from_bytes(stored, "big")


def add(db: sqlite3.Connection, rows: Iterable[NewSequence]) -> None:
    """Nothing accepted yet: sequence id and number are 0."""
    db.executemany(
        "INSERT INTO incoming_sequence"
        " (id, source, queue_id, name, sequence_id, number, last_seen_s)"
        " VALUES (?, ?, ?, ?, x'0000000000000000', 0, ?)",
        rows,
    )


def set_name(db: sqlite3.Connection, incoming_id: int, name: bytes) -> None:
    """By which the source knows the queue; of a row that an older version has written."""
    db.execute("UPDATE incoming_sequence SET name = ? WHERE id = ?", (name, incoming_id))


def set_states(db: sqlite3.Connection, states: Sequence[SequenceState]) -> None:
    changed = db.executemany(
        "UPDATE incoming_sequence SET sequence_id = ?, number = ?, last_seen_s = ?, rejected = ?,"
        " contradictions = ?, last_message = ? WHERE id = ?",
        states,
    )
    assert changed.rowcount == len(states), "the state of an unknown sequence would be lost"


def leave(db: sqlite3.Connection, name: str, queue_id: int) -> None:
    """The queue is no more; what its sequences know is kept for the next queue of that name.

    They give its id back: a number below 0 is no queue's.
    """
    db.execute(
        "UPDATE incoming_sequence SET former = ?, queue_id = -id WHERE queue_id = ?",
        (name.casefold(), queue_id),
    )


def take_over(db: sqlite3.Connection, name: str, queue_id: int) -> None:
    """A new queue goes on where the last one of its name was: what a source sends again, because it
    has not heard that it came, is not new."""
    db.execute(
        "UPDATE incoming_sequence SET queue_id = ?, former = NULL WHERE former = ?",
        (queue_id, name.casefold()),
    )


def of_queue(db: sqlite3.Connection, queue_id: int) -> list[IncomingSequenceRow]:
    return [row for row in list_all(db) if row.queue_id == queue_id]


def list_all(db: sqlite3.Connection) -> list[IncomingSequenceRow]:
    rows = db.execute(
        "SELECT id, source, queue_id, sequence_id, number, last_seen_s, name, rejected,"
        " contradictions, last_message FROM incoming_sequence ORDER BY id"
    )
    return [
        IncomingSequenceRow._make((*row[:3], decode_sequence_id(row[3]), *row[4:])) for row in rows
    ]


def forget(db: sqlite3.Connection, before_s: int) -> list[int]:
    """Delete sequences not seen since `before_s`; their ids, to be forgotten in memory as well.

    What the source still has in doubt it would deliver again: `before_s` must lie further back
    than any sender goes on trying.
    """
    rows = db.execute(
        "DELETE FROM incoming_sequence WHERE last_seen_s < ? RETURNING id", (before_s,)
    )
    return [id_ for (id_,) in rows.fetchall()]
