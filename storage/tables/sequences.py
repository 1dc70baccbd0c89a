"""Table `incoming_sequence`: the last accepted message of each sequence.  [MS-MQQB] 3.1.1.5

A row changes in the same commit as the message that advanced it, so that after a crash the two
agree.  (The state of our own sequences is in the table of outgoing queues: outgoing.py.)

A source has a sequence for each name by which it addresses a queue, so that two names of one queue
are two rows ([MS-MQDMPR] 3.1.1.5, FormatName).  So has each origin of a source: any program can
state the GUID of another one.
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
    name: bytes  # by which the source addresses the queue; empty: not known yet
    rejected: int = 0  # messages since the last accepted one
    contradictions: int = 0  # messages at the position of another message
    last_message: int = 0  # the number of the last accepted message; 0: not known
    origin: str = ""  # of the source; empty: not known
    host: str = ""  # the address that its first message came from; empty: not known
    first_number: int = 0  # of the first accepted message of the sequence; 0: not known
    first_message: int = 0  # the message number of that
    first_digest: int = 0  # of its content


class NewSequence(NamedTuple):
    """A sequence without an accepted message; its fields are those of `IncomingSequenceRow`."""

    id: int
    source: bytes
    queue_id: int
    name: bytes
    last_seen_s: int
    origin: str
    host: str


#: Sequence id (8 bytes), number, last seen in s, rejected, contradictions, last message, number,
#: message and digest of the first one, row id.
SequenceState = tuple[bytes, int, int, int, int, int, int, int, int, int]


def encode_sequence_id(sequence_id: int) -> bytes:
    """Encode as 8 bytes, big-endian: they sort correctly, and SQLite's integers are signed."""
    return sequence_id.to_bytes(8, "big")


def decode_sequence_id(stored: bytes) -> int:
    return int.from_bytes(stored, "big")


def add(db: sqlite3.Connection, rows: Iterable[NewSequence]) -> None:
    """Add sequences without an accepted message: sequence id and number are 0."""
    db.executemany(
        "INSERT INTO incoming_sequence"
        " (id, source, queue_id, name, last_seen_s, origin, host, sequence_id, number)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, x'0000000000000000', 0)",
        rows,
    )


def set_place(db: sqlite3.Connection, incoming_id: int, name: bytes, origin: str) -> None:
    """Set the name by which the source addresses the queue, and the origin of the source."""
    db.execute(
        "UPDATE incoming_sequence SET name = ?, origin = ? WHERE id = ?",
        (name, origin, incoming_id),
    )


def remove(db: sqlite3.Connection, ids: Iterable[int]) -> None:
    """Delete sequences; unknown ids are ignored."""
    db.executemany("DELETE FROM incoming_sequence WHERE id = ?", ((id_,) for id_ in ids))


def set_states(db: sqlite3.Connection, states: Sequence[SequenceState]) -> None:
    changed = db.executemany(
        "UPDATE incoming_sequence SET sequence_id = ?, number = ?, last_seen_s = ?, rejected = ?,"
        " contradictions = ?, last_message = ?, first_number = ?, first_message = ?,"
        " first_digest = ? WHERE id = ?",
        states,
    )
    assert changed.rowcount == len(states), "the state of an unknown sequence would be lost"


def leave(db: sqlite3.Connection, name: str, queue_id: int) -> None:
    """Keep the sequences of a deleted queue for the next queue of that name.

    They release its id: a queue id below 0 belongs to no queue.
    """
    db.execute(
        "UPDATE incoming_sequence SET former = ?, queue_id = -id WHERE queue_id = ?",
        (name.casefold(), queue_id),
    )


def take_over(db: sqlite3.Connection, name: str, queue_id: int) -> None:
    """Let a new queue continue the sequences of the last queue of its name.

    A message that a source sends again, because its acknowledgment was lost, is then a duplicate.
    """
    db.execute(
        "UPDATE incoming_sequence SET queue_id = ?, former = NULL WHERE former = ?",
        (queue_id, name.casefold()),
    )


def of_queue(db: sqlite3.Connection, queue_id: int) -> list[IncomingSequenceRow]:
    return [row for row in list_all(db) if row.queue_id == queue_id]


def list_all(db: sqlite3.Connection) -> list[IncomingSequenceRow]:
    rows = db.execute(
        "SELECT id, source, queue_id, sequence_id, number, last_seen_s, name, rejected,"
        " contradictions, last_message, origin, host, first_number, first_message, first_digest"
        " FROM incoming_sequence ORDER BY id"
    )
    return [
        IncomingSequenceRow._make((*row[:3], decode_sequence_id(row[3]), *row[4:])) for row in rows
    ]


def forget(db: sqlite3.Connection, before_s: int) -> list[int]:
    """Delete sequences not seen since `before_s`; return their ids, to be removed from memory.

    Messages that the source is still unsure about would be delivered twice: `before_s` must be
    longer ago than any sender retries.
    """
    rows = db.execute(
        "DELETE FROM incoming_sequence WHERE last_seen_s < ? RETURNING id", (before_s,)
    )
    return [id_ for (id_,) in rows.fetchall()]
