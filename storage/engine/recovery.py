"""Checks and repairs at start, before the files are trusted.

**The log is rewritten.**  A commit writes pages to `queues.db-wal` and syncs them.  When that sync
fails, the commit fails and the daemon stops; but Linux drops the error together with the pages'
dirty marks, so that the page cache holds a commit that the disk does not, and no later sync will
write it.  The next start would read that commit from the cache, acknowledge its messages to a peer,
and lose them at a loss of power.  So before SQLite opens the database, the log is overwritten with
its own bytes, which makes its pages dirty again, and synced, with its folder.  If that fails, the
daemon must not start.

The database file does not need this: a checkpoint that cannot sync it leaves the log in place, and
the next one copies every page of the log again.

**After an unclean stop the database is checked** by SQLite's `quick_check`, unless it is so large
that this would take long: it reads every page, at about a second per GiB in the page cache.
"""

import os
import sqlite3
from pathlib import Path
from typing import NamedTuple

from storage.engine.hindrance import can_wait
from storage.errors import DatabaseDamaged
from storage.tables import shared_parts

CHUNK_BYTES = 1024 * 1024
PROBLEMS_MAX = 5


class Recovery(NamedTuple):
    """The findings of the start, for the daemon's log."""

    was_clean: bool  # of the last stop; True at the first start
    log_bytes: int
    database_bytes: int
    checked: bool


def rewrite_log(path: Path) -> int:
    """Overwrite the file with its own bytes and sync it and its folder.

    Returns its size in bytes, 0 if it does not exist.  Raises OSError.
    """
    try:
        file = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return 0
    try:
        offset = 0
        while chunk := os.pread(file, CHUNK_BYTES, offset):
            offset += os.pwrite(file, chunk, offset)
        os.fsync(file)
    finally:
        os.close(file)
    sync_folder(path.parent)
    return offset


def sync_folder(folder: Path) -> None:
    """Sync a folder: only this makes new and removed names durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def check(db: sqlite3.Connection) -> None:
    """Check the database.  Raises DatabaseDamaged with the first problems that SQLite finds."""
    try:
        found = [str(row[0]) for row in db.execute(f"PRAGMA quick_check({PROBLEMS_MAX})")]
    except sqlite3.DatabaseError as error:
        found = [str(error)]
    if found != ["ok"]:
        raise DatabaseDamaged(
            f"queues.db is damaged: {'; '.join(found)}; `qmd check` reports which data can be saved"
        )


def delete_unused_pieces(db: sqlite3.Connection) -> None:
    """Delete the pieces of large packets that the last run had not accepted when it ended.

    On a full disk they stay until a later start.
    """
    if not shared_parts.any_ahead(db):
        return
    try:
        db.execute("BEGIN IMMEDIATE")
        shared_parts.delete_all_ahead(db)
        db.execute("COMMIT")
    except (sqlite3.Error, MemoryError) as error:
        if db.in_transaction:
            db.execute("ROLLBACK")
        if not can_wait(error):
            raise
