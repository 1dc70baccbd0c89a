"""Pending work of a batch: units, reads and arrivals, each with a caller that awaits its result.

The writer's thread does the work; the event loop then notifies the callers.
"""

import asyncio
import sqlite3
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from storage.engine.connection import Work
from storage.errors import NoRoomForIt, StorageError
from storage.tables import awaiting, events
from storage.tables.awaiting import Arrived, Kept
from storage.tables.events import Event
from storage.tables.tally import tally_of

T = TypeVar("T")


#: Errors that a unit itself causes.  After any other error (disk, memory, lock, damage) SQLite may
#: have rolled back the whole transaction, including the changes of other callers.
_UNITS_OWN_ERRORS = frozenset(
    {
        sqlite3.SQLITE_ERROR,
        sqlite3.SQLITE_CONSTRAINT,
        sqlite3.SQLITE_MISMATCH,
        sqlite3.SQLITE_MISUSE,
        sqlite3.SQLITE_RANGE,
        sqlite3.SQLITE_TOOBIG,
    }
)


class Arrival:
    """A range of acknowledged rows, some of which are kept.

    This is not a unit: the batch deletes the range afterwards, so if keeping the rows fails,
    nothing may be committed.
    """

    def __init__(
        self,
        arrived: Arrived,
        events_of: Callable[[list[Kept]], list[Event]],
        future: asyncio.Future[list[Kept]],
    ) -> None:
        self._arrived = arrived
        self._events_of = events_of
        self._future = future
        self._kept: list[Kept] = []

    @property
    def range(self) -> tuple[int, int]:
        return self._arrived.first, self._arrived.last

    def write(self, db: sqlite3.Connection) -> None:
        self._kept = awaiting.take_over(db, self._arrived)

    def write_events(self, db: sqlite3.Connection) -> None:
        """Record the events of the kept rows, after the events of the batch itself."""
        events.insert(db, self._events_of(self._kept))

    def settle(self) -> None:
        if not self._future.done():
            self._future.set_result(self._kept)

    def fail(self, error: StorageError) -> None:
        _fail(self._future, error)


class Unit(Generic[T]):
    def __init__(self, work: Work[T], future: asyncio.Future[T], *, can_wait: bool) -> None:
        self._work = work
        self._future = future
        self._can_wait = can_wait
        self._failure: Exception | None = None
        self._result: T

    def leave_out(self) -> bool:
        """Fail without running, if the unit can wait; return False if it was left out before."""
        if not self._can_wait or isinstance(self._failure, NoRoomForIt):
            return False
        self._failure = NoRoomForIt()
        return True

    def write(self, db: sqlite3.Connection) -> None:
        if isinstance(self._failure, NoRoomForIt):
            return
        self._failure = None
        tally = tally_of(db)
        before = None if tally is None else tally.saved()
        db.execute("SAVEPOINT unit")
        try:
            self._result = self._work(db)
        except Exception as failure:
            if isinstance(failure, MemoryError):
                raise  # memory may be available when the batch is retried
            if isinstance(failure, sqlite3.Error) and not _is_units_own(failure):
                raise
            self._failure = failure
            db.execute("ROLLBACK TO unit")
            if tally is not None and before is not None:
                tally.restore(before)
        db.execute("RELEASE unit")

    def settle(self) -> None:
        if self._future.done():  # the caller was cancelled
            return
        if self._failure is None:
            self._future.set_result(self._result)
        else:
            self._future.set_exception(self._failure)

    def fail(self, error: StorageError) -> None:
        _fail(self._future, error)


class Read(Generic[T]):
    def __init__(self, work: Work[T], callback: Callable[[T], None]) -> None:
        self._work = work
        self._callback = callback
        self._result: T

    def run(self, db: sqlite3.Connection) -> None:
        self._result = self._work(db)

    def report(self) -> None:
        self._callback(self._result)


def _is_units_own(failure: sqlite3.Error) -> bool:
    """Return whether the unit itself caused this error.

    Errors of the sqlite3 module, such as a wrong number of parameters, have no code.
    """
    code = getattr(failure, "sqlite_errorcode", sqlite3.SQLITE_MISUSE)
    return code & 0xFF in _UNITS_OWN_ERRORS


def _fail(future: asyncio.Future[Any], error: StorageError) -> None:
    """Report that the storage has failed, also to a caller that does not wait any more.

    `Storage.failed` ends the daemon with this error.  Without the mark as retrieved, asyncio would
    report the future of such a caller as an error that nobody handled, which is a bug.
    """
    if not future.done():
        future.set_exception(error)
        future.exception()
