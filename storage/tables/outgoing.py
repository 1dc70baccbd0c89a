"""Tables `outgoing_queue` and `outgoing`: messages that wait for other queue managers."""

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

from storage.errors import NoSuchQueue
from storage.tables import counters, damaged, lone_rows, many_rows, pages, shared_parts, tally
from storage.tables.damaged import checksum_of
from storage.tables.keys import (
    level_range,
    lookup_id_of,
    queue_range,
)
from storage.tables.pages import PAGE_BYTES_MAX, PAGE_ROWS_MAX, Head, Totals, key_list
from storage.tables.sequences import decode_sequence_id, encode_sequence_id
from storage.tables.shared_parts import PartOf
from storage.tables.tally import Figures
from storage.vault import open_row, vault_of, writing_vault


class OutgoingQueueRow(NamedTuple):
    id: int
    destination: str
    address: str
    paused: bool
    sequence_id: int
    base: int
    next_number: int
    created_at_s: int
    redirect: str | None = None
    peer: bytes | None = None
    renumbered_to: int = 0  # key without the queue id: packets up to it bear an older sequence
    former: bytes = b""  # timestamps of its older sequences, 4 bytes each, the latest first
    unproven_from: int = 0  # base + the first number after a start, until an order ack arrives
    asked_by: str = ""  # the host that asks for its acknowledgments; "": applications use it


class OutgoingRow(NamedTuple):
    key: int
    expires_at_s: int | None
    checksum: int | None
    discard: bool
    seal: bytes | None  # of an encrypted packet; a complete row has none
    part_id: int | None  # the end of its packet, which other messages share
    packet: bytes

    @property
    def table(self) -> str:
        return "outgoing"

    @property
    def is_whole(self) -> bool:
        """Whether the packet equals the stored packet, by its checksum."""
        return damaged.is_whole(self.packet, self.checksum)


#: Key, expiry in s, packet, deadline of its final ack, whether it is discarded (no dead letter).
NewOutgoing = tuple[int, int | None, bytes, int | None, bool]
#: The same with the head of the packet, then the id and the bytes of its part; without one None, 0.
NewInColumn = tuple[int, int | None, bytes, int | None, bool, int | None, int]
#: Sequence id (8 bytes), base, next number, outgoing queue id.
SequenceState = tuple[bytes, int, int, int]


class RowsOfCopies(Protocol):
    """Rows of key and packet; with a `part`, of key and the head of the packet.

    They may be computed during iteration, which may happen more than once and on another thread.
    """

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[tuple[int, bytes]]: ...


class ColumnRows(Protocol):
    """Rows of outgoing messages, which may be computed during iteration, as `RowsOfCopies`."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[NewInColumn]: ...


class NewCopies(NamedTuple):
    """Rows that differ only in keys and packets, as the copies of one message do."""

    rows: RowsOfCopies
    expires_at_s: int | None
    confirm_by_s: int | None
    discard: bool
    part: PartOf | None


_MANY = 16  # rows from which one statement for all is faster

SEQUENCE_TIMESTAMP = "sequence_timestamp"  # a counter

HEAD_BYTES = 2048  # the longest head, with three names of maximum length
FORMER_BYTES = 256  # limit of the stored timestamps of older sequences

QUEUE_COLUMNS = ", ".join(OutgoingQueueRow._fields)
COLUMNS = ", ".join(OutgoingRow._fields)


def insert(db: sqlite3.Connection, rows: Sequence[NewOutgoing]) -> None:
    sizes = [len(row[2]) for row in rows]
    tally.inserted(db, "outgoing", [row[0] for row in rows], sizes)
    vault = writing_vault(db)
    if vault is not None:
        many_rows.insert(
            db,
            "outgoing (key, expires_at_s, confirm_by_s, discard, packet, checksum, seal)",
            [(*row[:2], *row[3:], *vault.stored("outgoing", row[0], row[2])) for row in rows],
            sum(sizes),
            often_null=(1, 2),
        )
        return
    many_rows.insert(
        db,
        "outgoing (key, expires_at_s, packet, confirm_by_s, discard, checksum)",
        [(*row, checksum_of(row[2])) for row in rows],
        sum(sizes),
        often_null=(1, 3),
    )


def insert_copies(db: sqlite3.Connection, copies: Iterable[NewCopies]) -> None:
    for each in copies:
        part_id, part_bytes = each.part or (None, 0)
        heads = [(key, len(head) + part_bytes) for key, head in each.rows]
        tally.inserted(db, "outgoing", [key for key, _ in heads], [size for _, size in heads])
        alike = each.expires_at_s, each.confirm_by_s, int(each.discard), part_id, part_bytes
        # Values that all rows share are literals of the statement: binding a value costs up to a
        # third of the insert.
        values = ", ".join("NULL" if value is None else str(int(value)) for value in alike)
        vault = writing_vault(db)
        if vault is not None:
            sealed = [
                (key, *vault.stored("outgoing", key, head, part_id)) for key, head in each.rows
            ]
            db.executemany(
                "INSERT INTO outgoing (key, packet, checksum, seal, expires_at_s, confirm_by_s,"
                f" discard, part_id, part_bytes) VALUES (?, ?, ?, ?, {values})",
                sealed,
            )
            continue
        db.executemany(
            "INSERT INTO outgoing (key, packet, checksum, expires_at_s, confirm_by_s, discard,"
            f" part_id, part_bytes) VALUES (?, ?, ?, {values})",
            ((key, packet, checksum_of(packet)) for key, packet in each.rows),
        )


def insert_columns(db: sqlite3.Connection, columns: ColumnRows) -> None:
    """Insert rows that may differ in everything; heads without a part are complete packets."""
    rows = list(columns)
    heads_bytes = sum([len(row[2]) for row in rows])
    sizes = [len(row[2]) + row[6] for row in rows]
    tally.inserted(db, "outgoing", [row[0] for row in rows], sizes)
    vault = writing_vault(db)
    common = "expires_at_s, confirm_by_s, discard, part_id, part_bytes, packet, checksum"
    if vault is not None:
        sealed = [
            (key, expires, *rest, part, size, *vault.stored("outgoing", key, head, part))
            for key, expires, head, *rest, part, size in rows
        ]
        many_rows.insert(db, f"outgoing (key, {common}, seal)", sealed, heads_bytes)
        return
    many_rows.insert(
        db,
        f"outgoing (key, {common})",
        [
            (key, expires, *rest, part, size, head, checksum_of(head))
            for key, expires, head, *rest, part, size in rows
        ],
        heads_bytes,
    )


def delete(db: sqlite3.Connection, keys: Sequence[int]) -> None:
    if len(keys) == 1:
        lone_rows.delete(db, "outgoing", keys[0])
        return
    among, listed = "key IN (SELECT value FROM json_each(?))", (key_list(keys),)
    tally.leaving(db, "outgoing", among, listed)
    with shared_parts.leaving(db, "outgoing", among, listed):
        db.execute(f"DELETE FROM outgoing WHERE {among}", listed)


def delete_ranges(db: sqlite3.Connection, ranges: Sequence[tuple[int, int]]) -> None:
    """Delete ranges of rows, given as first and last key, both included."""
    for each in ranges:  # one after the other: they may overlap
        release(db, *each)


def identities(db: sqlite3.Connection, first: int, last: int) -> list[Head]:
    """Return the identities of the messages in a range of rows, both ends included."""
    return pages.heads_between(db, "outgoing", first, last)


def release(db: sqlite3.Connection, first: int, last: int) -> Totals:
    """Delete the rows of a range, both ends included; return their totals."""
    released = tally.leaving(db, "outgoing", "key BETWEEN ? AND ?", (first, last))
    with shared_parts.leaving(db, "outgoing", "key BETWEEN ? AND ?", (first, last)):
        db.execute("DELETE FROM outgoing WHERE key BETWEEN ? AND ?", (first, last))
    return released


def set_sequences(db: sqlite3.Connection, states: Sequence[SequenceState]) -> None:
    # A sequence with a new timestamp adds the old one to `former`: peers still refer to it.  The
    # numbers of a new sequence are new to its peer; `unproven_from` is about the old one.
    changed = db.executemany(
        "UPDATE outgoing_queue SET former = CASE"
        " WHEN substr(sequence_id, 1, 4) = substr(?1, 1, 4) THEN former ELSE"
        f" substr(CAST(substr(sequence_id, 1, 4) || former AS BLOB), 1, {FORMER_BYTES}) END,"
        " unproven_from = CASE WHEN sequence_id = ?1 THEN unproven_from ELSE 0 END,"
        " sequence_id = ?1, base = ?2, next_number = ?3 WHERE id = ?4",
        states,
    )
    assert changed.rowcount == len(states), "the state of an unknown outgoing queue would be lost"


def set_renumbered(db: sqlite3.Connection, outgoing_id: int, key: int) -> None:
    """Set the key up to which packets bear an older sequence; they are renumbered when sent."""
    db.execute("UPDATE outgoing_queue SET renumbered_to = ? WHERE id = ?", (key, outgoing_id))


def set_unproven(db: sqlite3.Connection, positions: Sequence[tuple[int, int]]) -> None:
    """Set the positions from which a peer may know other messages under our numbers.

    `positions` are pairs of base + number (0: no such position) and id of the queue.
    """
    db.executemany("UPDATE outgoing_queue SET unproven_from = ? WHERE id = ?", positions)


def set_next_numbers(db: sqlite3.Connection, numbers: dict[int, int]) -> None:
    """Set next numbers, by outgoing queue, where nothing else of the sequence has changed."""
    if len(numbers) < _MANY:
        changed = db.executemany(
            "UPDATE outgoing_queue SET next_number = ? WHERE id = ?",
            [(number, outgoing_id) for outgoing_id, number in numbers.items()],
        )
    else:  # one statement: takes half of the time
        listed = ",".join([f'"{outgoing_id}":{number}' for outgoing_id, number in numbers.items()])
        changed = db.execute(
            "UPDATE outgoing_queue SET next_number = each.value FROM json_each(?) AS each"
            " WHERE outgoing_queue.id = CAST(each.key AS INTEGER)",
            (f"{{{listed}}}",),
        )
    assert changed.rowcount == len(numbers), "the state of an unknown queue would be lost"


def add_queues(db: sqlite3.Connection, rows: Iterable[OutgoingQueueRow]) -> None:
    """Add destinations, with ids that the caller has chosen."""
    db.executemany(
        f"INSERT INTO outgoing_queue ({QUEUE_COLUMNS}, key)"
        f" VALUES ({', '.join('?' * (len(OutgoingQueueRow._fields) + 1))})",
        (
            (*row[:4], encode_sequence_id(row.sequence_id), *row[5:], row.destination.casefold())
            for row in rows
        ),
    )


def forget_queues(db: sqlite3.Connection, ids: Iterable[int], last_timestamp: int) -> None:
    """Delete destinations without messages, after the end of their sequences.

    The next sequence to any of them must have a timestamp greater than `last_timestamp`.
    """
    forgotten = [(id_,) for id_ in ids]
    db.executemany("DELETE FROM outgoing_queue WHERE id = ?", forgotten)
    db.executemany("DELETE FROM awaiting_sequence WHERE queue_id = ?", forgotten)
    counters.set_following(db, SEQUENCE_TIMESTAMP, last_timestamp)


def last_timestamp(db: sqlite3.Connection) -> int:
    """Return the greatest timestamp of the sequences of deleted destinations."""
    return counters.following(db, SEQUENCE_TIMESTAMP)


def list_queues(db: sqlite3.Connection) -> list[OutgoingQueueRow]:
    rows = db.execute(f"SELECT {QUEUE_COLUMNS} FROM outgoing_queue ORDER BY id")
    return list(map(_queue, rows))


def set_asked_by(db: sqlite3.Connection, outgoing_id: int, host: str) -> None:
    """Set the host that asks for the messages of an outgoing queue; "": applications use it."""
    db.execute("UPDATE outgoing_queue SET asked_by = ? WHERE id = ?", (host, outgoing_id))


def set_paused(db: sqlite3.Connection, outgoing_id: int, paused: bool) -> None:
    """Pause or resume an outgoing queue.  Raises NoSuchQueue."""
    changed = db.execute("UPDATE outgoing_queue SET paused = ? WHERE id = ?", (paused, outgoing_id))
    if changed.rowcount == 0:
        raise NoSuchQueue(outgoing_id)


def find(db: sqlite3.Connection, key: int) -> OutgoingRow | None:
    row = db.execute(f"SELECT {COLUMNS} FROM outgoing WHERE key = ?", (key,)).fetchone()
    return None if row is None else shared_parts.whole(db, OutgoingRow._make(row))


def page(
    db: sqlite3.Connection,
    outgoing_id: int,
    from_lookup: int = 0,
    rows_max: int = PAGE_ROWS_MAX,
    bytes_max: int = PAGE_BYTES_MAX,
) -> list[OutgoingRow]:
    """Return the next rows from `from_lookup` on, in the order of sending; see `messages.page`."""
    cursor = db.execute(
        f"SELECT {COLUMNS} FROM outgoing WHERE key BETWEEN ? AND ? ORDER BY key LIMIT ?",
        (*queue_range(outgoing_id, from_lookup), rows_max),
    )
    return pages.take(cursor, OutgoingRow._make, bytes_max)


def keys(
    db: sqlite3.Connection, outgoing_id: int, from_lookup: int = 0, *, rows_max: int
) -> list[int]:
    """Return the lookup ids of the next rows of a queue, from `from_lookup` on, itself included."""
    rows = db.execute(
        "SELECT key FROM outgoing WHERE key BETWEEN ? AND ? ORDER BY key LIMIT ?",
        (*queue_range(outgoing_id, from_lookup), rows_max),
    )
    return [lookup_id_of(key) for (key,) in rows]


def bounds(db: sqlite3.Connection, outgoing_id: int, level: int) -> tuple[int, int] | None:
    """Return the first and the last key on one level; None if it is empty."""
    first, last = db.execute(
        # Two subqueries: SQLite seeks one end each, while min() and max() together would scan.
        "SELECT (SELECT min(key) FROM outgoing WHERE key BETWEEN :first AND :last),"
        " (SELECT max(key) FROM outgoing WHERE key BETWEEN :first AND :last)",
        dict(zip(("first", "last"), level_range(outgoing_id, level), strict=True)),
    ).fetchone()
    return None if first is None else (first, last)


def totals(db: sqlite3.Connection, outgoing_id: int) -> Totals:
    return pages.totals_between(db, "outgoing", *queue_range(outgoing_id))


def figures_by_queue(db: sqlite3.Connection) -> dict[int, Figures]:
    """Return the figures of all queues with messages, without counting; used at start."""
    return tally.totals(db, "outgoing")


def redirect(db: sqlite3.Connection, outgoing_ids: Sequence[int], address: str | None) -> None:
    """Redirect queues to an address; None: back to the addresses of their names."""
    db.executemany(
        "UPDATE outgoing_queue SET redirect = ? WHERE id = ?",
        [(address, outgoing_id) for outgoing_id in outgoing_ids],
    )


def set_peers(db: sqlite3.Connection, outgoing_ids: Sequence[int], peer: bytes) -> None:
    """Record the queue manager to which their transactional messages are delivered."""
    db.executemany(
        "UPDATE outgoing_queue SET peer = ? WHERE id = ?",
        [(peer, outgoing_id) for outgoing_id in outgoing_ids],
    )


def heads(db: sqlite3.Connection, outgoing_id: int) -> Iterable[bytes]:
    """Return the bytes before the body of each packet of a queue, in the order of sending."""
    if vault_of(db) is not None:
        return _opened_heads(db, outgoing_id)
    cursor = db.execute(
        "SELECT substr(packet, 1, ?) FROM outgoing WHERE key BETWEEN ? AND ? ORDER BY key",
        (HEAD_BYTES, *queue_range(outgoing_id)),
    )
    return (packet for (packet,) in cursor)


def _opened_heads(db: sqlite3.Connection, outgoing_id: int) -> Iterator[bytes]:
    """Yield the same of encrypted packets, which must be read to their ends."""
    cursor = db.execute(
        "SELECT key, packet, seal, part_id FROM outgoing WHERE key BETWEEN ? AND ? ORDER BY key",
        queue_range(outgoing_id),
    )
    for key, packet, seal, part_id in cursor:
        yield open_row(db, "outgoing", key, packet, seal, None, part_id)[0][:HEAD_BYTES]


def _queue(row: tuple[Any, ...]) -> OutgoingQueueRow:
    return OutgoingQueueRow._make(
        (*row[:3], bool(row[3]), decode_sequence_id(row[4]), *row[5:]),
    )
