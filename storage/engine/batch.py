"""A batch: the changes that are collected during a commit and written by the next commit.

Frequent changes are rows, each kind written by one `executemany`.  Rare changes are units: plain
functions of the connection, each under a savepoint, so that a unit that fails does not affect the
others.  They are written in this order, independent of the order of the calls:

    new rows ─► deletions ─► sequences, history, outcomes ─► events ─► units ─► COMMIT ─► reads

The callers are notified in the event loop in this order: futures of units, callbacks of
`when_durable` in the order of the calls, callbacks of `read_after`.
"""

import asyncio
import itertools
import sqlite3
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic, TypeVar

from storage.engine.connection import Work
from storage.errors import NoRoomForIt, StorageError
from storage.tables import awaiting, events, messages, outcomes, outgoing, sequences, shared_parts
from storage.tables import message_id_history as history
from storage.tables.awaiting import Arrived, Kept
from storage.tables.events import Event
from storage.tables.sequences import encode_sequence_id
from storage.tables.shared_parts import PartOf

T = TypeVar("T")

_numbers = itertools.count(1)

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


class Batch:
    """The open batch: accepts changes until the writer takes it.

    No change may be acknowledged before the batch is durable.  A packet must not be modified after
    it was passed to a method.
    """

    def __init__(self, on_act: Callable[[], bool]) -> None:
        """Create an empty batch.

        Each change calls `on_act` until it returns True: the batch is then due for commit.
        """
        #: Unique; identifies the batch to objects that must not keep a reference to it.
        self.number = next(_numbers)
        #: The amount to write: number of rows, deletions and units; bytes of packets.
        self.rows = 0
        self.bytes = 0
        self.is_empty = True
        self.waits = True  # no change so far requires an immediate commit
        self._on_act = on_act
        self._messages: list[messages.NewMessage] = []
        self._outgoing: list[outgoing.NewOutgoing] = []
        self._shared_parts: list[shared_parts.NewPart] = []
        self._message_copies: list[messages.NewCopy] = []
        self._outgoing_copies: list[outgoing.NewCopies] = []
        self._message_deletions: list[int] = []
        self._outgoing_deletions: list[int] = []
        self._arrivals: list[_Arrival] = []
        self._awaiting_deletions: list[int] = []
        self._outgoing_ranges: list[tuple[int, int]] = []
        self._new_sequences: list[sequences.NewSequence] = []
        self._new_outgoing_queues: list[outgoing.OutgoingQueueRow] = []
        self._forgotten_outgoing_queues: list[int] = []
        self._last_sequence_timestamp = 0
        # Only the last state within a batch is written.
        self._incoming_states: dict[int, sequences.SequenceState] = {}
        self._outgoing_states: dict[int, outgoing.SequenceState] = {}
        # of sequences without an entry in `_outgoing_states`
        self._next_numbers: dict[int, int] = {}
        self._history: list[tuple[history.Segment, list[int]]] = []
        self._forgotten_history: list[int] = []
        self._outcomes: list[tuple[bytes, bytes, int]] = []
        self._events: list[Event] = []
        self._units: list[_Unit[Any]] = []
        self._callbacks: list[Callable[[], None]] = []
        self._reads: list[_Read[Any]] = []

    # Frequent changes.

    def insert_message(
        self,
        key: int,
        packet: bytes,
        arrived_at_ms: int,
        expires_at_s: int | None = None,
        reason: str | None = None,
        *,
        part: PartOf | None = None,
    ) -> None:
        """Insert a message; with `part`, the packet is only the head of a packet that `part`
        completes.
        """
        if part is None:
            self._messages.append((key, arrived_at_ms, expires_at_s, reason, packet))
        else:
            self._message_copies.append((key, arrived_at_ms, expires_at_s, reason, packet, part))
        self.bytes += len(packet)
        self._count(1)

    def insert_messages(self, rows: Sequence[messages.NewMessage], size: int) -> None:
        """Insert many messages; `size` is the sum of the bytes of their packets."""
        self._messages += rows
        self.bytes += size
        self._count(len(rows))

    def insert_message_copies(
        self,
        packets: Iterable[tuple[int, bytes]],
        arrived_at_ms: int,
        expires_at_s: int | None,
        *,
        part: PartOf | None,
    ) -> None:
        """Insert messages that differ only in keys and packets (with a `part`: in heads)."""
        before = len(self._messages) + len(self._message_copies)
        if part is None:
            rows = [(key, arrived_at_ms, expires_at_s, None, packet) for key, packet in packets]
            self._messages += rows
            self.bytes += sum([len(row[4]) for row in rows])
        else:
            copies = [(key, arrived_at_ms, expires_at_s, None, head, part) for key, head in packets]
            self._message_copies += copies
            self.bytes += sum([len(row[4]) for row in copies])
        self._count(len(self._messages) + len(self._message_copies) - before)

    def insert_shared_part(self, part_id: int, packet: bytes) -> None:
        """Insert the common end of packets in this batch.  The caller chooses an unused id."""
        self._shared_parts.append((part_id, packet))
        self.bytes += len(packet)
        self._count(1)

    def delete_messages(self, keys: Sequence[int]) -> None:
        """Delete messages; unknown keys are ignored."""
        self._message_deletions += keys
        self._count(len(keys))

    def insert_outgoing(
        self,
        key: int,
        packet: bytes,
        expires_at_s: int | None = None,
        *,
        confirm_by_s: int | None = None,
        discard: bool = False,
        part: PartOf | None = None,
    ) -> None:
        """Insert an outgoing message; `part` as in `insert_message`."""
        if part is None:
            self._outgoing.append((key, expires_at_s, packet, confirm_by_s, discard))
            self.bytes += len(packet)
            self._count(1)
        else:
            rows = [(key, packet)]
            self.insert_outgoing_copies(
                rows, expires_at_s, confirm_by_s, discard=discard, part=part
            )

    def insert_outgoing_copies(
        self,
        rows: outgoing.RowsOfCopies,
        expires_at_s: int | None,
        confirm_by_s: int | None,
        *,
        discard: bool,
        part: PartOf | None,
        size: int | None = None,
    ) -> None:
        """Insert outgoing messages that differ only in keys and packets; the batch keeps the list.

        `size` is the sum of the bytes of the packets, if known.
        """
        copies = outgoing.NewCopies(rows, expires_at_s, confirm_by_s, discard, part)
        self._outgoing_copies.append(copies)
        self.bytes += sum(len(packet) for _, packet in rows) if size is None else size
        self._count(len(rows))

    def delete_outgoing(self, keys: Sequence[int]) -> None:
        """Delete outgoing messages; unknown keys are ignored."""
        self._outgoing_deletions += keys
        self._count(len(keys))

    def await_confirmation(
        self, arrived: Arrived, tell: Callable[[list[Kept]], list[Event]]
    ) -> asyncio.Future[list[Kept]]:
        """Keep those acknowledged rows that wait for a final ack.

        `arrived` is a range of rows that were acknowledged in order; this batch deletes the range.
        `tell` returns the events to record for the kept rows.  The future gives the kept rows once
        the batch is durable.
        """
        future: asyncio.Future[list[Kept]] = asyncio.get_running_loop().create_future()
        self._arrivals.append(_Arrival(arrived, tell, future))
        self._count(1)
        return future

    def delete_awaiting(self, numbers: Sequence[int]) -> None:
        """Delete messages that wait for a final ack; unknown numbers are ignored."""
        self._awaiting_deletions += numbers
        self._count(len(numbers))

    def delete_outgoing_range(self, first_key: int, last_key: int) -> None:
        """Delete a range of outgoing messages; both ends are included."""
        self._outgoing_ranges.append((first_key, last_key))
        self._count(1)

    def add_incoming_sequence(
        self, incoming_id: int, source: bytes, queue_id: int, name: bytes, at_s: int
    ) -> None:
        """Add an incoming sequence to a queue that its source addresses by this name.

        The caller chooses the id: one above all existing ids.  So the state after the first message
        can be set in the same batch.
        """
        self._new_sequences.append((incoming_id, source, queue_id, name, at_s))
        self._count(1)

    def add_outgoing_queue(self, row: outgoing.OutgoingQueueRow) -> None:
        """Add a destination.  The caller chooses the id: one above all existing ids.

        So its first messages and their sequence can be set in the same batch.
        """
        self._new_outgoing_queues.append(row)
        self._count(1)

    def forget_outgoing_queues(self, ids: Sequence[int], last_timestamp: int) -> None:
        """Delete empty outgoing queues, before new ones that may reuse their ids and destinations.

        `last_timestamp` is the greatest timestamp of all sequences, including the deleted ones.
        """
        self._forgotten_outgoing_queues += ids
        self._last_sequence_timestamp = last_timestamp
        self._count(len(ids))

    def set_incoming_sequence(
        self,
        incoming_id: int,
        sequence_id: int,
        number: int,
        at_s: int,
        rejected: int = 0,
        contradictions: int = 0,
        last_message: int = 0,
    ) -> None:
        """Set the last accepted number of a sequence, and its rejections: see
        `IncomingSequenceRow`.
        """
        at = (encode_sequence_id(sequence_id), number, at_s)
        state = (*at, rejected, contradictions, last_message, incoming_id)
        self._incoming_states[incoming_id] = state
        self._count(1)

    def set_outgoing_sequence(
        self, outgoing_id: int, sequence_id: int, base: int, next_number: int
    ) -> None:
        self._outgoing_states[outgoing_id] = (
            encode_sequence_id(sequence_id),
            base,
            next_number,
            outgoing_id,
        )
        self._next_numbers.pop(outgoing_id, None)
        self._count(1)

    def set_next_numbers(self, numbers: dict[int, int]) -> None:
        """Set next numbers by outgoing queue, where nothing else of the sequence has changed."""
        states = self._outgoing_states
        for outgoing_id in states.keys() & numbers.keys() if states else ():
            sequence_id, base, _, _ = states[outgoing_id]
            states[outgoing_id] = sequence_id, base, numbers.pop(outgoing_id), outgoing_id
        self._next_numbers.update(numbers)
        self._count(1)

    def remember_message_ids(self, segment: history.Segment) -> list[int]:
        """Return the list for the numbers that a segment gets with this batch.

        The list holds the first and the last number of each run.  The caller may append to it as
        long as the batch is open.
        """
        numbers: list[int] = []
        self._history.append((segment, numbers))
        self._count(1)
        return numbers

    def forget_message_ids(self, segment_ids: Sequence[int]) -> None:
        """Delete segments of the history, including the numbers that they get in this batch."""
        if segment_ids:
            self._forgotten_history += segment_ids
            self._count(1)

    def record_outcome(self, token: bytes, result: bytes, at_s: int) -> None:
        self._outcomes.append((token, result, at_s))
        self._count(1)

    def mention(self, event: Event) -> None:
        """Record an event without causing a commit; the next commit writes it.

        The caller may extend the event until that commit begins.  A unit that determines only
        during the commit which event to record uses `events.insert`.
        """
        self._events.append(event)

    @property
    def mentions(self) -> bool:
        """Whether events are pending."""
        return bool(self._events)

    def write_soon(self) -> None:
        """Request a commit, even if there are only events."""
        self._count(0)

    def record(self, event: Event) -> None:
        """Record an event and request a commit."""
        self.mention(event)
        self.write_soon()

    # Rare changes, and notifications of the commit.

    def run(
        self, unit: Callable[[sqlite3.Connection], T], *, can_wait: bool = False
    ) -> asyncio.Future[T]:
        """Run `unit` in the commit; the future gives its result once that is durable.

        If the unit raises, its changes are undone and the future has the exception.  The unit runs
        on the writer's thread, after the rows of the batch.  It may run twice (after a full disk
        the batch is written again), so it must not keep state outside the connection.

        `can_wait` marks housekeeping: if the disk is so full that the unit would prevent the rest
        from being written, it is left out, and the exception is NoRoomForIt.
        """
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._units.append(_Unit(unit, future, can_wait=can_wait))
        self._count(1)
        return future

    def barrier(self) -> asyncio.Future[None]:
        """Return a future that completes when all earlier changes are durable.  Raises
        StorageError.
        """
        return self.run(_nothing)

    def when_durable(self, callback: Callable[[], None]) -> None:
        """Call `callback` after the commit; an exception of it is a bug and stops the storage."""
        self._callbacks.append(callback)
        self._count(0)

    def read_after(
        self, read: Callable[[sqlite3.Connection], T], callback: Callable[[T], None]
    ) -> None:
        """Call `read` on the database right after this commit, before any other write."""
        self._reads.append(_Read(read, callback))
        self._count(0)

    # Methods for the writer.

    def write(self, db: sqlite3.Connection, begin: Work[None] = lambda db: None) -> None:
        """Write all changes and commit, on the writer's thread; `begin` runs first."""
        db.execute("BEGIN IMMEDIATE")
        begin(db)
        if self._messages:
            messages.insert(db, self._messages)
        if self._outgoing:
            outgoing.insert(db, self._outgoing)
        if self._shared_parts:
            shared_parts.insert(db, self._shared_parts)
        if self._message_copies:
            messages.insert_copies(db, self._message_copies)
        if self._outgoing_copies:
            outgoing.insert_copies(db, self._outgoing_copies)
        if self._message_deletions:
            messages.delete(db, self._message_deletions)
        if self._outgoing_deletions:
            outgoing.delete(db, self._outgoing_deletions)
        for arrival in self._arrivals:
            arrival.write(db)
            if len(self._arrivals) > 1:
                # The next range may begin at the same row, and must not find these rows again.
                outgoing.delete_ranges(db, [arrival.range])
        if self._awaiting_deletions:
            awaiting.delete(db, self._awaiting_deletions)
        if self._outgoing_ranges:
            outgoing.delete_ranges(db, self._outgoing_ranges)
        if self._forgotten_outgoing_queues:
            outgoing.forget_queues(
                db, self._forgotten_outgoing_queues, self._last_sequence_timestamp
            )
        if self._new_outgoing_queues:
            outgoing.add_queues(db, self._new_outgoing_queues)
        if self._new_sequences:
            sequences.add(db, self._new_sequences)
        if self._incoming_states:
            sequences.set_states(db, list(self._incoming_states.values()))
        if self._outgoing_states:
            outgoing.set_sequences(db, list(self._outgoing_states.values()))
        if self._next_numbers:
            outgoing.set_next_numbers(db, self._next_numbers)
        if self._history:
            history.remember(db, self._history)
        if self._forgotten_history:
            history.forget(db, self._forgotten_history)
        if self._outcomes:
            outcomes.record(db, self._outcomes)
        if self._events:
            events.insert(db, self._events)
        for arrival in self._arrivals:
            arrival.tell(db)
        for unit in self._units:
            unit.write(db)
        db.execute("COMMIT")

    def leave_out(self) -> bool:
        """Exclude the units that can wait, on the writer's thread; return whether any could."""
        return any([unit.leave_out() for unit in self._units])

    def read(self, db: sqlite3.Connection) -> None:
        """Run the reads of `read_after`, on the writer's thread."""
        for read in self._reads:
            read.run(db)

    def report(self) -> None:
        """Notify all callers, in the event loop.  Only after `write` has returned."""
        for arrival in self._arrivals:
            arrival.settle()
        for unit in self._units:
            unit.settle()
        for callback in self._callbacks:
            callback()
        for read in self._reads:
            read.report()
        # A caller that still refers to this batch must not keep other callers alive.
        self._arrivals, self._units, self._callbacks, self._reads = [], [], [], []

    def fail(self, error: StorageError) -> None:
        """Report to all callers that the batch was not stored, as far as is known."""
        for arrival in self._arrivals:
            arrival.fail(error)
        for unit in self._units:
            unit.fail(error)

    def _count(self, rows: int) -> None:
        self.rows += rows
        if self.waits:
            self.is_empty = False
            self.waits = not self._on_act()


class _Arrival:
    """A range of acknowledged rows, some of which are kept.

    This is not a unit: the batch deletes the range afterwards, so if keeping the rows fails,
    nothing may be committed.
    """

    def __init__(
        self,
        arrived: Arrived,
        tell: Callable[[list[Kept]], list[Event]],
        future: asyncio.Future[list[Kept]],
    ) -> None:
        self._arrived = arrived
        self._tell = tell
        self._future = future
        self._kept: list[Kept] = []

    @property
    def range(self) -> tuple[int, int]:
        return self._arrived.first, self._arrived.last

    def write(self, db: sqlite3.Connection) -> None:
        self._kept = awaiting.take_over(db, self._arrived)

    def tell(self, db: sqlite3.Connection) -> None:
        """Record the events of the kept rows, after the events of the batch itself."""
        events.insert(db, self._tell(self._kept))

    def settle(self) -> None:
        if not self._future.done():
            self._future.set_result(self._kept)

    def fail(self, error: StorageError) -> None:
        if not self._future.done():
            self._future.set_exception(error)


class _Unit(Generic[T]):
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
        db.execute("RELEASE unit")

    def settle(self) -> None:
        if self._future.done():  # the caller was cancelled
            return
        if self._failure is None:
            self._future.set_result(self._result)
        else:
            self._future.set_exception(self._failure)

    def fail(self, error: StorageError) -> None:
        if not self._future.done():
            self._future.set_exception(error)


class _Read(Generic[T]):
    def __init__(self, work: Work[T], callback: Callable[[T], None]) -> None:
        self._work = work
        self._callback = callback
        self._result: T

    def run(self, db: sqlite3.Connection) -> None:
        self._result = self._work(db)

    def report(self) -> None:
        self._callback(self._result)


def _nothing(db: sqlite3.Connection) -> None:
    """Do nothing; a unit that only waits for earlier changes."""


def _is_units_own(failure: sqlite3.Error) -> bool:
    """Return whether the unit itself caused this error.

    Errors of the sqlite3 module, such as a wrong number of parameters, have no code.
    """
    code = getattr(failure, "sqlite_errorcode", sqlite3.SQLITE_MISUSE)
    return code & 0xFF in _UNITS_OWN_ERRORS
