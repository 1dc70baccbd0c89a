"""Group commit: whatever waits is written together, and synced once.

    acts ─► open batch ──(the last commit has returned)──► commit ──► durable ─► callers are told

While one batch is synced the next one gathers, so batches grow with the load, and nobody waits for
a timer.  This file is the only one that says "durable", and it says so after COMMIT has returned.
When a commit leaves the log too long, it goes back into the database before the next one, while the
callers of the first are told (checkpoint.py).

A commit that fails ends it all: after a failed sync nobody knows what the disk holds.  Everybody
who waits gets a StorageError, nothing is reported any more, the daemon stops, and the next start
takes it from what is on the disk.
"""

import asyncio
import sqlite3
from functools import partial

import aiosqlite

from storage import checkpoint
from storage.batch import Batch
from storage.connection import submit
from storage.disk import LogFile
from storage.errors import StorageError
from storage.hindrance import cause, explain
from storage.options import PAGE_BYTES, StorageOptions
from storage.reserve import Reserve

#: What a commit on a full disk gives back at once: 2 MiB, some 10 ms.
VACUUM_PAGES = 256
#: And where messages were refused for lack of room: 64 MiB, some 0.3 s.
VACUUM_PAGES_MAX = 8192
#: What is in no hurry is committed after this time, if nobody else wants a commit.
PATIENCE_S = 0.02


class Writer:
    def __init__(
        self,
        connection: aiosqlite.Connection,
        reserve: Reserve,
        log: LogFile,
        options: StorageOptions,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._connection = connection
        self._reserve = reserve
        self._log = log
        self._log_pages_max = options.log_pages_max
        self._is_checkpointing = False
        self._checkpoint_failure: BaseException | None = None  # the connection's thread knows first
        self._history_entries_max = options.message_id_history_entries
        self._committing: Batch | None = None
        self._failure: StorageError | None = None
        self._idle = asyncio.Event()
        self._idle.set()
        #: Gets a StorageError as its exception, when storing is over.
        self.failed: asyncio.Future[None] = self._loop.create_future()
        #: Acts that come now are in no hurry: they join a commit of others, or have one later.
        self.is_patient = False
        self._patience: asyncio.TimerHandle | None = None
        self._is_due = False
        self.batch = self._new_batch()

    @property
    def rows_waiting(self) -> int:
        """Rows that are not durable yet."""
        committing = self._committing
        return self.batch.rows + (0 if committing is None else committing.rows)

    @property
    def bytes_waiting(self) -> int:
        """Their packets."""
        committing = self._committing
        return self.batch.bytes + (0 if committing is None else committing.bytes)

    async def vacuum(self, pages_max: int) -> int:
        """Give free pages back; how many are left.  On a full disk none is given back, and 0 ends
        the round: this act needs room itself, and is no reason to stop."""
        if self._failure is not None:
            raise self._failure
        try:
            return await submit(self._connection, partial(vacuum, pages_max=pages_max))
        except sqlite3.Error as error:
            if _is_full(error):
                return 0  # later: nothing is lost, and receiving goes on from the reserve
            raise self._fail(
                StorageError(f"giving pages back failed: {explain(error)}", code=cause(error)),
                error,
            ) from error

    async def close(self) -> None:
        """Wait until everything that was given is durable, or has failed; then take no more."""
        if self.batch.mentions or not self.batch.is_empty:
            self.batch.write_soon()
        while not self._idle.is_set():
            await self._idle.wait()
            await asyncio.sleep(0)  # what those do who were told belongs to it
        self._failure = self._failure or StorageError("the storage is closed")

    def _new_batch(self) -> Batch:
        return Batch(self._gather, self._history_entries_max)

    def _gather(self) -> bool:
        """The open batch has an act; what else happens in this turn of the loop joins."""
        self._idle.clear()
        if self.is_patient:
            if self._patience is None:
                self._patience = self._loop.call_later(PATIENCE_S, self._wait_no_longer)
            return False
        if self._committing is None and not self._is_due:
            self._is_due = True
            self._loop.call_soon(self._commit)
        return True

    def _wait_no_longer(self) -> None:
        self._patience = None
        if not self.batch.is_empty:
            self.batch.write_soon()

    def _commit(self) -> None:
        self._is_due = False
        batch, self.batch = self.batch, self._new_batch()
        if self._failure is not None:
            batch.fail(self._failure)
            self._idle.set()
            return
        self._committing = batch
        submit(self._connection, partial(self._write, batch=batch)).add_done_callback(
            self._committed
        )

    def _write(self, db: sqlite3.Connection, batch: Batch) -> bool:
        """On the connection's thread: commit; whether the log is too long now."""
        if self._checkpoint_failure is not None:
            raise self._checkpoint_failure
        _commit(db, batch, self._reserve)
        return checkpoint.is_longer(self._log, self._log_pages_max)

    def _checkpoint(self, db: sqlite3.Connection) -> None:
        """On the connection's thread.  What waits behind it is not written when it fails."""
        try:
            checkpoint.run(db)
        except BaseException as error:
            self._checkpoint_failure = error
            try:
                self._log.sync()
            except OSError as failed:  # to a checkpoint its pages look like a damaged database's
                self._checkpoint_failure = failed
                raise failed from error
            raise

    def _committed(self, commit: asyncio.Future[bool]) -> None:
        batch, self._committing = self._committing, None
        assert batch is not None
        error = commit.exception()
        if error is not None:
            self._fail(_failed("a commit", error), error)
        elif self._failure is None and commit.result():
            self._is_checkpointing = True
            submit(self._connection, self._checkpoint).add_done_callback(self._checkpointed)
        if self._failure is not None:
            batch.fail(self._failure)
        # The next batch goes to the disk while the callers of this one are told.
        if not (self.batch.is_empty or self.batch.waits):
            self._commit()
        if self._failure is None:
            self._report(batch)
        self._rest()

    def _checkpointed(self, done: asyncio.Future[None]) -> None:
        self._is_checkpointing = False
        error = done.exception()
        if error is not None:
            self._fail(_failed("a checkpoint", error), error)
        self._rest()

    def _rest(self) -> None:
        if self._committing is None and self.batch.is_empty and not self._is_checkpointing:
            self._idle.set()

    def _report(self, batch: Batch) -> None:
        try:
            batch.report()
        except Exception as bug:
            failure = StorageError(f"a callback failed: {bug!r}", code="stopped_by_a_bug")
            batch.fail(self._fail(failure, bug))

    def _fail(self, failure: StorageError, cause: BaseException) -> StorageError:
        """The first failure is the one that counts."""
        if self._failure is None:
            failure.__cause__ = cause
            self._failure = failure
            self.failed.set_exception(failure)
            self.failed.exception()  # seen: nobody is obliged to wait for it
        return self._failure


def _failed(what: str, error: BaseException) -> StorageError:
    if isinstance(error, (OSError, sqlite3.Error)):
        return StorageError(f"{what} failed: {explain(error)}", code=cause(error))
    return StorageError(f"{what} failed: {error}")


def _commit(db: sqlite3.Connection, batch: Batch, reserve: Reserve) -> None:
    """On the connection's thread.  Raises whatever kept the batch from becoming durable."""
    try:
        _write(db, batch)
    except sqlite3.Error as error:
        if not _is_full(error) or not reserve.give_up():
            raise
        _make_room(db, reserve)  # what is written already comes first
        if not reserve.leaves_room_after(batch.bytes):
            raise
        _write(db, batch)  # once more, from the beginning
    if reserve.is_short():
        _make_room(db, reserve)
        reserve.take()
    batch.read(db)


def _write(db: sqlite3.Connection, batch: Batch) -> None:
    try:
        batch.write(db)
    except BaseException:
        # On a full disk SQLite has often done so itself.
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise


def _make_room(db: sqlite3.Connection, reserve: Reserve) -> None:
    """Bring the log into the database and give free pages back, as far as the disk allows."""
    if reserve.held and _pragma(db, "freelist_count") == 0:
        return
    if not reserve.lets_grow(_pragma(db, "page_count") * PAGE_BYTES):
        return  # half of the log in the database would take the room that deletions need
    pages = VACUUM_PAGES_MAX if reserve.was_refused else VACUUM_PAGES
    try:
        _empty_log(db)
        vacuum(db, pages)
        _empty_log(db)
    except sqlite3.Error as error:
        if not _is_full(error):
            raise
    reserve.look_again()


def vacuum(db: sqlite3.Connection, pages_max: int) -> int:
    """Give free pages at the end of the file back to the file system; how many are left."""
    # executescript, because execute would step only once, and free a single page.
    db.executescript(f"PRAGMA incremental_vacuum({pages_max})")
    return _pragma(db, "freelist_count")


def _empty_log(db: sqlite3.Connection) -> None:
    db.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def _pragma(db: sqlite3.Connection, name: str) -> int:
    (value,) = db.execute(f"PRAGMA {name}").fetchone()
    return int(value)


def _is_full(error: sqlite3.Error) -> bool:
    return getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL
