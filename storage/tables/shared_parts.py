"""Table `shared_part`: the common end of the packets of one message's copies, stored once.

A message that is sent to many queues is one packet per queue.  The packets differ in their first
headers; from the label and the body on they are the same.  So a row of a copy holds the head of its
packet, and refers to the part that follows it:

    row      head (its own) ─── part_id, part_bytes ──► shared_part   label, body, other headers

The functions here return rows with complete packets.  Ordinary rows have no `part_id`, and no
additional cost.

The end of a large packet is a part in pieces, each a row that names the piece before it.  A row of
a message refers to the last one.  They are stored ahead, a piece in a commit, so that no commit of
others waits until megabytes are on the disk; the commit of the row makes them its part:

    row      head ─── part_id ──► shared_part 13 ── follows ──► 12 ── follows ──► 11

`part_ahead` lists the pieces without a row, which a start deletes.

A part is deleted in the commit that deletes its last row.  That is found by a query, not counted:
each of the three tables has an index of its few rows that have a part.
"""

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar
from zlib import crc32

from storage.vault import open_row, writing_vault

#: Id, bytes, and id of the piece before it.
NewPart = tuple[int, bytes | memoryview, int | None]
#: Id of a part, and its size in bytes.
PartOf = tuple[int, int]

#: The tables with rows that may have a part.
TABLES = ("message", "outgoing", "awaiting")

#: A NamedTuple with `table`, `key`, `checksum`, and the last fields `seal`, `part_id`, `packet`.
Row = TypeVar("Row", bound="tuple[Any, ...]")


def insert(db: sqlite3.Connection, parts: Iterable[NewPart]) -> None:
    vault = writing_vault(db)
    if vault is not None:
        db.executemany(
            "INSERT INTO shared_part (id, follows, packet, checksum, seal) VALUES (?, ?, ?, ?, ?)",
            (
                (id_, follows, *vault.stored("shared_part", id_, packet, follows))
                for id_, packet, follows in parts
            ),
        )
        return
    db.executemany(
        "INSERT INTO shared_part (id, follows, packet, checksum) VALUES (?, ?, ?, ?)",
        ((id_, follows, packet, crc32(packet)) for id_, packet, follows in parts),
    )


def list_ahead(db: sqlite3.Connection, ids: Iterable[int]) -> None:
    """List pieces to which no row refers yet."""
    db.executemany("INSERT INTO part_ahead (id) VALUES (?)", ((id_,) for id_ in ids))


def take_from_list(db: sqlite3.Connection, ids: Iterable[int]) -> None:
    """Remove pieces from the list, because a row of this commit refers to them."""
    db.executemany("DELETE FROM part_ahead WHERE id = ?", ((id_,) for id_ in ids))


def delete_ahead(db: sqlite3.Connection, ids: Iterable[int]) -> None:
    """Delete pieces that no row will refer to."""
    rows = [(id_,) for id_ in ids]
    db.executemany("DELETE FROM shared_part WHERE id = ?", rows)
    db.executemany("DELETE FROM part_ahead WHERE id = ?", rows)


def delete_all_ahead(db: sqlite3.Connection) -> None:
    """Delete all pieces that no row refers to."""
    delete_ahead(db, [id_ for (id_,) in db.execute("SELECT id FROM part_ahead")])


def any_ahead(db: sqlite3.Connection) -> bool:
    """Return whether there are pieces that no row refers to."""
    return db.execute("SELECT 1 FROM part_ahead LIMIT 1").fetchone() is not None


def whole(db: sqlite3.Connection, row: Row) -> Row:
    """Return the row with its complete, decrypted packet and the checksum of that.

    If the row or the part is damaged, or the part does not exist, the checksum does not match.
    """
    if row[-2] is None and row[-3] is None:
        return row
    named: Any = row
    packet, checksum = open_row(
        db, named.table, named.key, named.packet, named.seal, named.checksum, named.part_id
    )
    if row[-2] is not None:
        packet, checksum = joined(packet, checksum, find(db, row[-2]))
    made: Row = named._replace(packet=packet, checksum=checksum, seal=None)
    return made


def find(db: sqlite3.Connection, part_id: int) -> tuple[bytes, int | None] | None:
    """Return the decrypted part and its checksum; None if it does not exist.

    If a piece of it is damaged or missing, the checksum does not match.
    """
    last = _piece(db, part_id)
    if last is None or last[2] is None:
        return last if last is None else last[:2]
    pieces, seen = [last], {part_id}
    follows: int | None = last[2]
    while follows is not None:
        piece = None if follows in seen else _piece(db, follows)
        if piece is None:
            packet = b"".join(each[0] for each in reversed(pieces))
            return packet, crc32(packet) ^ 1
        seen.add(follows)
        pieces.append(piece)
        follows = piece[2]
    packet = b"".join(each[0] for each in reversed(pieces))
    is_whole = all(crc32(piece) == checksum for piece, checksum, _ in pieces)
    return packet, crc32(packet) ^ (not is_whole)


def _piece(db: sqlite3.Connection, id_: int) -> tuple[bytes, int | None, int | None] | None:
    """Return a decrypted row, its checksum, and the id of the piece before it."""
    row = db.execute(
        "SELECT packet, checksum, seal, follows FROM shared_part WHERE id = ?", (id_,)
    ).fetchone()
    if row is None:
        return None
    packet, checksum, seal, follows = row
    return *open_row(db, "shared_part", id_, packet, seal, checksum, follows), follows


def joined(
    head: bytes, checksum: int | None, part: tuple[bytes, int | None] | None
) -> tuple[bytes, int | None]:
    """Join head and part; the checksum matches only if both are intact."""
    if part is None or checksum is None:
        return head, crc32(head) ^ 1
    rest, checksum_of_rest = part
    packet = head + rest
    if crc32(rest) != checksum_of_rest:
        return packet, crc32(packet) ^ 1
    return packet, crc32(rest, checksum)  # continues the checksum of the head


def any_there(db: sqlite3.Connection) -> bool:
    """Return whether there is any part: usually there is none, and no further work."""
    return db.execute("SELECT 1 FROM shared_part LIMIT 1").fetchone() is not None


@contextmanager
def leaving(
    db: sqlite3.Connection, table: str, condition: str, parameters: Sequence[object]
) -> Iterator[None]:
    """Delete unused parts after the body has deleted or changed rows of `table`.

    The condition selects these rows.  Parts that no row refers to afterwards are deleted.
    """
    named = _named(db, table, condition, parameters)
    yield
    if named:
        delete_unnamed(db, named)


def delete_unnamed(db: sqlite3.Connection, ids: Iterable[int] | None = None) -> int:
    """Delete those of these parts (None: of all) that no row refers to; return how many rows.

    With a part its pieces are deleted.  Of all parts: also pieces that were stored ahead.
    """
    among = "" if ids is None else " AND id IN (SELECT value FROM json_each(?))"
    parameters: tuple[str, ...] = () if ids is None else (_listed(ids),)
    count = 0
    while True:
        deleted = db.execute(
            f"DELETE FROM shared_part WHERE {_UNNAMED}{among} RETURNING follows", parameters
        ).fetchall()
        count += len(deleted)
        before = [follows for (follows,) in deleted if follows is not None]
        if not before:
            return count
        among, parameters = " AND id IN (SELECT value FROM json_each(?))", (_listed(before),)


def _listed(ids: Iterable[int]) -> str:
    return f"[{','.join(map(str, ids))}]"


_UNNAMED = " AND ".join(
    f"NOT EXISTS (SELECT 1 FROM {table} AS other WHERE other.{column} = shared_part.id)"
    for table, column in (*((table, "part_id") for table in TABLES), ("shared_part", "follows"))
)


def _named(
    db: sqlite3.Connection, table: str, condition: str, parameters: Sequence[object]
) -> list[int]:
    if not any_there(db):
        return []
    rows = db.execute(
        # The plus makes SQLite scan only the rows of the condition: the index has those of all
        # queues.
        f"SELECT DISTINCT +part_id FROM {table} WHERE {condition} AND +part_id IS NOT NULL",
        parameters,
    )
    return [id_ for (id_,) in rows]
