"""A batch: the changes that are collected during a commit and written by the next commit.

Frequent changes are rows, each kind written by few statements.  Rare changes are units: plain
functions of the connection, each under a savepoint, so that a unit that fails does not affect the
others.  `Batch.outgoing` and `Batch.incoming` collect the rows of outgoing queues and of incoming
sequences.  All are written in this order, independent of the order of the calls:

    new rows ─► deletions ─► sequences, history ─► events, outcomes ─► units ─► COMMIT ─► reads

The deletions come before the new rows if that makes no difference but this: the new rows take the
pages of deleted ones.  SQLite writes all pages that a commit has changed, freed ones as well.

The callers are notified in the event loop in this order: futures of units, callbacks of
`when_durable` in the order of the calls, callbacks of `read_after`.
"""

import asyncio
import itertools
import sqlite3
from collections.abc import Callable, Sequence
from typing import Any

from storage.engine.connection import Work
from storage.engine.incoming_changes import IncomingChanges
from storage.engine.link_changes import LinkChanges
from storage.engine.load import Load, Part
from storage.engine.outgoing_changes import OutgoingChanges
from storage.engine.pending import Read, T, Unit
from storage.engine.piece_changes import PieceChanges
from storage.errors import StorageError
from storage.tables import events, messages, outcomes, shared_parts
from storage.tables.events import Event
from storage.tables.shared_parts import PartOf
from storage.tables.tally import tally_of

_numbers = itertools.count(1)

#: Messages of a run that are deleted by their keys, together with others.
FEW = 32


def _ignore(token: bytes) -> None:
    """Ignore the token of an outcome."""


class Batch:
    """The open batch: accepts changes until the writer takes it.

    No change may be acknowledged before the batch is durable.  A packet must not be modified after
    it was passed to a method.
    """

    #: Changes of outgoing queues, and of incoming sequences and the history of message ids.
    outgoing = Part(OutgoingChanges)
    incoming = Part(IncomingChanges)
    #: Deliveries of the links of doors.
    links = Part(LinkChanges)
    #: Pieces of large packets.
    pieces = Part(PieceChanges)

    def __init__(
        self,
        on_act: Callable[[], bool],
        on_outcome: Callable[[bytes], None] = _ignore,
    ) -> None:
        """Create an empty batch.

        Each change calls `on_act` until it returns True: the batch is then due for commit.
        `on_outcome` is called with the token of each outcome.
        """
        self._on_outcome = on_outcome
        #: Unique; identifies the batch to objects that must not keep a reference to it.
        self.number = next(_numbers)
        self.load = Load(on_act)
        self._messages: list[messages.NewMessage] = []
        self._shared_parts: list[shared_parts.NewPart] = []
        self._message_copies: list[messages.NewCopy] = []
        self._columns: list[messages.NewMessages] = []
        self._copy_columns: list[messages.NewCopies] = []
        self._message_deletions: list[int] = []
        self._deleted_runs: list[tuple[int, int, int]] = []
        self._outcomes: list[tuple[bytes, bytes, int]] = []
        self._events: list[Event] = []
        self._units: list[Unit[Any]] = []
        self._callbacks: list[Callable[[], None]] = []
        self._reads: list[Read[Any]] = []

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
        """Insert a message; with `part`, `packet` is only the head, and `part` is the rest."""
        if part is None:
            self._messages.append((key, arrived_at_ms, expires_at_s, reason, packet))
        else:
            self._message_copies.append((key, arrived_at_ms, expires_at_s, reason, packet, part))
        self.load.bytes += len(packet)
        self.load.count(1)

    def insert_messages(self, rows: messages.NewMessages, size: int) -> None:
        """Insert many messages; `size` is the sum of the bytes of their packets.

        Unless the rows are a list, the commit makes them, on the writer's thread.
        """
        if isinstance(rows, list):
            self._messages += rows
        else:
            self._columns.append(rows)
        self.load.bytes += size
        self.load.count(len(rows))

    def insert_message_copies(self, rows: messages.NewCopies, size: int) -> None:
        """Insert messages that share parts; `size` is the sum of the bytes of their heads.

        The commit may make the rows, as with `insert_messages`.
        """
        if isinstance(rows, list):
            self._message_copies += rows
        else:
            self._copy_columns.append(rows)
        self.load.bytes += size
        self.load.count(len(rows))

    def insert_shared_part(self, part_id: int, packet: bytes) -> None:
        """Insert the common end of packets in this batch.  The caller chooses an unused id."""
        self._shared_parts.append((part_id, packet, None))
        self.load.bytes += len(packet)
        self.load.count(1)

    def delete_messages(
        self,
        keys: Sequence[int] = (),
        *,
        size: int | None = None,
        runs: Sequence[tuple[int, int, int]] = (),
    ) -> None:
        """Delete messages; unknown keys are ignored.

        `size` is the sum of the bytes of their packets, if it is known.  `runs` are successive
        keys: the first and the last, and the bytes of their packets.
        """
        self._message_deletions += keys
        self.load.count_deleted(len(keys), size)
        for first, last, run_bytes in runs:
            if last - first < FEW:
                self._message_deletions += range(first, last + 1)
            else:
                self._deleted_runs.append((first, last, run_bytes))
            self.load.count_deleted(last - first + 1, run_bytes)

    def record_outcome(self, token: bytes, result: bytes, at_s: int) -> None:
        """Record the outcome of a request, by its token, at a second of our own clock."""
        self._outcomes.append((token, result, at_s))
        self._on_outcome(token)
        self.load.count(1)

    def mention(self, event: Event) -> None:
        """Record an event without causing a commit; the next commit writes it.

        The caller may extend the event until that commit begins.  A unit that determines only
        during the commit which event to record uses `events.insert`.
        """
        self._events.append(event)

    @property
    def first_event(self) -> Event | None:
        """The first of its events, or None."""
        return self._events[0] if self._events else None

    @property
    def mentions(self) -> bool:
        """Whether events are pending."""
        return bool(self._events)

    def write_soon(self) -> None:
        """Request a commit, even if there are only events."""
        self.load.count(0)

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
        self._units.append(Unit(unit, future, can_wait=can_wait))
        self.load.has_calls = True
        self.load.count(1)
        return future

    def barrier(self) -> asyncio.Future[None]:
        """Return a future that completes when all earlier changes are durable.

        It raises StorageError if they are not.
        """
        return self.run(_nothing)

    def when_durable(self, callback: Callable[[], None]) -> None:
        """Call `callback` after the commit; an exception of it is a bug and stops the storage."""
        self._callbacks.append(callback)
        self.load.count(0)

    def read_after(
        self, read: Callable[[sqlite3.Connection], T], callback: Callable[[T], None]
    ) -> None:
        """Call `read` on the database right after this commit, before any other write."""
        self._reads.append(Read(read, callback))
        self.load.has_calls = True
        self.load.count(0)

    # Methods for the writer.

    def write(self, db: sqlite3.Connection, begin: Work[None] = lambda db: None) -> None:
        """Write all changes and commit, on the writer's thread; `begin` runs first."""
        db.execute("BEGIN IMMEDIATE")
        begin(db)
        tally = tally_of(db)
        if tally is not None:
            tally.begin()
        made = self.__dict__
        outgoing: OutgoingChanges | None = made.get("outgoing")
        incoming: IncomingChanges | None = made.get("incoming")
        links: LinkChanges | None = made.get("links")
        pieces: PieceChanges | None = made.get("pieces")
        if pieces is not None:
            pieces.write(db)
        new_rows = [self._messages, *map(list, self._columns)]
        deletes = bool(self._message_deletions or self._deleted_runs)
        deletes_first = deletes and self._deletes_first(new_rows, outgoing)
        if deletes_first:
            self._delete_messages(db)
        for rows in new_rows:
            if rows:
                messages.insert(db, rows)
        if outgoing is not None:
            outgoing.write_messages(db)
        if self._shared_parts:
            shared_parts.insert(db, self._shared_parts)
        if self._message_copies:
            messages.insert_copies(db, self._message_copies)
        for copies in self._copy_columns:
            messages.insert_copies(db, list(copies))
        if outgoing is not None:
            outgoing.write_copies(db)
        if deletes and not deletes_first:
            self._delete_messages(db)
        if outgoing is not None:
            outgoing.write_deletions(db)
        if incoming is not None:
            incoming.write_sequences(db)
        if outgoing is not None:
            outgoing.write_sequences(db)
        if incoming is not None:
            incoming.write_history(db)
        if links is not None:
            links.write(db)
        if self._events:
            events.insert(db, self._events, self._outcomes)
        elif self._outcomes:
            outcomes.record(db, self._outcomes)
        if outgoing is not None:
            outgoing.write_events(db)
        for unit in self._units:
            unit.write(db)
        if tally is None:
            db.execute("COMMIT")
            return
        tally.finish(db)
        db.execute("COMMIT")
        tally.committed()

    def _deletes_first(
        self, new_rows: list[list[messages.NewMessage]], outgoing: OutgoingChanges | None
    ) -> bool:
        """Return whether messages may be deleted before `new_rows` and others are inserted.

        Not if one of these rows is to be deleted.  A new copy may refer to a shared part, which is
        deleted with the last row that refers to it.
        """
        if self._message_copies or self._copy_columns:
            return False
        if outgoing is not None and outgoing.has_copies:
            return False
        deleted = set(self._message_deletions)
        for rows in filter(None, new_rows):
            keys = [row[0] for row in rows]
            if not deleted.isdisjoint(keys):
                return False
            least, most = min(keys), max(keys)
            for first, last, _ in self._deleted_runs:
                if least <= last and first <= most and any([first <= key <= last for key in keys]):
                    return False
        return True

    def _delete_messages(self, db: sqlite3.Connection) -> None:
        if self._message_deletions:
            messages.delete(db, self._message_deletions)
        for first, last, size in self._deleted_runs:
            messages.delete_run(db, first, last, size)

    def leave_out(self) -> bool:
        """Exclude the units that can wait, on the writer's thread; return whether any could."""
        return any([unit.leave_out() for unit in self._units])

    def read(self, db: sqlite3.Connection) -> None:
        """Run the reads of `read_after`, on the writer's thread."""
        for read in self._reads:
            read.run(db)

    def report(self) -> None:
        """Notify all callers, in the event loop.  Only after `write` has returned."""
        if "outgoing" in self.__dict__:
            self.outgoing.report()
        for unit in self._units:
            unit.settle()
        for callback in self._callbacks:
            callback()
        for read in self._reads:
            read.report()
        # A caller that still refers to this batch must not keep other callers alive.
        self._units, self._callbacks, self._reads = [], [], []

    def fail(self, error: StorageError) -> None:
        """Report to all callers that the batch was not stored, as far as is known."""
        if "outgoing" in self.__dict__:
            self.outgoing.fail(error)
        for unit in self._units:
            unit.fail(error)


def _nothing(db: sqlite3.Connection) -> None:
    """Do nothing; a unit that only waits for earlier changes."""
