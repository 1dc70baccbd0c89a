"""Direct access to the thread of an aiosqlite connection, and the settings of a connection.

aiosqlite sends each statement to its thread separately, at some 25 µs each way.  A batch must cross
once, so `submit` puts a function of the plain `sqlite3.Connection` into the thread's queue. That
uses three private names of aiosqlite 0.22.1, `_tx`, `_conn` and `_thread`, only in this module; a
test detects a new version that changes them.  A simulator replaces the first and the last.
`at_once` and `opened` use the connection on the thread of the caller.
"""

import asyncio
import sqlite3
from collections.abc import Callable
from functools import partial
from typing import Any, Generic, TypeVar

import aiosqlite

from storage.errors import CannotStart
from storage.options import StorageOptions
from storage.vault import Vault, VaultConnection, attach

THREAD_END_S = 1.0

T = TypeVar("T")
Work = Callable[[sqlite3.Connection], T]


def connect(path: str) -> aiosqlite.Connection:
    """Return a connection that is not open yet, with which the tables can find the vault."""
    # `at_once` may use it on another thread: SQLite serializes the calls.
    return aiosqlite.connect(path, factory=VaultConnection, check_same_thread=False)


async def open_connection(
    connect: Callable[[str], aiosqlite.Connection], path: str
) -> aiosqlite.Connection:
    """Start the connection's thread and open it there.  Raises sqlite3.Error."""
    connection = connect(path)
    # Otherwise aiosqlite's thread would keep the process alive after a crash, which does not close
    # it.
    connection._thread.daemon = True
    try:
        return await connection
    except BaseException:
        # The thread reports its end to the loop, which must still exist then.
        connection._thread.join(THREAD_END_S)
        raise


def submit(connection: aiosqlite.Connection, work: Work[T]) -> asyncio.Future[T]:
    """Run `work` on the connection's thread after all work submitted earlier."""
    future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
    connection._tx.put_nowait((future, partial(work, connection._conn)))
    return future


class _Call(Generic[T]):
    """The future that aiosqlite's thread gets for a call, where a callback replaces it.

    A real future would call its callback one turn of the loop later.
    """

    __slots__ = ("_callback", "_loop")

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        callback: Callable[[T | None, BaseException | None], None],
    ) -> None:
        self._loop = loop
        self._callback = callback

    def get_loop(self) -> asyncio.AbstractEventLoop:
        return self._loop

    def done(self) -> bool:
        return False

    def set_result(self, result: T) -> None:
        self._callback(result, None)

    def set_exception(self, error: BaseException) -> None:
        self._callback(None, error)


def submit_then(
    connection: aiosqlite.Connection,
    work: Work[T],
    loop: asyncio.AbstractEventLoop,
    callback: Callable[[T | None, BaseException | None], None],
) -> None:
    """Run `work` as `submit` does, and call `callback` with its result or its exception on `loop`.

    It is called in the turn of the loop in which the loop is notified.
    """
    call: Any = _Call(loop, callback)
    connection._tx.put_nowait((call, partial(work, connection._conn)))


def opened(connection: aiosqlite.Connection) -> sqlite3.Connection:
    """Return the plain connection of an open one, for work on the thread of the caller.

    The connection's thread must have no work meanwhile.
    """
    db: sqlite3.Connection = connection._conn
    return db


def at_once(connection: aiosqlite.Connection, work: Work[T]) -> T:
    """Run `work` on the thread of the caller.

    The connection only reads: it may have work on its thread meanwhile, because SQLite lets the
    statements wait for each other.
    """
    return work(connection._conn)


def set_up_writer(db: sqlite3.Connection, options: StorageOptions) -> None:
    _set_up(db, options)
    if db.execute("PRAGMA page_count").fetchone() == (0,):
        # These cannot be changed later.  INCREMENTAL: the file can be shrunk on request.
        db.execute(f"PRAGMA page_size = {options.page_bytes}")
        db.execute("PRAGMA auto_vacuum = INCREMENTAL")
    # One sync per commit, and readers that do not wait for the writer.
    mode = db.execute("PRAGMA journal_mode = WAL").fetchone()[0]
    if mode != "wal":
        raise CannotStart(
            f"the file system of the data folder does not support the write-ahead log ({mode})",
            code="no_write_ahead_log",
        )
    # Durability: COMMIT returns when the log is on disk.  NORMAL would sync at checkpoints only.
    db.execute("PRAGMA synchronous = FULL")
    (page_bytes,) = db.execute("PRAGMA page_size").fetchone()
    db.execute(f"PRAGMA wal_autocheckpoint = {options.log_pages_max(page_bytes)}")
    db.execute(f"PRAGMA journal_size_limit = {options.wal_size_limit_bytes}")
    # Debian's SQLite overwrites deleted data with zeros, which costs 10 to 19 % of a long queue's
    # speed.
    db.execute("PRAGMA secure_delete = OFF")


def set_up_reader(
    db: sqlite3.Connection, options: StorageOptions, vault: Vault | None = None
) -> None:
    _set_up(db, options)
    attach(db, vault)
    db.execute("PRAGMA query_only = ON")


def _set_up(db: sqlite3.Connection, options: StorageOptions) -> None:
    # The code issues BEGIN and COMMIT itself.
    db.isolation_level = None
    db.execute(f"PRAGMA busy_timeout = {options.busy_timeout_ms}")
    db.execute(f"PRAGMA cache_size = -{options.cache_bytes // 1024}")
    # No temporary files: not outside the data folder, and not on a full disk.
    db.execute("PRAGMA temp_store = MEMORY")
