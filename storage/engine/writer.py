"""Group commit: all waiting changes are written together and synced once.

    changes ─► open batch ──(the last commit has returned)──► commit ──► durable ─► notify callers

While one batch is synced the next one collects changes, so batches grow with the load, and no
caller waits for a timer.  Only this module declares a batch durable, after COMMIT has returned.

A few rows are committed at once, on the event loop's thread, if nothing else is being written, the
last batch was small too, and the disk has been quick: that takes less than half of the processor
time of a commit on the connection's thread (writer_calls.py).  So are the rows of a request with
many messages, if no packets came during the last commit with packets or just after it: its clients
wait for each answer.  All other commits leave the loop free.

Changes without new packets, such as removals, that come during a commit with packets or just after
it wait a moment for the next packets: the application that was just answered often sends its next
message then, which would have to wait for the sync of the removals alone.  They wait only if that
was useful the last time: an application that sends its next message when its removal is durable
never waits for itself.

If the log is too long after a commit, a checkpoint runs before the next one, while the callers of
the first are notified (checkpoint.py).

A commit that fails stops the storage: after a failed sync the content of the disk is unknown.  All
waiting callers get a StorageError, no batch is reported durable any more, the daemon stops, and the
next start recovers from the state of the disk.

A full disk and a lack of memory are different: SQLite has undone the batch, and the content of the
disk is known.  The batch is retried until it succeeds, and its callers wait, as for a slow disk.  A
batch with new packets is retried for a limited time only: it may prevent the deletions that free
space from being written, and after a restart its packets are rejected or sent again.
"""

import asyncio
import sqlite3
from collections.abc import Callable
from functools import partial

import aiosqlite

from storage.engine import checkpoint
from storage.engine.batch import Batch
from storage.engine.commit import NotNow, commit, pragma, vacuum, write
from storage.engine.disk import LogFile
from storage.engine.figures import WriterFigures
from storage.engine.hindrance import can_wait, failed_by, words
from storage.engine.mark import Marker
from storage.engine.reserve import Reserve
from storage.engine.writer_calls import WriterCalls
from storage.errors import StorageError
from storage.options import StorageOptions

#: A batch that lacks space or memory is retried after this time.
RETRY_S = 1.0
#: Changes that are not urgent are committed after this time, unless another commit comes first.
PATIENCE_S = 0.02
#: Changes without packets wait for packets for this time, and until so long after others at most;
#: on a slow disk for the time of a commit, up to the second limit.
JOIN_S, JOIN_MAX_S = 0.001, 0.02
#: The time of ordinary commits is that of commits with fewer bytes, as a moving average.
ORDINARY_BYTES = 64 * 1024
NEW_PART = 0.1
#: A checkpoint follows so many bytes of pieces of large packets: it takes some 2 ms, so that others
#: do not wait for a long one.  It costs these packets nothing: each page of theirs is copied once.
PIECES_LOGGED_BYTES = 1024 * 1024
#: Rows of the commit for a message alone, and of what leaves with it.
FEW_ROWS = 8
#: Rows and changed bytes of the commit for a request with many messages, and what leaves with it.
SOME_ROWS, SOME_BYTES = 320, 512 * 1024
#: Rows are committed at once while such a commit takes less than this: no longer than one turn of
#: the event loop may take (qmd/runtime/fair_scheduler.py).
AT_ONCE_S = 0.002


class Writer:
    def __init__(
        self,
        connection: aiosqlite.Connection,
        reserve: Reserve,
        log: LogFile,
        marker: Marker,
        options: StorageOptions,
        page_bytes: int,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._calls = WriterCalls(connection, self._loop)
        self._reserve = reserve
        self._log = log
        self._marker = marker
        self._log_pages_max = options.log_pages_max(page_bytes)
        self._small_log = checkpoint.SmallLog(log, page_bytes, self._log_pages_max)
        self._is_checkpointing = False
        self._pieces_logged_bytes = 0  # since the last checkpoint
        # the connection's thread detects it first
        self._checkpoint_failure: BaseException | None = None
        self._committing: Batch | None = None
        self._failure: StorageError | None = None
        self._idle = asyncio.Event()
        self._idle.set()
        #: Gets a StorageError as its exception when the storage stops after a failure.
        self.failed: asyncio.Future[None] = self._loop.create_future()
        #: New changes are not urgent: they join another commit, or are committed later.
        self.is_patient = False
        #: Called with the token of each outcome that a batch gets.
        self.on_outcome: Callable[[bytes], None] = lambda token: None
        self._patience: asyncio.TimerHandle | None = None
        self._patient_batch = 0  # the number of the last batch with changes that are not urgent ...
        self._patient_until = 0.0  # ... and the loop time at which they become so
        self._is_due = False
        self._joins: asyncio.TimerHandle | None = None  # while the open batch waits for packets
        self._joins_until = 0.0  # loop time, after a commit with packets
        self._packets_follow = False  # a wait for packets was useful the last time, or had been
        self._is_just_after = False  # a commit of removals at once: packets that come now follow,
        self._just_after = 0  # in the batch of this number
        self._patience_s = options.full_disk_patience_s
        self._patience_of_others_s = options.full_disk_patience_of_others_s
        self._retry: asyncio.TimerHandle | None = None
        self._waits_since: float | None = None  # loop time
        self._is_closing = False
        #: Time from the begin of a commit to its callbacks, for commits with few bytes, in seconds.
        self.ordinary_commit_s = 0.0
        self._larger_commit_s = 0.0  # the same for those that are not small, up to SOME_ROWS
        #: Packets came during the last commit with packets, or just after it, if it was at once.
        self._packets_stream = False
        self._is_just_after_packets = False  # a commit at once: packets that come now are such,
        self._just_after_packets = 0  # in the batch of this number
        self._began_at = 0.0  # loop time
        self._was_small = True  # the last batch
        self._holds_the_loop = False
        self._checkpoint_began_at = 0.0
        self.figures = WriterFigures(log)
        #: Why the current batch waits for space or memory, as a sentence; "" if it does not wait.
        self.obstacle = ""
        #: Calls that follow the notifications of a small commit; None: none are under way.
        self._following: list[Callable[[], None]] | None = None
        self.batch = self._new_batch()

    @property
    def rows_waiting(self) -> int:
        """Number of rows that are not durable yet."""
        committing = self._committing
        return self.batch.load.rows + (0 if committing is None else committing.load.rows)

    @property
    def bytes_waiting(self) -> int:
        """Bytes of the packets that are not durable yet, without pieces that are stored ahead."""
        loads = [each.load for each in (self.batch, self._committing) if each is not None]
        return sum(load.bytes - load.piece_bytes for load in loads)

    def has_waiting(self, rows: int, size: int) -> bool:
        """Return whether so many rows, or so many bytes of packets, are not durable yet."""
        load, committing = self.batch.load, self._committing
        if committing is None:
            return load.rows >= rows or load.bytes >= size
        other = committing.load
        return load.rows + other.rows >= rows or load.bytes + other.bytes >= size

    def holds_the_loop(self) -> bool:
        """Return whether the event loop waits for a commit; any thread may ask."""
        return self._holds_the_loop

    async def vacuum(self, pages_max: int) -> int:
        """Return free pages to the file system; return the number of free pages left.

        Without space or memory for it, or if another program has locked the database, no page is
        freed and 0 ends the round: vacuuming needs space itself, and such an error is no reason to
        stop. Raises StorageError for all other errors.
        """
        if self._failure is not None:
            raise self._failure
        try:
            return await self._calls.call(partial(vacuum, pages_max=pages_max))
        except (sqlite3.Error, MemoryError) as error:
            if can_wait(error):
                # retried later: no data is lost, and the reserve allows receives to continue
                return 0
            raise self._fail(failed_by("freeing pages", error), error) from error

    async def foreign_commits(self) -> int:
        """Return a number that changes when another program has written to the database."""
        return await self._calls.call(partial(pragma, name="data_version"))

    async def close(self) -> None:
        """Wait until all changes are durable or have failed; then accept no more.

        A batch that waits for space is retried once, and fails if there is still none.
        """
        self._is_closing = True
        if self._retry is not None:
            self._retry.cancel()
            self._try_again()
        if self.batch.mentions or not self.batch.load.is_empty:
            self.batch.write_soon()
        while not self._idle.is_set():
            await self._idle.wait()
            await asyncio.sleep(0)  # also wait for the changes that notified callers make
        self._failure = self._failure or StorageError("the storage is closed")

    def _new_batch(self) -> Batch:
        return Batch(self._gather, self._outcome)

    def _outcome(self, token: bytes) -> None:
        self.on_outcome(token)

    def _gather(self) -> bool:
        """Schedule a commit of the open batch; changes in the same turn of the loop join it.

        Returns False while the batch may still wait.
        """
        self._idle.clear()
        if self.is_patient:
            if self._patient_batch != self.batch.number:
                self._patient_batch = self.batch.number
                self._patient_until = self._loop.time() + PATIENCE_S
            if self._patience is None:
                self._patience = self._loop.call_at(self._patient_until, self._wait_no_longer)
            return False
        if self._joins is not None:
            if not (self.batch.load.bytes or self._is_closing):
                return False
            self._joins.cancel()
            self._joins = None
        if self._committing is None and not self._is_due:
            if self._is_just_after:
                self._just_after = self.batch.number
            if self._join_next_packets():
                return False
            if self._is_just_after_packets:
                self._just_after_packets = self.batch.number
            self._is_due = True
            self._loop.call_soon(self._commit)
        return True

    def _wait_no_longer(self) -> None:
        """Commit changes that are not urgent, unless others have taken them along."""
        self._patience = None
        if self._patient_batch != self.batch.number:
            return
        if self._loop.time() < self._patient_until:  # the timer was set for an earlier batch
            self._patience = self._loop.call_at(self._patient_until, self._wait_no_longer)
        else:
            self.batch.write_soon()

    def _join_next_packets(self) -> bool:
        """Let the open batch wait for packets, after a commit with some; return whether it does."""
        load = self.batch.load
        if load.bytes or self._is_closing or not self._packets_follow:
            return False
        if self._loop.time() >= self._joins_until:
            return False
        load.waits = True  # the next packets make it due
        self._joins = self._loop.call_later(self._join_s(), self._commit_alone)
        return True

    def _join_s(self) -> float:
        """Return for how long changes wait for packets: no longer than a commit of their own takes,
        if that is more than JOIN_S."""
        return max(JOIN_S, min(self.ordinary_commit_s, JOIN_MAX_S))

    def _commit_alone(self) -> None:
        """Commit the changes that have waited for packets without effect."""
        self._packets_follow, self._joins_until = False, 0.0
        self._commit()

    def _commit(self, *, may_be_at_once: bool = True) -> None:
        self._is_due, self._joins = False, None
        batch, self.batch = self.batch, self._new_batch()
        if batch.number == self._just_after and batch.load.bytes:
            self._packets_follow = True
        if batch.number == self._just_after_packets and batch.load.bytes:
            self._packets_stream = True
        if self._failure is not None:
            batch.fail(self._failure)
            self._idle.set()
            return
        self._committing = batch
        if not (may_be_at_once and self._is_for_now(batch) and self._write_at_once(batch)):
            self._submit(batch)

    def _submit(self, batch: Batch) -> None:
        self._began_at = self._loop.time()
        self._calls.begin(partial(self._write, batch=batch), self._committed)

    def _is_for_now(self, batch: Batch) -> bool:
        """Return whether a batch may be committed on the event loop's thread."""
        # Under load the loop has other work to do meanwhile.
        if _is_small(batch):
            is_for_now = self._was_small and self.ordinary_commit_s < AT_ONCE_S
        else:
            is_for_now = (
                _has_some_rows(batch)
                and not self._packets_stream
                and self._larger_commit_s < AT_ONCE_S
            )
        return is_for_now and self._calls.is_idle and not self._reserve.was_short

    def _write_at_once(self, batch: Batch) -> bool:
        """Commit on the event loop's thread; return False if the connection's thread has to.

        That can wait for space, memory, and locks of other programs.
        """
        self._began_at = self._loop.time()
        try:
            self._holds_the_loop = True
            self._calls.at_once(partial(write, batch=batch, marker=self._marker))
        except Exception as error:
            if isinstance(error, (sqlite3.Error, MemoryError)) and can_wait(error):
                return False  # the batch was undone
            self._committed(None, error)
            return True
        finally:
            self._holds_the_loop = False
        try:
            end = self._marker.committed()
        except Exception as error:
            self._committed(None, error)
            return True
        took_s = self._loop.time() - self._began_at
        self._committing = None  # and nothing has come meanwhile: the loop has waited
        self._expect_packets(batch, was_at_once=True)
        self._report(batch)
        if self._is_just_after_packets:
            # Those that came meanwhile are read now, and those of the clients that were just
            # notified, which have a processor of their own, later.
            self._loop.call_soon(self._is_no_longer_just_after_packets)
        # The callers do not wait for the rest.
        self._count(took_s, batch, was_small=True)
        try:
            is_small = end.frames and _is_small(batch)
            is_long = self._small_log.is_full(end) if is_small else self._is_long(end.frames)
        except OSError as error:
            self._fail(failed_by("a look at the log", error), error)
        else:
            self._checkpoint_if(is_long)
        self._reserve.is_short()  # for the next commit
        self._rest()
        return True

    def _may_wait(self, batch: Batch) -> bool:
        """Return whether a batch that was undone is to be retried."""
        now = self._loop.time()
        if self._waits_since is None:
            self._waits_since = now
        waited_s = now - self._waits_since
        patience_s = self._patience_s if batch.load.bytes else self._patience_of_others_s
        return not self._is_closing and waited_s < patience_s

    def _try_again(self) -> None:
        self._retry = None
        assert self._committing is not None
        self._submit(self._committing)

    def _write(self, db: sqlite3.Connection, batch: Batch) -> bool:
        """Commit, on the connection's thread; return whether the log is too long now."""
        if self._checkpoint_failure is not None:
            raise self._checkpoint_failure
        return self._is_long(commit(db, batch, self._reserve, self._marker))

    def _is_long(self, frames: int) -> bool:
        """Return whether the log is too long; `frames` are in it, 0: unknown.  Raises OSError."""
        if frames:
            return frames > self._log_pages_max
        return checkpoint.is_longer(self._log, self._log_pages_max)

    def _checkpoint(self, db: sqlite3.Connection) -> None:
        """Run a checkpoint, on the connection's thread.  If it fails, no later batch is written."""
        self._marker.checkpoint_begins()
        try:
            if checkpoint.run(db):
                self._marker.merged()
        except BaseException as error:
            self._checkpoint_failure = error
            try:
                self._log.sync()
            # a checkpoint reports unreadable pages of the log as a damaged database
            except OSError as failed:
                self._checkpoint_failure = failed
                raise failed from error
            raise

    def _committed(self, is_long: bool | None, error: BaseException | None) -> None:
        """Go on after a commit, or its failure; `is_long`: the log is too long."""
        batch = self._committing
        assert batch is not None
        if isinstance(error, NotNow):
            error = error.__cause__
            if self._failure is None and self._may_wait(batch):
                self.obstacle = words(error)
                self._retry = self._loop.call_later(RETRY_S, self._try_again)
                return
        self._committing, self._waits_since, self.obstacle = None, None, ""
        self._count(self._loop.time() - self._began_at, batch, was_small=_is_small(batch))
        if error is not None:
            self._fail(failed_by("a commit", error), error)
        else:
            self._checkpoint_if(is_long)
        if self._failure is not None:
            batch.fail(self._failure)
        self._expect_packets(batch)
        # The next batch is written to disk while the callers of this one are notified.
        if not (self.batch.load.is_empty or self.batch.load.waits or self._join_next_packets()):
            # Not at once: its callers must not be notified before those of this one.
            self._commit(may_be_at_once=False)
        if self._failure is None:
            self._report(batch)
        self._rest()

    def _count(self, took_s: float, batch: Batch, *, was_small: bool) -> None:
        """Count a commit, and learn how long such ones take."""
        self.figures.committed(took_s, batch)
        self._was_small = was_small
        self._pieces_logged_bytes += batch.load.piece_bytes
        if batch.load.bytes < ORDINARY_BYTES:
            self.ordinary_commit_s += NEW_PART * (took_s - self.ordinary_commit_s)
        if _has_some_rows(batch) and not _is_small(batch):
            self._larger_commit_s += NEW_PART * (took_s - self._larger_commit_s)

    def _checkpoint_if(self, is_long: bool | None) -> None:
        """Begin a checkpoint if the log is too long, or has many pieces of large packets."""
        if self._failure is None and (is_long or self._pieces_logged_bytes >= PIECES_LOGGED_BYTES):
            self._is_checkpointing, self._pieces_logged_bytes = True, 0
            self._checkpoint_began_at = self._loop.time()
            self._calls.begin(self._checkpoint, self._checkpointed)

    def _expect_packets(self, batch: Batch, *, was_at_once: bool = False) -> None:
        """Learn from a commit whether packets follow; the next turn reads those that came during
        one at once."""
        if batch.load.bytes:
            self._joins_until = self._loop.time() + self._join_s()
            self._packets_stream = self.batch.load.bytes > 0
            self._is_just_after_packets = was_at_once
        elif self._began_at < self._joins_until:
            self._joins_until = 0.0
            self._packets_follow = self.batch.load.bytes > 0  # some came meanwhile
            if was_at_once:
                self._is_just_after = True
                self._loop.call_soon(self._loop.call_soon, self._is_no_longer_just_after)

    def _is_no_longer_just_after(self) -> None:
        self._is_just_after = False

    def _is_no_longer_just_after_packets(self) -> None:
        self._is_just_after_packets = False

    def _checkpointed(self, _: None, error: BaseException | None) -> None:
        self._is_checkpointing = False
        self.figures.checkpoints.add(self._loop.time() - self._checkpoint_began_at)
        if error is not None:
            self._fail(failed_by("a checkpoint", error), error)
        self._rest()

    def _rest(self) -> None:
        if self._committing is None and self.batch.load.is_empty and not self._is_checkpointing:
            self._idle.set()

    def soon(self, callback: Callable[[], None]) -> None:
        """Call `callback` when all callers of the present commit are notified, if it has few rows.

        Otherwise it is called in the next turn of the loop: after large commits it then has more to
        do at once.
        """
        if self._following is None:
            self._loop.call_soon(callback)
        else:
            self._following.append(callback)

    def _report(self, batch: Batch) -> None:
        following: list[Callable[[], None]] = []
        if batch.load.rows <= FEW_ROWS:
            self._following = following
        try:
            batch.report()
            self._following = None
            for callback in following:
                callback()
        except Exception as bug:
            failure = StorageError(f"a callback failed: {bug!r}", code="stopped_by_a_bug")
            batch.fail(self._fail(failure, bug))
        finally:
            self._following = None

    def _fail(self, failure: StorageError, cause: BaseException) -> StorageError:
        """Stop the storage.  Only the first failure is kept; it is returned."""
        if self._failure is None:
            failure.__cause__ = cause
            self._failure = failure
            self.failed.set_exception(failure)
            self.failed.exception()  # mark as retrieved: no caller has to await it
        return self._failure


def _is_small(batch: Batch) -> bool:
    """Return whether a batch is the changes for a message or a few, and takes little time."""
    load = batch.load
    return load.rows <= FEW_ROWS and load.bytes < ORDINARY_BYTES and not load.has_calls


def _has_some_rows(batch: Batch) -> bool:
    """Return whether a batch is the changes for a request with many messages, or smaller."""
    load = batch.load
    return load.rows <= SOME_ROWS and load.changed_bytes < SOME_BYTES and not load.has_calls
