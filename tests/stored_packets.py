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
    seals = "seal" in columns
    vault = Vault([STORAGE_KEY])
    for found, head, part_id, part, seal, seal_of_part in db.execute(
        f"SELECT {key}, {table}.packet, part_id, shared_part.packet,"
        f" {f'{table}.seal, shared_part.seal' if seals else 'NULL, NULL'} FROM {table}"
        f" LEFT JOIN shared_part ON shared_part.id = part_id ORDER BY {key}"
    ):
        assert (part_id is None) == (part is None), f"part {part_id} of {found} is not there"
        if seal is not None:
            head, checksum = vault.opened(table, found, head, seal, part_id)
            assert crc32(head) == checksum, f"{found} cannot be decrypted"
        if seal_of_part is not None:
            part, checksum = vault.opened("shared_part", part_id, part, seal_of_part)
            assert crc32(part) == checksum, f"part {part_id} cannot be decrypted"
        yield found, head if part is None else head + part


def missing_parts(db: sqlite3.Connection) -> list[int]:
    """Return named parts that are missing or have another length: there must be none."""
    return [
        part_id
        for table in ("message", "outgoing", "awaiting")
        for (part_id,) in db.execute(
            f"SELECT part_id FROM {table} WHERE part_id IS NOT NULL AND part_bytes IS NOT"
            " (SELECT length(packet) FROM shared_part WHERE id = part_id)"
        )
    ]


def unshared_parts(db: sqlite3.Connection) -> list[int]:
    """Return parts that no row names: there must be none."""
    named = " UNION ".join(
        f"SELECT part_id FROM {table} WHERE part_id IS NOT NULL"
        for table in ("message", "outgoing", "awaiting")
    )
    rows = db.execute(f"SELECT id FROM shared_part WHERE id NOT IN ({named})")
    return [part_id for (part_id,) in rows]


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
