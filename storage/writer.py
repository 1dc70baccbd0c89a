"""Group commit: whatever waits is written together, and synced once.

    acts ─► open batch ──(the last commit has returned)──► commit ──► durable ─► callers are told

While one batch is synced the next one gathers, so batches grow with the load, and nobody waits for
a timer.  This file is the only one that says "durable", and it says so after COMMIT has returned.
When a commit leaves the log too long, it goes back into the database before the next one, while the
callers of the first are told (checkpoint.py).

A commit that fails ends it all: after a failed sync nobody knows what the disk holds.  Everybody
who waits gets a StorageError, nothing is reported any more, the daemon stops, and the next start
takes it from what is on the disk.

A disk without room is another matter, and so is a lack of memory: SQLite has undone the batch, and
what the disk holds is known.  The batch is tried again until it succeeds, and its callers wait, as
for a slow disk.  Only one with new packets is not tried for ever: it may be what keeps deletions,
which make room, from being written, and after a new start its packets are refused or sent again.
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
from storage.hindrance import can_wait, cause, explain, is_full, is_short_of_memory
from storage.mark import Marker
from storage.options import PAGE_BYTES, StorageOptions
from storage.reserve import Reserve

#: What a commit on a full disk gives back at once: 2 MiB, some 10 ms.
VACUUM_PAGES = 256
#: And where messages were refused for lack of room: 64 MiB, some 0.3 s.
VACUUM_PAGES_MAX = 8192
#: A batch for which there is no room is tried again after this time.
RETRY_S = 1.0
#: What is in no hurry is committed after this time, if nobody else wants a commit.
PATIENCE_S = 0.02


class _NotNow(Exception):
    """A batch was undone for lack of room or memory; the cause says which."""


class Writer:
    def __init__(
        self,
        connection: aiosqlite.Connection,
        reserve: Reserve,
        log: LogFile,
        marker: Marker,
        options: StorageOptions,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._connection = connection
        self._reserve = reserve
        self._log = log
        self._marker = marker
        self._log_pages_max = options.log_pages_max
        self._is_checkpointing = False
        self._checkpoint_failure: BaseException | None = None  # the connection's thread knows first
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
        self._patience_s = options.full_disk_patience_s
        self._patience_of_others_s = options.full_disk_patience_of_others_s
        self._retry: asyncio.TimerHandle | None = None
        self._waits_since: float | None = None  # loop time
        self._is_closing = False
        #: Why the batch that is being committed has to wait for room or memory; "": it does not.
        self.obstacle = ""
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
        """Give free pages back; how many are left.  Where there is no room or memory for it, or
        another program has the database, none is given back, and 0 ends the round: this act needs
        room itself, and is no reason to stop."""
        if self._failure is not None:
            raise self._failure
        try:
            return await submit(self._connection, partial(vacuum, pages_max=pages_max))
        except (sqlite3.Error, MemoryError) as error:
            if can_wait(error):
                return 0  # later: nothing is lost, and receiving goes on from the reserve
            raise self._fail(_failed("giving pages back", error), error) from error

    async def close(self) -> None:
        """Wait until everything that was given is durable, or has failed; then take no more.

        What waits for room is tried once more, and fails without.
        """
        self._is_closing = True
        if self._retry is not None:
            self._retry.cancel()
            self._try_again()
        if self.batch.mentions or not self.batch.is_empty:
            self.batch.write_soon()
        while not self._idle.is_set():
            await self._idle.wait()
            await asyncio.sleep(0)  # what those do who were told belongs to it
        self._failure = self._failure or StorageError("the storage is closed")

    def _new_batch(self) -> Batch:
        return Batch(self._gather)

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
        self._submit(batch)

    def _submit(self, batch: Batch) -> None:
        submit(self._connection, partial(self._write, batch=batch)).add_done_callback(
            self._committed
        )

    def _may_wait(self, batch: Batch) -> bool:
        """Whether a batch that was undone is to be tried again."""
        now = self._loop.time()
        if self._waits_since is None:
            self._waits_since = now
        waited_s = now - self._waits_since
        patience_s = self._patience_s if batch.bytes else self._patience_of_others_s
        return not self._is_closing and waited_s < patience_s

    def _try_again(self) -> None:
        self._retry = None
        assert self._committing is not None
        self._submit(self._committing)

    def _write(self, db: sqlite3.Connection, batch: Batch) -> bool:
        """On the connection's thread: commit; whether the log is too long now."""
        if self._checkpoint_failure is not None:
            raise self._checkpoint_failure
        frames = _commit(db, batch, self._reserve, self._marker)
        if frames:
            return frames > self._log_pages_max
        return checkpoint.is_longer(self._log, self._log_pages_max)

    def _checkpoint(self, db: sqlite3.Connection) -> None:
        """On the connection's thread.  What waits behind it is not written when it fails."""
        self._marker.checkpoint_begins()
        try:
            if checkpoint.run(db):
                self._marker.merged()
        except BaseException as error:
            self._checkpoint_failure = error
            try:
                self._log.sync()
            except OSError as failed:  # to a checkpoint its pages look like a damaged database's
                self._checkpoint_failure = failed
                raise failed from error
            raise

    def _committed(self, commit: asyncio.Future[bool]) -> None:
        batch = self._committing
        assert batch is not None
        error = commit.exception()
        if isinstance(error, _NotNow):
            error = error.__cause__
            if self._failure is None and self._may_wait(batch):
                self.obstacle = _words(error)
                self._retry = self._loop.call_later(RETRY_S, self._try_again)
                return
        self._committing, self._waits_since, self.obstacle = None, None, ""
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
    code = cause(error) if isinstance(error, (OSError, sqlite3.Error)) else ""
    return StorageError(f"{what} failed: {_words(error)}", code=code)


def _words(error: BaseException | None) -> str:
    if isinstance(error, MemoryError):
        return "no memory is left"
    return explain(error) if isinstance(error, (OSError, sqlite3.Error)) else str(error)


def _commit(db: sqlite3.Connection, batch: Batch, reserve: Reserve, marker: Marker) -> int:
    """On the connection's thread: how many frames the log has then, 0 when that is unknown.

    Raises _NotNow, or whatever else kept the batch from becoming durable.
    """
    try:
        _write(db, batch, marker)
    except (sqlite3.Error, MemoryError) as error:
        if not is_full(error):
            if is_short_of_memory(error):
                raise _NotNow from error
            raise
        try:
            _write_without_room(db, batch, reserve, marker, error)
        except sqlite3.Error as again:
            if is_full(again):
                raise _NotNow from again
            raise
    frames = marker.committed()
    if reserve.is_short():
        _make_room(db, reserve, marker)
        reserve.take()
    batch.read(db)
    return frames


def _write_without_room(
    db: sqlite3.Connection, batch: Batch, reserve: Reserve, marker: Marker, error: Exception
) -> None:
    """Once more, with the room of the reserve; and once more, without what can be done later."""
    if reserve.give_up():
        _make_room(db, reserve, marker)  # what is written already comes first
        if reserve.leaves_room_after(batch.bytes):
            try:
                _write(db, batch, marker)  # once more, from the beginning
                return
            except sqlite3.Error as again:
                if not is_full(again):
                    raise
                error = again
    elif reserve.leaves_room_after(batch.bytes):
        _make_room(db, reserve, marker)  # others may have made some
    if not batch.leave_out():
        raise error
    _write(db, batch, marker)


def _write(db: sqlite3.Connection, batch: Batch, marker: Marker) -> None:
    try:
        batch.write(db, marker.begin)
    except BaseException:
        # On a full disk SQLite has often done so itself.
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise


def _make_room(db: sqlite3.Connection, reserve: Reserve, marker: Marker) -> None:
    """Bring the log into the database and give free pages back, as far as the disk allows."""
    if reserve.held and _pragma(db, "freelist_count") == 0:
        return
    if not reserve.lets_grow(_pragma(db, "page_count") * PAGE_BYTES):
        return  # half of the log in the database would take the room that deletions need
    pages = VACUUM_PAGES_MAX if reserve.was_refused else VACUUM_PAGES
    marker.checkpoint_begins()
    try:
        _empty_log(db)
        vacuum(db, pages)
        _empty_log(db)
    except (sqlite3.Error, MemoryError) as error:
        if not can_wait(error):
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
