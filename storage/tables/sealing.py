"""Table `sealing_key`, and the rewriting of rows: with another key, or without any.

The table names each key that some row may need.  A key is recorded before its first row, and
deleted when `rewrite` has left none of its rows.
"""

import sqlite3
from collections import Counter
from typing import NamedTuple
from zlib import crc32

from storage.errors import KeyMissing
from storage.tables.damaged import is_whole
from storage.vault import KEY_ID_BYTES, TABLES, Vault, attach, vault_of

PAGE_ROWS_MAX = 256
PAGE_BYTES_MAX = 4 * 1024 * 1024


class RecordedKey(NamedTuple):
    key_id: bytes
    since_s: int


def recorded_keys(db: sqlite3.Connection) -> list[RecordedKey]:
    """Return the keys that rows may need, in the order of their first use."""
    if not db.execute("SELECT 1 FROM sqlite_master WHERE name = 'sealing_key'").fetchone():
        return []  # an older schema
    rows = db.execute("SELECT key_id, since_s FROM sealing_key ORDER BY id")
    return list(map(RecordedKey._make, rows))


def require_keys(db: sqlite3.Connection, vault: Vault | None) -> None:
    """Check that all recorded keys are in the vault.  Raises KeyMissing."""
    require({each.key_id for each in recorded_keys(db)}, vault)


def require(needed: set[bytes], vault: Vault | None) -> None:
    """Check that the vault has these keys.  Raises KeyMissing."""
    missing = needed - (frozenset() if vault is None else vault.key_ids)
    if missing:
        names = ", ".join(sorted(each.hex() for each in missing))
        have = "none" if vault is None else ", ".join(sorted(each.hex() for each in vault.key_ids))
        raise KeyMissing(
            f"queues.db has packets that are encrypted with the storage key {names}; the"
            f" configured keys are: {have}"
        )


def begin(db: sqlite3.Connection, vault: Vault | None, now_s: int) -> None:
    """Let the tables use the vault, after its key is recorded durably."""
    if vault is not None and vault.seals:
        record_key(db, vault.key_id, now_s)
    attach(db, vault)


def record_key(db: sqlite3.Connection, key_id: bytes, now_s: int) -> None:
    db.execute("INSERT OR IGNORE INTO sealing_key (key_id, since_s) VALUES (?, ?)", (key_id, now_s))


def forget_keys(db: sqlite3.Connection, kept: frozenset[bytes]) -> None:
    """Delete the keys that are not in `kept`; no row may need them."""
    for each in recorded_keys(db):
        if each.key_id not in kept:
            db.execute("DELETE FROM sealing_key WHERE key_id = ?", (each.key_id,))


def rows_by_key(db: sqlite3.Connection) -> Counter[bytes]:
    """Return the number of rows by the key that they need; b"": not encrypted."""
    found: Counter[bytes] = Counter()
    for table in TABLES:
        of_row = f"coalesce(substr(seal, 2, {KEY_ID_BYTES}), x'')"
        rows = db.execute(f"SELECT {of_row}, count(*) FROM {table} GROUP BY 1")
        for key_id, count in rows:
            found[key_id] += count
    return +found


def rewrite(db: sqlite3.Connection, table: str, after: int) -> tuple[int | None, int]:
    """Write the next rows of a table, after the key `after`, as the vault writes new rows.

    Returns the last key that was examined (None at the end) and the number of rows that cannot be
    opened, because they were changed or their key is not known; these stay as they are.
    """
    vault = vault_of(db)
    assert vault is not None
    key, packet, part = _COLUMNS.get(table, ("id", "packet", "NULL"))
    has_checksum = table not in _WITHOUT_CHECKSUM
    checksum_column = "checksum" if has_checksum else "NULL"
    rows = db.execute(
        f"SELECT {key}, {packet}, seal, {part}, {checksum_column} FROM {table}"
        f" WHERE {key} > ? ORDER BY {key} LIMIT ?",
        (after, PAGE_ROWS_MAX),
    )
    changed: list[tuple[bytes, int | None, bytes | None, int]] = []
    last, size, unreadable = None, 0, 0
    for last, stored, seal, part_id, of_stored in rows:
        if vault.is_current(seal):
            continue
        plain, checksum = stored, of_stored
        if seal is None:
            # A damaged row must not become a valid one.
            if has_checksum and not is_whole(stored, of_stored):
                unreadable += 1
                continue
        else:
            plain, checksum = vault.opened(table, last, stored, seal, part_id)
            if checksum != crc32(plain):
                unreadable += 1
                continue
        size += len(plain)
        if vault.seals:
            changed.append((*vault.stored(table, last, plain, part_id), last))
        else:
            changed.append((plain, checksum, None, last))
        if size >= PAGE_BYTES_MAX:
            break
    rows.close()
    for new, checksum, seal, row in changed:
        values = [new, seal, checksum] if has_checksum else [new, seal]
        sums = ", checksum = ?" if has_checksum else ""
        db.execute(
            f"UPDATE {table} SET {packet} = ?, seal = ?{sums} WHERE {key} = ?", (*values, row)
        )
    return last, unreadable


#: Columns of the key, the packet and the shared part, where they have other names.
_COLUMNS = {
    "message": ("key", "packet", "part_id"),
    "outgoing": ("key", "packet", "part_id"),
    "awaiting": ("number", "packet", "part_id"),
    "shared_part": ("id", "packet", "follows"),
    "stage": ("id", "data", "NULL"),
    "delayed": ("number", "data", "NULL"),
}
_WITHOUT_CHECKSUM = frozenset(("damaged", "stage"))
