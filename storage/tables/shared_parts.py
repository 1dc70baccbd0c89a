"""Table `shared_part`: what the copies of one message have in common, once for all of them.

A message that is sent to many queues is one packet for each of them.  The packets differ in their
first headers; from the label and the body on they are the same.  So a row of a copy holds the head
of its packet, and names the part that follows it:

    row      head (its own) ─── part_id, part_bytes ──► shared_part   label, body, other headers

Whoever reads a row here gets the whole packet.  Ordinary rows have no `part_id`, and cost nothing.
A part is deleted in the commit that deletes its last row.  That is worked out, not counted: each of
the three tables has an index of its few rows that have a part.
"""

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar
from zlib import crc32

#: Id, bytes.
NewPart = tuple[int, bytes]
#: Id of a part, and how many bytes it has.
PartOf = tuple[int, int]

#: The tables whose rows may have one.
TABLES = ("message", "outgoing", "awaiting")

#: A NamedTuple of which `part_id` and `packet` are the last two, with a `checksum`.
Row = TypeVar("Row", bound="tuple[Any, ...]")


class SharedPart(NamedTuple):
    id: int
    packet: bytes
    checksum: int


def insert(db: sqlite3.Connection, parts: Iterable[NewPart]) -> None:
    db.executemany(
        "INSERT INTO shared_part (id, packet, checksum) VALUES (?, ?, ?)",
        ((id_, packet, crc32(packet)) for id_, packet in parts),
    )


def whole(db: sqlite3.Connection, row: Row) -> Row:
    """The row with its packet whole, and its checksum that of the whole packet.

    Where the part is damaged, or not there, the checksum does not fit.
    """
    if row[-2] is None:
        return row
    found: tuple[bytes, int] | None = db.execute(
        "SELECT packet, checksum FROM shared_part WHERE id = ?", (row[-2],)
    ).fetchone()
    named: Any = row
    packet, checksum = joined(named.packet, named.checksum, found)
    made: Row = named._replace(packet=packet, checksum=checksum)
    return made


def joined(
    head: bytes, checksum: int | None, part: tuple[bytes, int] | None
) -> tuple[bytes, int | None]:
    """Head and part together, and what the checksum of both is if they are what was stored."""
    if part is None or checksum is None:
        return head, crc32(head) ^ 1
    rest, checksum_of_rest = part
    packet = head + rest
    if crc32(rest) != checksum_of_rest:
        return packet, crc32(packet) ^ 1
    return packet, crc32(rest, checksum)  # of the head, gone on with


def any_there(db: sqlite3.Connection) -> bool:
    """Whether there is any part at all: mostly there is none, and nothing to be done about them."""
    return db.execute("SELECT 1 FROM shared_part LIMIT 1").fetchone() is not None


@contextmanager
def leaving(
    db: sqlite3.Connection, table: str, condition: str, parameters: Sequence[object]
) -> Iterator[None]:
    """Around what deletes the rows of `table` that fit the condition, or replaces their packets:
    parts that no row names behind it are deleted."""
    named = _named(db, table, condition, parameters)
    yield
    if named:
        delete_unnamed(db, named)


def delete_unnamed(db: sqlite3.Connection, ids: Iterable[int] | None = None) -> int:
    """Of these parts, or of all, delete those that no row names; how many those were."""
    among = "" if ids is None else " AND id IN (SELECT value FROM json_each(?))"
    deleted = db.execute(
        f"DELETE FROM shared_part WHERE {_UNNAMED}{among}",
        () if ids is None else (f"[{','.join(map(str, ids))}]",),
    )
    return deleted.rowcount


_UNNAMED = " AND ".join(
    f"NOT EXISTS (SELECT 1 FROM {table} WHERE part_id = shared_part.id)" for table in TABLES
)


def _named(
    db: sqlite3.Connection, table: str, condition: str, parameters: Sequence[object]
) -> list[int]:
    if not any_there(db):
        return []
    rows = db.execute(
        # The plus keeps SQLite to the rows of the condition: the index has those of all queues.
        f"SELECT DISTINCT +part_id FROM {table} WHERE {condition} AND +part_id IS NOT NULL",
        parameters,
    )
    return [id_ for (id_,) in rows]
