"""Table `awaiting`: messages that have arrived elsewhere and wait for their final ack.

Table `awaiting_sequence` has the sequences of these messages: a start reads no row of `awaiting`.
Its rows stay until the queue awaits nothing.  Also table `unconfirmed`: messages for which the wait
was given up.  [MS-MQQB] 3.1.5.6 AwaitingFinalACKTable
"""

import sqlite3
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from storage.tables import damaged, pages, shared_parts, tally
from storage.tables.keys import ARRIVAL_MAX
from storage.tables.pages import PAGE_BYTES_MAX, Totals, key_list
from storage.tables.sequences import decode_sequence_id, encode_sequence_id
from storage.vault import vault_of

UNCONFIRMED_MAX = 1_000_000


class AwaitingRow(NamedTuple):
    number: int
    queue_id: int
    sequence_id: int
    position: int
    since_s: int
    expires_at_s: int | None
    discard: bool
    checksum: int
    seal: bytes | None  # of an encrypted packet; a complete row has none
    part_id: int | None  # the end of its packet, which other messages share
    packet: bytes

    @property
    def table(self) -> str:
        return "awaiting"

    @property
    def key(self) -> int:
        return self.number

    @property
    def is_whole(self) -> bool:
        """Whether the packet equals the stored packet, by its checksum."""
        return damaged.is_whole(self.packet, self.checksum)


class Arrived(NamedTuple):
    """Rows of `outgoing` that were acknowledged in order, as a range of keys."""

    queue_id: int
    sequence_id: int
    base: int  # of the sequence in its queue
    first: int
    last: int
    now_s: int


class Kept(NamedTuple):
    """A message that waits for its final ack from now on."""

    number: int
    position: int
    size: int


COLUMNS = ", ".join(AwaitingRow._fields)
_UNTIL_FOR_EVER = 0


def take_over(db: sqlite3.Connection, arrived: Arrived) -> list[Kept]:
    """Copy the rows of `outgoing` that wait for a final ack, in the order of their sequence.

    The rows themselves are deleted with their range, in the same commit.
    """
    waiting = "outgoing WHERE key BETWEEN ? AND ? AND confirm_by_s IS NOT NULL"
    keys = (arrived.first, arrived.last)
    # The message's number is in its packet.
    db.create_function("little_endian", 1, _little_endian, deterministic=True)
    rows = db.execute(
        "SELECT little_endian(substr(packet, 57, 4)), (key & ?) - ?, length(packet) + part_bytes"
        f" FROM {waiting} ORDER BY key",
        (ARRIVAL_MAX, arrived.base, *keys),
    )
    kept = list(map(Kept._make, rows))
    if not kept:
        return kept
    numbers = key_list([each.number for each in kept])
    among = "number IN (SELECT value FROM json_each(?))"
    tally.leaving(db, "awaiting", among, (numbers,))
    db.execute(
        "INSERT OR IGNORE INTO awaiting_sequence (queue_id, sequence_id) VALUES (?, ?)",
        (arrived.queue_id, encode_sequence_id(arrived.sequence_id)),
    )
    db.execute(
        # Numbers repeat after 2**32 messages; a number then belongs to the newer message.
        "INSERT OR REPLACE INTO awaiting (number, queue_id, sequence_id, position, since_s,"
        " expires_at_s, discard, checksum, packet, part_id, part_bytes, seal)"
        " SELECT little_endian(substr(packet, 57, 4)), ?, ?, (key & ?) - ?, ?,"
        f" nullif(confirm_by_s, {_UNTIL_FOR_EVER}), discard, checksum, packet, part_id,"
        f" part_bytes, seal FROM {waiting}",
        (
            arrived.queue_id,
            encode_sequence_id(arrived.sequence_id),
            ARRIVAL_MAX,
            arrived.base,
            arrived.now_s,
            *keys,
        ),
    )
    tally.arrived(db, "awaiting", among, (numbers,))
    if vault_of(db) is not None:
        _seal_again(db, waiting, keys)
    return kept


def _seal_again(db: sqlite3.Connection, waiting: str, keys: tuple[int, int]) -> None:
    """Seal the copied packets for their new place."""
    vault = vault_of(db)
    assert vault is not None
    rows = db.execute(
        f"SELECT key, little_endian(substr(packet, 57, 4)), packet, seal, part_id FROM {waiting}"
        " ORDER BY key",
        keys,
    ).fetchall()
    db.executemany(
        "UPDATE awaiting SET packet = ?, checksum = ?, seal = ? WHERE number = ?",
        [
            (*vault.moved("outgoing", key, "awaiting", number, packet, seal, part_id), number)
            for key, number, packet, seal, part_id in rows
            if seal is not None
        ],
    )


def confirm_by(expires_at_s: int | None) -> int:
    """Return `outgoing.confirm_by_s` for a message that waits until then (None: for ever)."""
    return _UNTIL_FOR_EVER if expires_at_s is None else max(expires_at_s, 1)


def find_all(
    db: sqlite3.Connection, numbers: Sequence[int], bytes_max: int = PAGE_BYTES_MAX
) -> tuple[list[AwaitingRow], int]:
    """Return the waiting messages among `numbers`, and how many of `numbers` were looked up.

    The second value is less than all if the packets would exceed `bytes_max`.
    """
    rows: list[AwaitingRow] = []
    size = 0
    for index, number in enumerate(numbers):
        if size >= bytes_max:
            return rows, index
        row = db.execute(f"SELECT {COLUMNS} FROM awaiting WHERE number = ?", (number,)).fetchone()
        if row is not None:
            rows.append(shared_parts.whole(db, _row(row)))
            size += len(rows[-1].packet)
    return rows, len(numbers)


def page(
    db: sqlite3.Connection, queue_id: int, from_number: int, rows_max: int
) -> list[AwaitingRow]:
    """Return rows of one outgoing queue, in the order of their numbers."""
    cursor = db.execute(
        f"SELECT {COLUMNS} FROM awaiting WHERE number >= ? AND queue_id = ?"
        " ORDER BY number LIMIT ?",
        (from_number, queue_id, rows_max),
    )
    return pages.take(cursor, _row, PAGE_BYTES_MAX)


def expired(
    db: sqlite3.Connection, now_s: int, rows_max: int, bytes_max: int = PAGE_BYTES_MAX
) -> list[AwaitingRow]:
    """Return the rows with an expired wait, the earliest expiry first."""
    cursor = db.execute(
        f"SELECT {COLUMNS} FROM awaiting WHERE expires_at_s < ? ORDER BY expires_at_s LIMIT ?",
        (now_s, rows_max),
    )
    return pages.take(cursor, _row, bytes_max)


def delete(db: sqlite3.Connection, numbers: Sequence[int]) -> None:
    among, listed = "number IN (SELECT value FROM json_each(?))", (key_list(numbers),)
    tally.leaving(db, "awaiting", among, listed)
    with shared_parts.leaving(db, "awaiting", among, listed):
        db.execute(f"DELETE FROM awaiting WHERE {among}", listed)


def totals_by_queue(db: sqlite3.Connection) -> dict[int, Totals]:
    """Return the totals of waiting messages by outgoing queue, without counting; used at start."""
    return {
        queue_id: Totals(figures.rows, figures.bytes)
        for queue_id, figures in tally.totals(db, "awaiting").items()
    }


def set_aside(db: sqlite3.Connection, number: int, at_s: int) -> bool:
    """Move a damaged row to table `damaged`; return False if there is no such row."""
    rows, _ = find_all(db, [number])
    for row in rows:
        damaged.keep(db, "awaiting", number, row.packet, at_s)
    delete(db, [number])
    return bool(rows)


def remember_unconfirmed(
    db: sqlite3.Connection, numbers: Iterable[int], queue_id: int, at_s: int
) -> None:
    """Record messages that became dead letters: a late final ack may still report receipt."""
    db.executemany(
        "INSERT OR REPLACE INTO unconfirmed (number, queue_id, at_s) VALUES (?, ?, ?)",
        ((number, queue_id, at_s) for number in numbers),
    )


def unconfirmed(db: sqlite3.Connection, numbers: Sequence[int]) -> dict[int, int]:
    """Return those of the messages that became dead letters, with their outgoing queue."""
    return dict(
        db.execute(
            "SELECT number, queue_id FROM unconfirmed"
            " WHERE number IN (SELECT value FROM json_each(?))",
            (key_list(numbers),),
        )
    )


def unconfirmed_queues(db: sqlite3.Connection) -> set[int]:
    """Return the ids of outgoing queues with messages that a late final ack may still report."""
    return {queue_id for (queue_id,) in db.execute("SELECT DISTINCT queue_id FROM unconfirmed")}


def forget_unconfirmed(db: sqlite3.Connection, numbers: Sequence[int]) -> None:
    db.execute(
        "DELETE FROM unconfirmed WHERE number IN (SELECT value FROM json_each(?))",
        (key_list(numbers),),
    )


def forget_old(db: sqlite3.Connection, before_s: int, rows_max: int = UNCONFIRMED_MAX) -> None:
    """Delete records older than `before_s`, and all but the newest `rows_max`."""
    db.execute("DELETE FROM unconfirmed WHERE at_s < ?", (before_s,))
    oldest = db.execute(
        "SELECT number FROM unconfirmed ORDER BY number DESC LIMIT 1 OFFSET ?", (rows_max,)
    ).fetchone()
    if oldest is not None:
        db.execute("DELETE FROM unconfirmed WHERE number <= ?", oldest)


def _little_endian(value: bytes) -> int:
    return int.from_bytes(value, "little")


def _row(row: Iterable[object]) -> AwaitingRow:
    made = AwaitingRow._make(row)
    assert isinstance(made.sequence_id, bytes)
    return made._replace(
        sequence_id=decode_sequence_id(made.sequence_id), discard=bool(made.discard)
    )


def sequences_by_queue(db: sqlite3.Connection) -> list[tuple[int, int]]:
    """Return outgoing queue and sequence id of all waiting messages, each pair once.

    There may be more: sequences whose messages have been confirmed.
    """
    rows = db.execute("SELECT queue_id, sequence_id FROM awaiting_sequence")
    return [(queue_id, decode_sequence_id(sequence_id)) for queue_id, sequence_id in rows]


def forget_sequences(db: sqlite3.Connection, queue_ids: Sequence[int]) -> None:
    """Forget the sequences of outgoing queues that await nothing."""
    db.execute(
        "DELETE FROM awaiting_sequence WHERE queue_id IN (SELECT value FROM json_each(?))",
        (key_list(queue_ids),),
    )


def find_sequences(db: sqlite3.Connection) -> None:
    """Record the sequences of all rows: after a repair."""
    db.execute(
        "INSERT OR IGNORE INTO awaiting_sequence (queue_id, sequence_id)"
        " SELECT DISTINCT queue_id, sequence_id FROM awaiting"
    )
