"""Rewriting of all packets of a folder: encrypted with another key, or not at all.

No daemon may run.  The rows are rewritten in small commits, so a run that was killed is continued
by the next one.  Then the database is copied into a new file, because SQLite leaves the content of
changed and deleted rows in its file; the old file is replaced when the copy is durable.
"""

import os
import sqlite3
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import NamedTuple

from storage.engine.hindrance import explain
from storage.engine.missing import DATABASE, LOG
from storage.engine.recovery import sync_folder
from storage.errors import CannotStart
from storage.options import StorageOptions
from storage.rescue.check import locked
from storage.storage import Storage
from storage.tables import sealing
from storage.tables.sealing import RecordedKey
from storage.vault import TABLES

COPY = "queues.db.rewritten"


class Rewritten(NamedTuple):
    unreadable: int  # damaged rows, which stay as they are


class KeyUse(NamedTuple):
    recorded: list[RecordedKey]
    rows: dict[bytes, int]  # by key; b"": not encrypted


def examine(folder: Path) -> KeyUse:
    """Return the keys that a folder needs, and their rows; the folder is not changed.

    Raises CannotStart.
    """
    try:
        with locked(folder), closing(_open(folder / DATABASE)) as db:
            db.execute("PRAGMA query_only = ON")
            return KeyUse(sealing.recorded_keys(db), dict(sealing.rows_by_key(db)))
    except sqlite3.Error as error:
        raise CannotStart(f"{folder / DATABASE} cannot be read: {explain(error)}") from error


async def rewrite(
    folder: Path, options: StorageOptions, now_ms: int, progress: Callable[[], None]
) -> Rewritten:
    """Rewrite all packets as `options` require for new ones.  Raises CannotStart, StorageError."""
    if not (folder / DATABASE).is_file():
        raise CannotStart(f"there is no {DATABASE} in {folder}", code="no_database")
    storage = await Storage.open(folder, options, now_ms=now_ms, new_id=os.urandom(16))
    unreadable = 0
    try:
        for table in TABLES:
            after: int | None = -1
            while after is not None:
                unit = partial(sealing.rewrite, table=table, after=after)
                after, damaged = await storage.batch.run(unit)
                unreadable += damaged
                progress()
        kept = (
            frozenset((options.keys[0].id,)) if options.keys and options.encrypts else frozenset()
        )
        if not unreadable:
            await storage.batch.run(partial(sealing.forget_keys, kept=kept))
    finally:
        await storage.close()
    try:
        with locked(folder):
            _copy(folder)
    except (OSError, sqlite3.Error) as error:
        raise CannotStart(
            f"all rows are rewritten, but {folder / DATABASE}, which may still have their former"
            f" content in free space, could not be copied: {explain(error)}"
        ) from error
    return Rewritten(unreadable)


def _copy(folder: Path) -> None:
    """Replace the database by a copy without free space.  Raises OSError, sqlite3.Error."""
    copy = folder / COPY
    copy.unlink(missing_ok=True)
    with closing(_open(folder / DATABASE)) as db:
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        db.execute("VACUUM INTO ?", (str(copy),))
    if (folder / LOG).exists():
        raise OSError(0, f"another program has {DATABASE} open")
    descriptor = os.open(copy, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        os.fchmod(descriptor, (folder / DATABASE).stat().st_mode & 0o777)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    copy.replace(folder / DATABASE)
    sync_folder(folder)


def _open(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(path, isolation_level=None)
