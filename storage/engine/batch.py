"""What goes to disk together: the acts that gather while the last batch is being committed.

The hot acts are rows, each kind written by one `executemany`.  Rare acts are units: plain functions
of the connection, each under a savepoint, so that one that fails leaves the others alone.  They are
written in this order, whatever the order of the calls:

    new rows ─► deletions ─► sequences, history, outcomes ─► events ─► units ─► COMMIT ─► reads

and their callers hear of it in this order, back in the event loop: futures of units, callbacks of
`when_durable` in the order given, callbacks of `read_after`.
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

#: Failures that lie in the unit.  After any other (disk, memory, lock, damage) SQLite may have
#: rolled back the whole transaction, and with it what other callers wrote.
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
    """Open for acts until the writer takes it.  Nothing in it is promised before it is durable.

    A packet must not be changed any more once it was given.
    """

    def __init__(self, on_act: Callable[[], bool]) -> None:
        """`on_act` is called by acts until it says that the batch will be committed soon."""
        #: No other batch has it: to be remembered by those who must not keep the batch alive.
        self.number = next(_numbers)
        #: How much there is to write: rows, deletions and units; bytes of packets.
        self.rows = 0
        self.bytes = 0
        self.is_empty = True
        self.waits = True  # for an act that cannot
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
        # The last state within a batch is the one that counts.
        self._incoming_states: dict[int, sequences.SequenceState] = {}
        self._outgoing_states: dict[int, outgoing.SequenceState] = {}
        self._next_numbers: dict[int, int] = {}  # of those that have no state here
        self._history: list[tuple[history.Segment, list[int]]] = []
        self._forgotten_history: list[int] = []
        self._outcomes: list[tuple[bytes, bytes, int]] = []
        self._events: list[Event] = []
        self._units: list[_Unit[Any]] = []
        self._callbacks: list[Callable[[], None]] = []
        self._reads: list[_Read[Any]] = []

    # Hot acts.

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
        """`part`: the packet is only its head, and goes on with that one."""
        if part is None:
            self._messages.append((key, arrived_at_ms, expires_at_s, reason, packet))
        else:
            self._message_copies.append((key, arrived_at_ms, expires_at_s, reason, packet, part))
        self.bytes += len(packet)
        self._count(1)

    def insert_messages(self, rows: Sequence[messages.NewMessage], size: int) -> None:
        """Many at once; `size`: the bytes of their packets."""
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
        """Keys and packets (or with a `part` their heads) of what is the same otherwise."""
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
        """The end of the packets of rows in this batch.  The caller chooses an id that is new."""
        self._shared_parts.append((part_id, packet))
        self.bytes += len(packet)
        self._count(1)

    def delete_messages(self, keys: Sequence[int]) -> None:
        """A key that is not there is no error."""
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
        """`part`: as of `insert_message`."""
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
        """Keys and packets of what is the same otherwise; the batch keeps the list.

        `size`: the bytes of the packets, where they are known.
        """
        copies = outgoing.NewCopies(rows, expires_at_s, confirm_by_s, discard, part)
        self._outgoing_copies.append(copies)
        self.bytes += sum(len(packet) for _, packet in rows) if size is None else size
        self._count(len(rows))

    def delete_outgoing(self, keys: Sequence[int]) -> None:
        """A key that is not there is no error."""
        self._outgoing_deletions += keys
        self._count(len(keys))

    def await_confirmation(
        self, arrived: Arrived, tell: Callable[[list[Kept]], list[Event]]
    ) -> asyncio.Future[list[Kept]]:
        """Of rows that were acknowledged in order, and are deleted as a range with this batch, keep
        those that wait for a final ack, and `tell` of them; which, once that is durable."""
        future: asyncio.Future[list[Kept]] = asyncio.get_running_loop().create_future()
        self._arrivals.append(_Arrival(arrived, tell, future))
        self._count(1)
        return future

    def delete_awaiting(self, numbers: Sequence[int]) -> None:
        """A number that is not there is no error."""
        self._awaiting_deletions += numbers
        self._count(len(numbers))

    def delete_outgoing_range(self, first_key: int, last_key: int) -> None:
        """Both ends are included."""
        self._outgoing_ranges.append((first_key, last_key))
        self._count(1)

    def add_incoming_sequence(
        self, incoming_id: int, source: bytes, queue_id: int, name: bytes, at_s: int
    ) -> None:
        """A stream that begins, to a queue that its source knows by this name.

        The caller chooses the id: one above all that there are.  So the first message's state can
        be set at once, in the same batch.
        """
        self._new_sequences.append((incoming_id, source, queue_id, name, at_s))
        self._count(1)

    def add_outgoing_queue(self, row: outgoing.OutgoingQueueRow) -> None:
        """A destination that is new.  The caller chooses the id: one above all that there are.

        So its first messages and their sequence can be set at once, in the same batch.
        """
        self._new_outgoing_queues.append(row)
        self._count(1)

    def forget_outgoing_queues(self, ids: Sequence[int], last_timestamp: int) -> None:
        """Empty ones, before new ones are added: those may have their ids and destinations.

        `last_timestamp`: the greatest that any sequence had, theirs included.
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
        """How far a stream has come, and what it has rejected: see `IncomingSequenceRow`."""
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
        """By outgoing queue, where nothing else of the sequence has changed since it was set."""
        states = self._outgoing_states
        for outgoing_id in states.keys() & numbers.keys() if states else ():
            sequence_id, base, _, _ = states[outgoing_id]
            states[outgoing_id] = sequence_id, base, numbers.pop(outgoing_id), outgoing_id
        self._next_numbers.update(numbers)
        self._count(1)

    def remember_message_ids(self, segment: history.Segment) -> list[int]:
        """The list for the numbers that a segment gets with this batch: of each run the first and
        the last.  It may be added to as long as the batch is the open one."""
        numbers: list[int] = []
        self._history.append((segment, numbers))
        self._count(1)
        return numbers

    def forget_message_ids(self, segment_ids: Sequence[int]) -> None:
        """Whole segments, with what they get in this batch."""
        if segment_ids:
            self._forgotten_history += segment_ids
            self._count(1)

    def record_outcome(self, token: bytes, result: bytes, at_s: int) -> None:
        self._outcomes.append((token, result, at_s))
        self._count(1)

    def mention(self, event: Event) -> None:
        """Tell of what the acts of this batch do, or of what needs no act of its own.

        It causes no commit, and goes to disk with the next one.  Until that begins the event may be
        added to.  A unit that finds out only in its commit what happens uses `events.insert`.
        """
        self._events.append(event)

    @property
    def mentions(self) -> bool:
        """Whether there are events that wait."""
        return bool(self._events)

    def write_soon(self) -> None:
        """Commit, though there may be nothing but events."""
        self._count(0)

    def record(self, event: Event) -> None:
        """An event that causes a commit."""
        self.mention(event)
        self.write_soon()

    # Rare acts, and who wants to hear of the commit.

    def run(
        self, unit: Callable[[sqlite3.Connection], T], *, can_wait: bool = False
    ) -> asyncio.Future[T]:
        """What `unit` returned, once that is durable; or its exception, and nothing of it is done.

        It runs on the writer's thread, after the rows of the batch.  It may run twice (a full disk
        makes the batch begin again), so it must not keep anything outside the connection.

        `can_wait`: housekeeping.  Where the disk is so full that it would keep the rest from being
        written, it is left out, and the exception is NoRoomForIt.
        """
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._units.append(_Unit(unit, future, can_wait=can_wait))
        self._count(1)
        return future

    def barrier(self) -> asyncio.Future[None]:
        """Wait until all that was given before is durable.  Its exception: StorageError."""
        return self.run(_nothing)

    def when_durable(self, callback: Callable[[], None]) -> None:
        """An exception of the callback is a bug, and stops the storage."""
        self._callbacks.append(callback)
        self._count(0)

    def read_after(
        self, read: Callable[[sqlite3.Connection], T], callback: Callable[[T], None]
    ) -> None:
        """Look at the database as this batch leaves it: nothing else is written before `read`."""
        self._reads.append(_Read(read, callback))
        self._count(0)

    # For the writer.

    def write(self, db: sqlite3.Connection, begin: Work[None] = lambda db: None) -> None:
        """Everything up to the COMMIT, on the writer's thread; `begin` comes before all else."""
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
                # The next one may begin at the same row, and must not find these again.
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
        """Do without what can wait, on the writer's thread; whether there was any."""
        return any([unit.leave_out() for unit in self._units])

    def read(self, db: sqlite3.Connection) -> None:
        """What `read_after` asked for, on the writer's thread."""
        for read in self._reads:
            read.run(db)

    def report(self) -> None:
        """Tell everybody, in the event loop.  Only after `write` has returned."""
        for arrival in self._arrivals:
            arrival.settle()
        for unit in self._units:
            unit.settle()
        for callback in self._callbacks:
            callback()
        for read in self._reads:
            read.report()
        # Who still compares with this batch keeps no callers alive.
        self._arrivals, self._units, self._callbacks, self._reads = [], [], [], []

    def fail(self, error: StorageError) -> None:
        """Nothing of this batch was stored, as far as anybody knows."""
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
    """Not a unit: what it keeps is deleted behind it, so without it nothing may be committed."""

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
        """Behind what the batch itself tells of them."""
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
        """Fail without being run, if it can wait; False when that was so before."""
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
                raise  # there may be some when the batch is tried again
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
    """A unit that only waits for what precedes it."""


def _is_units_own(failure: sqlite3.Error) -> bool:
    """The module's own errors, such as a wrong number of parameters, have no code."""
    code = getattr(failure, "sqlite_errorcode", sqlite3.SQLITE_MISUSE)
    return code & 0xFF in _UNITS_OWN_ERRORS
