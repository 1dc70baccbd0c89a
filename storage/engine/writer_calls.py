"""The connection that writes: calls on its thread, and calls at once on the event loop's thread.

A call on the connection's thread takes the interpreter from the loop and gives it back: for each
statement of SQLite several times, if the loop is busy.  For the commit of one message these
hand-overs are most of the work.  A call at once has none; meanwhile the loop does nothing else.

Calls at once do not wait for locks of other programs: they raise SQLITE_BUSY instead, and the same
call on the thread waits.
"""

import asyncio
import sqlite3
from collections.abc import Callable
from functools import partial

import aiosqlite

from storage.engine.connection import T, Work, opened, submit_then

_BUSY_TIMEOUT = "PRAGMA busy_timeout = {}"


class WriterCalls:
    """The calls of the connection that writes, one at a time."""

    def __init__(self, connection: aiosqlite.Connection, loop: asyncio.AbstractEventLoop) -> None:
        self._connection = connection
        self._db = opened(connection)
        self._loop = loop
        self._busy_timeout_ms = 0  # on the thread, once it differs from that of the connection
        self._waits_for_locks = True
        self._under_way = 0

    @property
    def is_idle(self) -> bool:
        """Whether no call is on the thread, so that one may be made at once."""
        return not self._under_way

    def begin(
        self, work: Work[T], callback: Callable[[T | None, BaseException | None], None]
    ) -> None:
        """Run `work` on the thread, and call `callback` with its result or its exception."""
        self._under_way += 1
        submit_then(
            self._connection,
            partial(self._patiently, work=work),
            self._loop,
            partial(self._ended, callback),
        )

    async def call(self, work: Work[T]) -> T:
        """Run `work` on the thread; return its result.  A cancelled caller does not end it."""
        future: asyncio.Future[T] = self._loop.create_future()
        self.begin(work, partial(_settle, future))
        return await future

    def at_once(self, work: Work[T]) -> T:
        """Run `work` on the thread of the caller, that of the loop.  No call may be under way."""
        assert not self._under_way
        db = self._db
        if self._waits_for_locks:
            (self._busy_timeout_ms,) = db.execute("PRAGMA busy_timeout").fetchone()
            db.execute(_BUSY_TIMEOUT.format(0))
            self._waits_for_locks = False
        return work(db)

    def _ended(
        self,
        callback: Callable[[T | None, BaseException | None], None],
        result: T | None,
        error: BaseException | None,
    ) -> None:
        self._under_way -= 1
        callback(result, error)

    def _patiently(self, db: sqlite3.Connection, work: Work[T]) -> T:
        if not self._waits_for_locks:
            db.execute(_BUSY_TIMEOUT.format(self._busy_timeout_ms))
            self._waits_for_locks = True
        return work(db)


def _settle(future: asyncio.Future[T], result: T | None, error: BaseException | None) -> None:
    if future.done():
        return  # its caller was cancelled
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(result)  # type: ignore[arg-type]
