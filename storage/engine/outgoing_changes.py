"""Changes of outgoing queues in a batch: their messages, their sequences, and the queues."""

import asyncio
import sqlite3
from collections.abc import Callable, Sequence

from storage.engine.load import Load
from storage.engine.pending import Arrival
from storage.errors import StorageError
from storage.tables import awaiting, outgoing
from storage.tables.awaiting import Arrived, Kept
from storage.tables.events import Event
from storage.tables.sequences import encode_sequence_id
from storage.tables.shared_parts import PartOf

#: Ranges with more rows take longer than a few single rows.
SHORT_RANGE = 8


class OutgoingChanges:
    """The changes of outgoing queues that the open batch collects."""

    def __init__(self, load: Load) -> None:
        self._load = load
        self._messages: list[outgoing.NewOutgoing] = []
        self._copies: list[outgoing.NewCopies] = []
        self._columns: list[outgoing.ColumnRows] = []
        self._deletions: list[int] = []
        self._arrivals: list[Arrival] = []
        self._awaiting_deletions: list[int] = []
        self._ranges: list[tuple[int, int]] = []
        self._new_queues: list[outgoing.OutgoingQueueRow] = []
        self._forgotten_queues: list[int] = []
        self._last_sequence_timestamp = 0
        # Only the last state within a batch is written.
        self._states: dict[int, outgoing.SequenceState] = {}
        # Of sequences without an entry in `_states`.
        self._next_numbers: dict[int, int] = {}

    def insert(
        self,
        key: int,
        packet: bytes,
        expires_at_s: int | None = None,
        *,
        confirm_by_s: int | None = None,
        discard: bool = False,
        part: PartOf | None = None,
    ) -> None:
        """Insert an outgoing message; `part` is as in `Batch.insert_message`."""
        if part is None:
            self._messages.append((key, expires_at_s, packet, confirm_by_s, discard))
            self._load.bytes += len(packet)
            self._load.count(1)
        else:
            rows = [(key, packet)]
            self.insert_copies(rows, expires_at_s, confirm_by_s, discard=discard, part=part)

    def insert_many(self, rows: Sequence[outgoing.NewOutgoing], size: int) -> None:
        """Insert many outgoing messages; `size` is the sum of the bytes of their packets."""
        self._messages += rows
        self._load.bytes += size
        self._load.count(len(rows))

    def insert_copies(
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
        self._copies.append(copies)
        self._load.bytes += sum(len(packet) for _, packet in rows) if size is None else size
        self._load.count(len(rows))

    def insert_columns(self, rows: outgoing.ColumnRows, size: int) -> None:
        """Insert outgoing messages, of which the commit makes the rows; `size`: of their packets,
        in bytes."""
        self._columns.append(rows)
        self._load.bytes += size
        self._load.count(len(rows))

    def delete(self, keys: Sequence[int]) -> None:
        """Delete outgoing messages; unknown keys are ignored."""
        self._deletions += keys
        self._load.count_deleted(len(keys))

    def await_confirmation(
        self, arrived: Arrived, events_of: Callable[[list[Kept]], list[Event]]
    ) -> asyncio.Future[list[Kept]]:
        """Keep those acknowledged rows that wait for a final ack.

        `arrived` is a range of rows that were acknowledged in order; this batch deletes the range.
        `events_of` returns the events to record for the kept rows.  The future gives the kept rows
        once the batch is durable.
        """
        future: asyncio.Future[list[Kept]] = asyncio.get_running_loop().create_future()
        self._arrivals.append(Arrival(arrived, events_of, future))
        self._load.count(1)
        return future

    def delete_awaiting(self, numbers: Sequence[int]) -> None:
        """Delete messages that wait for a final ack; unknown numbers are ignored."""
        self._awaiting_deletions += numbers
        self._load.count_deleted(len(numbers))

    def delete_range(self, first_key: int, last_key: int, *, rows: int = 1) -> None:
        """Delete a range of outgoing messages, with about so many rows; both ends are included."""
        self._ranges.append((first_key, last_key))
        if rows > SHORT_RANGE:
            self._load.has_calls = True
        self._load.count(1)

    def add_queue(self, row: outgoing.OutgoingQueueRow) -> None:
        """Add a destination.  The caller chooses the id: one above all existing ids.

        Its first messages and their sequence can therefore be set in the same batch.
        """
        self._new_queues.append(row)
        self._load.count(1)

    def forget_queues(self, ids: Sequence[int], last_timestamp: int) -> None:
        """Delete empty outgoing queues, before new ones that may reuse their ids and destinations.

        `last_timestamp` is the greatest timestamp of all sequences, including the deleted ones.
        """
        self._forgotten_queues += ids
        self._last_sequence_timestamp = last_timestamp
        self._load.count(len(ids))

    def set_sequence(self, outgoing_id: int, sequence_id: int, base: int, next_number: int) -> None:
        self._states[outgoing_id] = (
            encode_sequence_id(sequence_id),
            base,
            next_number,
            outgoing_id,
        )
        self._next_numbers.pop(outgoing_id, None)
        self._load.count(1)

    def set_next_numbers(self, numbers: dict[int, int]) -> None:
        """Set next numbers by outgoing queue, where nothing else of the sequence has changed."""
        states = self._states
        for outgoing_id in states.keys() & numbers.keys() if states else ():
            sequence_id, base, _, _ = states[outgoing_id]
            states[outgoing_id] = sequence_id, base, numbers.pop(outgoing_id), outgoing_id
        self._next_numbers.update(numbers)
        self._load.count(1)

    # Methods for the batch: it writes these changes between those of other tables.

    @property
    def has_copies(self) -> bool:
        """Whether new rows may refer to shared parts."""
        return bool(self._copies or self._columns)

    def write_messages(self, db: sqlite3.Connection) -> None:
        if self._messages:
            outgoing.insert(db, self._messages)

    def write_copies(self, db: sqlite3.Connection) -> None:
        """Write messages that have a shared part, after the parts."""
        if self._copies:
            outgoing.insert_copies(db, self._copies)
        for rows in self._columns:
            outgoing.insert_columns(db, rows)

    def write_deletions(self, db: sqlite3.Connection) -> None:
        """Write deletions, and then new queues, which may reuse ids of deleted ones."""
        if self._deletions:
            outgoing.delete(db, self._deletions)
        for arrival in self._arrivals:
            arrival.write(db)
            if len(self._arrivals) > 1:
                # The next range may begin at the same row, and must not find these rows again.
                outgoing.delete_ranges(db, [arrival.range])
        if self._awaiting_deletions:
            awaiting.delete(db, self._awaiting_deletions)
        if self._ranges:
            outgoing.delete_ranges(db, self._ranges)
        if self._forgotten_queues:
            outgoing.forget_queues(db, self._forgotten_queues, self._last_sequence_timestamp)
        if self._new_queues:
            outgoing.add_queues(db, self._new_queues)

    def write_sequences(self, db: sqlite3.Connection) -> None:
        if self._states:
            outgoing.set_sequences(db, list(self._states.values()))
        if self._next_numbers:
            outgoing.set_next_numbers(db, self._next_numbers)

    def write_events(self, db: sqlite3.Connection) -> None:
        """Write the events of the arrivals, after the events of the batch itself."""
        for arrival in self._arrivals:
            arrival.write_events(db)

    def report(self) -> None:
        """Notify the callers of `await_confirmation`."""
        arrivals, self._arrivals = self._arrivals, []
        for arrival in arrivals:
            arrival.settle()

    def fail(self, error: StorageError) -> None:
        for arrival in self._arrivals:
            arrival.fail(error)
