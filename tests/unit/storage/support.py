"""Helpers for tests of the storage: opening a folder, a database without a loop, waiting."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from storage import Storage, StorageOptions
from storage.engine import schema
from storage.tables import messages
from storage.tables.keys import message_key
from storage.vault import StorageKey, Vault, VaultConnection, attach

NOW_MS = 1_700_000_000_000
NOW_S = NOW_MS // 1000
OWN_ID = b"own-queue-manager"[:16]
SOURCE = b"the-other-manager"[:16]
PACKET = b"a packet"
KEY, OTHER_KEY = StorageKey(b"k" * 32), StorageKey(b"o" * 32)

#: No reserve file: it would cost 64 MiB per test.
OPTIONS = StorageOptions(disk_reserve_bytes=0, disk_watermark_bytes=0)


@asynccontextmanager
async def opened(folder: Path, **changes: Any) -> AsyncIterator[Storage]:
    """Open the storage in `folder`, and close it at the end.

    `connect` and `disk` are passed to `Storage.open`.
    """
    seams = {name: changes.pop(name) for name in ("connect", "disk") if name in changes}
    options = replace(OPTIONS, **changes)
    storage = await Storage.open(folder, options, now_ms=NOW_MS, new_id=OWN_ID, **seams)
    try:
        yield storage
    finally:
        await storage.close()


async def durable(storage: Storage) -> None:
    """Wait until the open batch is on the disk.  Raises StorageError."""
    done = asyncio.get_running_loop().create_future()
    storage.batch.when_durable(lambda: done.set_result(None))
    await asyncio.wait({done, storage.failed}, return_when=asyncio.FIRST_COMPLETED)
    if not done.done():
        await storage.failed


def memory_database(vault: Vault | None = None) -> sqlite3.Connection:
    """Return a database in memory with the current schema, for functions of the tables.

    With a vault, its packets are encrypted.
    """
    db = sqlite3.connect(":memory:", isolation_level=None, factory=VaultConnection)
    schema.prepare(db, [], now_s=NOW_S, new_id=OWN_ID)
    attach(db, vault)
    return db


def other_connection(folder: Path) -> sqlite3.Connection:
    """Open the database as another program would, such as an operator's."""
    return sqlite3.connect(folder / "queues.db", isolation_level=None, timeout=0)


def key(arrival: int) -> int:
    return message_key(16, 7, arrival)


def insert(storage: Storage, *arrivals: int) -> None:
    for arrival in arrivals:
        storage.batch.insert_message(key(arrival), PACKET, arrived_at_ms=1)


async def stored(storage: Storage) -> list[int]:
    return [row.key for row in await storage.read(lambda db: messages.page(db, 16))]


def raise_error(error: Exception) -> Callable[[object], None]:
    def fail(_: object) -> None:
        raise error

    return fail
