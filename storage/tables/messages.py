"""Table `message`: the messages in our queues, in the order of receiving.  Keys: keys.py."""

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import NamedTuple, Protocol

from storage.tables import damaged, lone_rows, many_rows, pages, shared_parts, tally
from storage.tables.damaged import checksum_of
from storage.tables.keys import queue_id_of, queue_range
from storage.tables.pages import PAGE_BYTES_MAX, PAGE_ROWS_MAX, Totals, key_list, keys_among
from storage.tables.shared_parts import PartOf
from storage.vault import vault_of, writing_vault


class MessageRow(NamedTuple):
    key: int
    arrived_at_ms: int
    expires_at_s: int | None
    reason: str | None
    abort_count: int
    move_count: int
    last_move_at_ms: int | None
    checksum: int | None
    seal: bytes | None  # of an encrypted packet; a complete row has none
    part_id: int | None  # the end of its packet, which other messages share
    packet: bytes

    @property
    def table(self) -> str:
        return "message"

    @property
    def is_whole(self) -> bool:
        """Whether the packet equals the stored packet, by its checksum."""
        return damaged.is_whole(self.packet, self.checksum)


#: Key, arrival in ms, expiry in s, reason, packet.
NewMessage = tuple[int, int, int | None, str | None, bytes]
#: The same with the head of the packet, and the part that completes it.
NewCopy = tuple[int, int, int | None, str | None, bytes, PartOf]


class NewMessages(Protocol):
    """Rows of messages, which may be computed during iteration.

    That may happen more than once, and on another thread.
    """

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[NewMessage]: ...


class NewCopies(Protocol):
    """Rows of messages that share parts, likewise."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[NewCopy]: ...


COLUMNS = ", ".join(MessageRow._fields)

_MANY = 16  # copies of one message from which a statement of their own is faster


def insert(db: sqlite3.Connection, rows: Sequence[NewMessage]) -> None:
    if not rows:
        return
    keys, *others, packets = zip(*rows, strict=True)
    sizes = list(map(len, packets))
    tally.inserted(db, "message", keys, sizes)
    vault = writing_vault(db)
    if vault is not None:
        many_rows.insert(
            db,
            "message (key, arrived_at_ms, expires_at_s, reason, packet, checksum, seal)",
            [(*row[:4], *vault.stored("message", row[0], row[4])) for row in rows],
            sum(sizes),
            often_null=(2, 3),
        )
        return
    many_rows.insert_columns(
        db,
        "message (key, arrived_at_ms, expires_at_s, reason, packet, checksum)",
        [keys, *others, packets, list(map(checksum_of, packets))],
        sum(sizes),
        often_null=(2, 3),
    )


def insert_copies(db: sqlite3.Connection, rows: Sequence[NewCopy]) -> None:
    sizes = [len(row[4]) + row[5][1] for row in rows]
    tally.inserted(db, "message", [row[0] for row in rows], sizes)
    few: list[NewCopy] = []
    for alike, copies in groupby(rows, _alike):
        same = list(copies)
        if len(same) < _MANY:
            few += same
        else:
            _insert_alike(db, alike, same)
    if few:
        _insert_few(db, few)


def _insert_alike(
    db: sqlite3.Connection,
    alike: tuple[int, int | None, str | None, PartOf],
    rows: Sequence[NewCopy],
) -> None:
    """Insert the copies of one message."""
    arrived_at_ms, expires_at_s, reason, part = alike
    # As in outgoing.py: values that all copies share are literals of the statement.
    common = arrived_at_ms, expires_at_s, *part
    values = ", ".join("NULL" if value is None else str(int(value)) for value in common)
    vault = writing_vault(db)
    if vault is not None:
        db.executemany(
            "INSERT INTO message (key, packet, checksum, seal, reason, arrived_at_ms,"
            f" expires_at_s, part_id, part_bytes) VALUES (?, ?, ?, ?, ?, {values})",
            [(row[0], *vault.stored("message", row[0], row[4], part[0]), reason) for row in rows],
        )
        return
    db.executemany(
        "INSERT INTO message (key, packet, checksum, reason, arrived_at_ms, expires_at_s,"
        f" part_id, part_bytes) VALUES (?, ?, ?, ?, {values})",
        [(row[0], row[4], checksum_of(row[4]), reason) for row in rows],
    )


def _insert_few(db: sqlite3.Connection, rows: Sequence[NewCopy]) -> None:
    """Insert the copies of many messages, a few of each."""
    common = "arrived_at_ms, expires_at_s, reason, part_id, part_bytes, packet, checksum"
    size, vault = sum([len(row[4]) for row in rows]), writing_vault(db)
    if vault is not None:
        sealed = [
            (*row[:4], *row[5], *vault.stored("message", row[0], row[4], row[5][0])) for row in rows
        ]
        many_rows.insert(db, f"message (key, {common}, seal)", sealed, size)
        return
    plain = [(*row[:4], *row[5], row[4], checksum_of(row[4])) for row in rows]
    many_rows.insert(db, f"message (key, {common})", plain, size)


def _alike(row: NewCopy) -> tuple[int, int | None, str | None, PartOf]:
    _, arrived_at_ms, expires_at_s, reason, _, part = row
    return arrived_at_ms, expires_at_s, reason, part


def delete(db: sqlite3.Connection, keys: Sequence[int]) -> None:
    """Delete messages in one statement: SQLite sorts the keys and scans the table once."""
    if len(keys) == 1:
        lone_rows.delete(db, "message", keys[0])
        return
    among, listed = keys_among("key", keys)
    tally.leaving(db, "message", among, listed)
    with shared_parts.leaving(db, "message", among, listed):
        db.execute(f"DELETE FROM message WHERE {among}", listed)


def delete_run(db: sqlite3.Connection, first: int, last: int, size: int) -> None:
    """Delete all messages with keys from `first` to `last`, which are of one queue.

    `size`: the bytes of their packets, if each of these keys has a message.
    """
    among, ends = "key BETWEEN ? AND ?", (first, last)
    (count,) = db.execute(f"SELECT count(*) FROM message WHERE {among}", ends).fetchone()
    if count == last - first + 1:  # the sum of all keys is known
        gone = tally.Figures(count, (first + last) * count // 2, size, 0)
        tally.leave(db, "message", queue_id_of(first), gone)
    else:
        tally.leaving(db, "message", among, ends)
    with shared_parts.leaving(db, "message", among, ends):
        db.execute(f"DELETE FROM message WHERE {among}", ends)


def count_abort(db: sqlite3.Connection, keys: Sequence[int]) -> None:
    """Increment the abort count of messages: the transaction that had received them was aborted."""
    db.execute(
        "UPDATE message SET abort_count = abort_count + 1"
        " WHERE key IN (SELECT value FROM json_each(?))",
        (key_list(keys),),
    )


class Move(NamedTuple):
    """A move of a message from one key to another.

    `packet` replaces its packet; the message then has no reason and no expiry.
    """

    key: int
    to_key: int
    packet: bytes | None = None


def move(db: sqlite3.Connection, moves: Sequence[Move], at_ms: int) -> set[int]:
    """Move messages and return the old keys of those that existed."""
    found = {
        key
        for (key,) in db.execute(
            "SELECT key FROM message WHERE key IN (SELECT value FROM json_each(?))",
            (key_list([each.key for each in moves]),),
        )
    }
    present = [each for each in moves if each.key in found]
    among = "key IN (SELECT value FROM json_each(?))"
    tally.leaving(db, "message", among, (key_list(list(found)),))
    db.executemany(
        "UPDATE message SET key = ?, move_count = move_count + 1, last_move_at_ms = ?"
        " WHERE key = ?",
        [(each.to_key, at_ms, each.key) for each in present],
    )
    vault = writing_vault(db)
    changed: list[tuple[bytes, int, bytes | None, int]] = []
    for each in present:
        if each.packet is None:
            continue
        if vault is None:
            changed.append((each.packet, checksum_of(each.packet), None, each.to_key))
        else:
            changed.append((*vault.stored("message", each.to_key, each.packet), each.to_key))
    if vault_of(db) is not None:
        _seal_again(db, [each for each in present if each.packet is None])
    if changed:
        keys = key_list([key for *_, key in changed])
        with shared_parts.leaving(db, "message", among, (keys,)):
            db.executemany(
                "UPDATE message SET packet = ?, checksum = ?, seal = ?, part_id = NULL,"
                " part_bytes = 0, reason = NULL, expires_at_s = NULL WHERE key = ?",
                changed,
            )
    tally.arrived(db, "message", among, (key_list([each.to_key for each in present]),))
    return found


def _seal_again(db: sqlite3.Connection, moved: Sequence[Move]) -> None:
    """Seal the packets of moved rows for their new keys; a damaged packet stays as it is."""
    vault = vault_of(db)
    assert vault is not None
    for each in moved:
        packet, seal, part_id = db.execute(
            "SELECT packet, seal, part_id FROM message WHERE key = ?", (each.to_key,)
        ).fetchone()
        if seal is None:
            continue
        again = vault.moved("message", each.key, "message", each.to_key, packet, seal, part_id)
        db.execute(
            "UPDATE message SET packet = ?, checksum = ?, seal = ? WHERE key = ?",
            (*again, each.to_key),
        )


def set_history(db: sqlite3.Connection, rows: Iterable[tuple[int, int, int, int | None]]) -> None:
    """Set the history of messages: key, abort count, move count and last move of each."""
    db.executemany(
        "UPDATE message SET abort_count = ?2, move_count = ?3, last_move_at_ms = ?4 WHERE key = ?1",
        rows,
    )


def find(db: sqlite3.Connection, key: int) -> MessageRow | None:
    row = db.execute(f"SELECT {COLUMNS} FROM message WHERE key = ?", (key,)).fetchone()
    return None if row is None else shared_parts.whole(db, MessageRow._make(row))


def page(
    db: sqlite3.Connection,
    queue_id: int,
    from_lookup: int = 0,
    rows_max: int = PAGE_ROWS_MAX,
    bytes_max: int = PAGE_BYTES_MAX,
) -> list[MessageRow]:
    """Return the next messages from `from_lookup` on, itself included, in the order of receiving.

    Stops after `rows_max` rows, or with the row that brings the packets to `bytes_max`.  The page
    after it begins at `lookup_id_of(rows[-1].key) + 1`; an empty page is the end.
    """
    cursor = db.execute(
        f"SELECT {COLUMNS} FROM message WHERE key BETWEEN ? AND ? ORDER BY key LIMIT ?",
        (*queue_range(queue_id, from_lookup), rows_max),
    )
    return pages.take(cursor, MessageRow._make, bytes_max)


def heads_page(
    db: sqlite3.Connection, queue_id: int, from_lookup: int, rows_max: int, head_bytes: int
) -> list[tuple[MessageRow, int]]:
    """Return the next messages as `page` does, with the beginnings of their packets, and the sizes
    of the whole packets in bytes.

    The packet is empty if it is encrypted or shares its end with others.  No row can be checked.
    """
    cursor = db.execute(
        "SELECT key, arrived_at_ms, expires_at_s, reason, abort_count, move_count, last_move_at_ms,"
        " NULL, NULL, NULL,"
        " CASE WHEN seal IS NULL AND part_id IS NULL THEN substr(packet, 1, ?) ELSE x'' END,"
        " length(packet) + part_bytes"
        " FROM message WHERE key BETWEEN ? AND ? ORDER BY key LIMIT ?",
        (head_bytes, *queue_range(queue_id, from_lookup), rows_max),
    )
    return [(MessageRow._make(row[:-1]), row[-1]) for row in cursor]


def beside(
    db: sqlite3.Connection,
    queue_id: int,
    lookup_id: int | None,
    *,
    backwards: bool,
    inclusive: bool,
) -> MessageRow | None:
    """Return the nearest message before or after a place, or (`lookup_id` None) at an end."""
    first, last = queue_range(queue_id)
    if lookup_id is not None:
        place = first | lookup_id
        step = 0 if inclusive else 1
        first, last = (first, place - step) if backwards else (place + step, last)
        if inclusive:
            first = last = place
    order = "DESC" if backwards else "ASC"
    row = db.execute(
        f"SELECT {COLUMNS} FROM message WHERE key BETWEEN ? AND ? ORDER BY key {order} LIMIT 1",
        (first, last),
    ).fetchone()
    return None if row is None else shared_parts.whole(db, MessageRow._make(row))


def find_all(db: sqlite3.Connection, keys: Sequence[int]) -> list[MessageRow]:
    """Return the messages with these keys that exist, in the order of receiving."""
    rows = db.execute(
        f"SELECT {COLUMNS} FROM message WHERE key IN (SELECT value FROM json_each(?)) ORDER BY key",
        (key_list(keys),),
    )
    return [shared_parts.whole(db, MessageRow._make(row)) for row in rows]


def sizes(
    db: sqlite3.Connection, queue_id: int, from_lookup: int = 0, *, rows_max: int
) -> list[tuple[int, int]]:
    """Return key and bytes of the next messages of a queue from `from_lookup` on, itself included.

    The packets are not read.
    """
    return db.execute(
        "SELECT key, length(packet) + part_bytes FROM message WHERE key BETWEEN ? AND ?"
        " ORDER BY key LIMIT ?",
        (*queue_range(queue_id, from_lookup), rows_max),
    ).fetchall()


def totals(db: sqlite3.Connection, queue_id: int) -> Totals:
    return pages.totals_between(db, "message", *queue_range(queue_id))


def totals_by_queue(db: sqlite3.Connection) -> dict[int, Totals]:
    """Return the totals of all queues that are not empty, without counting; used at start."""
    return {
        queue_id: Totals(figures.rows, figures.bytes)
        for queue_id, figures in tally.totals(db, "message").items()
    }


def purge(db: sqlite3.Connection, queue_id: int, rows_max: int) -> Totals:
    """Delete the first messages of the queue, at most `rows_max`; return the deleted totals.

    All other changes wait for the writer: empty a long queue in several units of some thousand
    rows.
    """
    first, last = queue_range(queue_id)
    beyond = db.execute(
        "SELECT key FROM message WHERE key BETWEEN ? AND ? ORDER BY key LIMIT 1 OFFSET ?",
        (first, last, rows_max),
    ).fetchone()
    return _delete_range(db, first, last if beyond is None else beyond[0] - 1)


def delete_all(db: sqlite3.Connection, queue_id: int) -> Totals:
    return _delete_range(db, *queue_range(queue_id))


def _delete_range(db: sqlite3.Connection, first: int, last: int) -> Totals:
    deleted = tally.leaving(db, "message", "key BETWEEN ? AND ?", (first, last))
    with shared_parts.leaving(db, "message", "key BETWEEN ? AND ?", (first, last)):
        db.execute("DELETE FROM message WHERE key BETWEEN ? AND ?", (first, last))
    return deleted
