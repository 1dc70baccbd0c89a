"""The packets of a data folder's tables, each with the parts that it shares with other copies.

Also the memory that packets take, where they share parts likewise.

"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator
from zlib import crc32

from qmd.message.shared_packet import Packet
from storage.vault import StorageKey, Vault

#: The key of all encrypted folders of the tests.
STORAGE_KEY = StorageKey(bytes(range(32)))


def packets(db: sqlite3.Connection, table: str, key: str = "key") -> Iterator[tuple[int, bytes]]:
    """Yield packets of `message`, `outgoing` or `awaiting`, by `key`; of any schema version."""
    columns = {name for _, name, *_ in db.execute(f"PRAGMA table_info({table})")}
    if "part_id" not in columns:
        yield from db.execute(f"SELECT {key}, packet FROM {table} ORDER BY {key}")
        return
    seal = "seal" if "seal" in columns else "NULL"
    vault = Vault([STORAGE_KEY])
    for found, head, part_id, seal_of_row in db.execute(
        f"SELECT {key}, packet, part_id, {seal} FROM {table} ORDER BY {key}"
    ):
        part = b"" if part_id is None else _part(db, part_id, vault)
        assert part is not None, f"part {part_id} of {found} is not there"
        if seal_of_row is not None:
            head, checksum = vault.opened(table, found, head, seal_of_row, part_id)
            assert crc32(head) == checksum, f"{found} cannot be decrypted"
        yield found, head + part


def _part(db: sqlite3.Connection, part_id: int, vault: Vault | None = None) -> bytes | None:
    """Return a part with all its pieces, None if one is missing; of any schema version."""
    columns = {name for _, name, *_ in db.execute("PRAGMA table_info(shared_part)")}
    seal, follows = (column if column in columns else "NULL" for column in ("seal", "follows"))
    part, id_ = b"", part_id
    while id_ is not None:
        row = db.execute(
            f"SELECT packet, {seal}, {follows} FROM shared_part WHERE id = ?", (id_,)
        ).fetchone()
        if row is None:
            return None
        packet, seal_of_row, before = row
        if seal_of_row is not None and vault is not None:
            packet, checksum = vault.opened("shared_part", id_, packet, seal_of_row, before)
            assert crc32(packet) == checksum, f"part {id_} cannot be decrypted"
        part, id_ = packet + part, before
    return part


def missing_parts(db: sqlite3.Connection) -> list[int]:
    """Return named parts that are missing or have another length: there must be none."""
    return [
        part_id
        for table in ("message", "outgoing", "awaiting")
        for part_id, size in db.execute(
            f"SELECT part_id, part_bytes FROM {table} WHERE part_id IS NOT NULL"
        )
        if (part := _part(db, part_id)) is None or len(part) != size
    ]


def unshared_parts(db: sqlite3.Connection) -> list[int]:
    """Return parts that no row names, and that no message in progress needs: there must be none."""
    named = {
        part_id
        for table in ("message", "outgoing", "awaiting")
        for (part_id,) in db.execute(f"SELECT part_id FROM {table} WHERE part_id IS NOT NULL")
    }
    columns = {name for _, name, *_ in db.execute("PRAGMA table_info(shared_part)")}
    follows = "follows" if "follows" in columns else "NULL"
    rows = dict(db.execute(f"SELECT id, {follows} FROM shared_part"))
    named |= set(rows.values())
    if "follows" in columns:
        named |= {id_ for (id_,) in db.execute("SELECT id FROM part_ahead")}
    return [part_id for part_id in rows if part_id not in named]


def memory_bytes(packets: Iterable[Packet]) -> int:
    """Return the memory of these packets together; a shared part counts once."""
    size = 0
    parts: set[int] = set()
    for packet in packets:
        if isinstance(packet, bytes):
            size += len(packet)
            continue
        size += len(packet.head)
        if id(packet.part) not in parts:
            parts.add(id(packet.part))
            size += len(packet.part.packet)
    return size
