"""The step below aiosqlite's surface, and how a connection is set up.

aiosqlite sends each statement to its thread by itself, at some 25 µs each way.  A batch must cross
once, so `submit` puts a function of the plain `sqlite3.Connection` into the thread's queue.  That
uses three private names of aiosqlite 0.22.1, `_tx`, `_conn` and `_thread`, here and nowhere else; a
test says so when a new version changes them.  A simulator replaces the first and the last.
"""

import asyncio
import sqlite3
from collections.abc import Callable
from functools import partial
from typing import TypeVar

import aiosqlite

from storage.errors import CannotStart
from storage.options import PAGE_BYTES, StorageOptions

THREAD_END_S = 1.0

T = TypeVar("T")
Work = Callable[[sqlite3.Connection], T]


async def open_connection(
    connect: Callable[[str], aiosqlite.Connection], path: str
) -> aiosqlite.Connection:
    """Start the connection's thread and open it there.  Raises sqlite3.Error."""
    connection = connect(path)
    # aiosqlite's thread would keep a process that is ending from ending: nobody closes on a crash.
    connection._thread.daemon = True
    try:
        return await connection
    except BaseException:
        # It tells the loop that it has ended, and the loop must still be there.
        connection._thread.join(THREAD_END_S)
        raise


def submit(connection: aiosqlite.Connection, work: Work[T]) -> asyncio.Future[T]:
    """Run `work` on the connection's thread after what was submitted before."""
    future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
    connection._tx.put_nowait((future, partial(work, connection._conn)))
    return future


def set_up_writer(db: sqlite3.Connection, options: StorageOptions) -> None:
    _set_up(db, options)
    if db.execute("PRAGMA page_count").fetchone() == (0,):
        # These are for life.  INCREMENTAL: the file shrinks again, when asked.
        db.execute(f"PRAGMA page_size = {PAGE_BYTES}")
        db.execute("PRAGMA auto_vacuum = INCREMENTAL")
    # One sync a commit, and readers that do not wait for the writer.
    mode = db.execute("PRAGMA journal_mode = WAL").fetchone()[0]
    if mode != "wal":
        raise CannotStart(
            f"the file system of the data folder allows no write-ahead log ({mode})",
            code="no_write_ahead_log",
        )
    # The promise: COMMIT returns when the log is on the disk.  NORMAL syncs at checkpoints only.
    db.execute("PRAGMA synchronous = FULL")
    db.execute(f"PRAGMA wal_autocheckpoint = {options.log_pages_max}")
    db.execute(f"PRAGMA journal_size_limit = {options.wal_size_limit_bytes}")
    # Debian's SQLite overwrites what it deletes with zeros, 10 to 19 % of a long queue's speed.
    db.execute("PRAGMA secure_delete = OFF")


def set_up_reader(db: sqlite3.Connection, options: StorageOptions) -> None:
    _set_up(db, options)
    db.execute("PRAGMA query_only = ON")


def _set_up(db: sqlite3.Connection, options: StorageOptions) -> None:
    # We say BEGIN and COMMIT ourselves.
    db.isolation_level = None
    db.execute(f"PRAGMA busy_timeout = {options.busy_timeout_ms}")
    db.execute(f"PRAGMA cache_size = -{options.cache_bytes // 1024}")
    # No temporary files anywhere: not outside the data folder, and not on a full disk.
    db.execute("PRAGMA temp_store = MEMORY")
