"""The columns of a request in the open batch: places, rows and events, in one turn of the loop.

Arrival numbers and the numbers of sequences are assigned here and never before, as for publications
(publication_batch.py).  Each message gets the number of its turn in the request, so that its place
among all messages of its queue does not depend on the columns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import compress
from typing import TYPE_CHECKING

import msgspec

from protocol import parse_user_message
from protocol.message_class import MessageClass
from qmd.bulk.message_columns import Column, MessageColumns, Refused
from qmd.control_protocol.messages import EXPRESS, StoredMessage
from qmd.errors import Refusal
from qmd.message.prepared import placed
from qmd.message.shared_packet import Held, Packet, SharedMessage, SharedPacket, head_of
from qmd.operations.sent_events import sent_to
from qmd.queues.local_queue import LocalQueue
from qmd.queues.local_rows import LocalRows
from qmd.queues.outgoing_queue import OutgoingQueue
from qmd.queues.put import put_express
from qmd.transfer import confirmation_requests
from storage.tables.keys import ARRIVAL_BITS, LOOKUP_BITS

if TYPE_CHECKING:
    from qmd.events.recorder import Recorder
    from qmd.message.shared_packet import Part
    from qmd.operations.delayed import DelayedMessages
    from qmd.outcomes.acknowledgments import Acknowledgments
    from qmd.outcomes.dead_letter import DeadLetters
    from qmd.outcomes.reports import Reports
    from qmd.queues.named_dead_letter_queue import NamedDeadLetterQueues
    from qmd.queues.outgoing_queues import Appended, OutgoingQueues
    from qmd.runtime.services import Services
    from qmd.transfer.release import OutgoingRelease
    from storage.engine.batch import Batch
    from storage.tables.messages import NewCopy
    from storage.tables.outgoing import NewInColumn


#: The numbers of messages, the ids of their dead-letter queues (0: none), and their keys.
_Named = tuple[list[int], list[int], list[int]]


class ColumnWriter:
    """The part that adds the columns of requests to the open batch."""

    def __init__(
        self,
        services: Services,
        outgoing: OutgoingQueues,
        outgoing_release: OutgoingRelease,
        recorder: Recorder,
        own_dead_letters: NamedDeadLetterQueues,
        reports: Reports,
        delayed: DelayedMessages,
        dead_letters: DeadLetters,
        acknowledgments: Acknowledgments,
    ) -> None:
        self._services = services
        self._outgoing = outgoing
        self._outgoing_release = outgoing_release
        self._recorder = recorder
        self._own_dead_letters = own_dead_letters
        self._reports = reports
        self._delayed = delayed
        self._dead_letters = dead_letters
        self._acknowledgments = acknowledgments

    def write(
        self,
        made: MessageColumns,
        numbers: object,
        token: bytes,
        transaction: str,
        answer: Callable[[], None],
    ) -> None:
        """Add all messages to the open batch; `answer` is called when it is durable, before others
        get them.

        `numbers` are the outcome that is stored under `token`; `transaction` is the id, as text, of
        the one that sends the messages, or "".  As many arrival numbers must be left.
        """
        # If all messages of an outgoing sequence are acknowledged, a new sequence begins.
        self._outgoing_release.release()
        batch = self._services.storage.batch
        places = _Places(self._services, made)
        writing = _Writing(self._services, self._outgoing, made, batch)
        for part in made.parts.values():
            batch.insert_shared_part(part.id, part.packet)
        for column in made.columns.values():
            keys = places.of(column)
            if column.delivery == EXPRESS:
                writing.put_express(column, keys)
            elif isinstance(column.route, LocalQueue):
                writing.put_here(column, column.route, keys)
            else:
                writing.put_elsewhere(column, column.route, keys, places.positions_of(column))
            if column.dead_letter_queues:
                self._name_dead_letter_queues(column, keys, batch)
            self._record(column, keys, places, transaction)
        for packet in made.unanswered:
            self._acknowledgments.to_application(
                parse_user_message(packet), MessageClass.ACK_REACH_QUEUE, batch
            )
        for queue, refused in made.refused.items():
            self._refuse(queue, refused, places, transaction)
        if made.delayed is not None:
            self._delayed.count(made.delayed)
            self._delayed.store(made.delayed.rows, batch)
        self._outgoing.save(made.in_sequences, batch)
        if token:
            result = msgspec.msgpack.encode(numbers)
            batch.record_outcome(token, result, self._services.clock.now_s)
        else:
            writing.transmit_express()
        batch.when_durable(partial(writing.durable, answer))
        if made.reported:
            self._reports.all_arrived(made.reported, batch)

    def _name_dead_letter_queues(self, column: Column, keys: Sequence[int], batch: Batch) -> None:
        """Store the dead-letter queues that applications named for messages of a column."""
        found: dict[str, LocalQueue] = {}
        for name in set(column.dead_letter_queues) - {""}:
            try:
                found[name] = self._own_dead_letters.check(name, column.delivery)
            except Refusal:
                continue  # deleted since its transaction began: the system's queue serves
        queue_ids = [found[name].id if name in found else 0 for name in column.dead_letter_queues]
        base, count = column.route.id << LOOKUP_BITS, len(queue_ids)  # the list ends with a name
        columns = column.numbers[:count], queue_ids, [base | key for key in keys[:count]]
        if not all(queue_ids):
            columns = _with_queue(columns)
        self._own_dead_letters.add_all(
            columns,
            "outgoing" if isinstance(column.route, OutgoingQueue) else "message",
            batch,
            express=column.delivery == EXPRESS,
        )

    def _refuse(
        self, queue: LocalQueue, refused: Refused, places: _Places, transaction: str
    ) -> None:
        """End transactional copies in a queue of this computer that is not transactional: their
        outcome is that of such messages in a queue elsewhere.  docs/decisions/0006"""
        column, end = refused
        keys = places.of(column)
        end.place(keys)
        if column.dead_letter_queues:
            self._name_dead_letter_queues(column, keys, self._services.storage.batch)
        self._record(column, keys, places, transaction)
        ends = MessageClass.NACK_NOT_TRANSACTIONAL_QUEUE
        messages = list(zip(keys, column.heads, strict=True))
        self._dead_letters.end(queue, messages, ends, prepared=end)

    def _record(
        self, column: Column, keys: Sequence[int], places: _Places, transaction: str
    ) -> None:
        """Record that the messages of a column were sent."""
        if not self._recorder.enabled:
            return
        event = sent_to(
            self._recorder, self._services.id, column.route, column.delivery, transaction
        )
        before = len(event.numbers)
        for properties, more in (
            (event.correlations, column.correlations),
            (event.traces, column.traces),
        ):
            if more:
                properties += [b""] * (before - len(properties))
                properties += more
        event.numbers += column.numbers
        event.sizes += column.sizes
        event.places += keys
        event.positions += places.positions_of(column)


def _with_queue(columns: _Named) -> _Named:
    """Return the rows of messages with a dead-letter queue, without those of other messages."""
    numbers, queue_ids, keys = columns
    return (
        list(compress(numbers, queue_ids)),
        list(filter(None, queue_ids)),
        list(compress(keys, queue_ids)),
    )


class _Places:
    """The places that the messages of a request get."""

    def __init__(self, services: Services, made: MessageColumns) -> None:
        self._arrivals = services.ids.next_lookup_ids(0, made.count)
        self._first: dict[OutgoingQueue, tuple[int, int]] = {
            queue: queue.next_key(count) for queue, count in made.in_sequences.items()
        }

    def of(self, column: Column) -> list[int]:
        """Return the lookup ids, or keys, of the messages of a column."""
        if column.in_sequence:
            assert isinstance(column.route, OutgoingQueue)
            _, first = self._first[column.route]
            return [first + sequel for sequel in column.sequels]
        arrivals, level = self._arrivals, column.level << ARRIVAL_BITS
        return [level | arrivals[order] for order in column.orders]

    def positions_of(self, column: Column) -> list[int]:
        """Return the numbers of messages in their sequence; none if they belong to none."""
        if not column.in_sequence:
            return []
        assert isinstance(column.route, OutgoingQueue)
        first, _ = self._first[column.route]
        return [first + sequel for sequel in column.sequels]


class _Writing:
    """The messages of a request on their way into the open batch, and into their queues."""

    def __init__(
        self, services: Services, outgoing: OutgoingQueues, made: MessageColumns, batch: Batch
    ) -> None:
        clock, terms = services.clock, made.terms
        self._services = services
        self._outgoing = outgoing
        self._batch = batch
        self._wall_ms = int(services.environment.time() * 1000)
        self._examples = [term.example for term in terms]
        # The last second of each lifetime.
        self._live_by_s = [clock.deadline_s(term.live_s) for term in terms]
        self._reach_by_s = [clock.deadline_s(term.reach_s) for term in terms]
        # Ready after the commit.
        self._here: dict[LocalQueue, list[int]] = {}
        self._elsewhere: dict[OutgoingQueue, int] = {}  # the first key of each queue
        self._express: dict[OutgoingQueue, list[Appended]] = {}

    def put_here(self, column: Column, queue: LocalQueue, keys: list[int]) -> None:
        """Put stored messages into a queue of this computer."""
        count, size = len(keys), sum(column.sizes)
        expiries = self._each(self._live_by_s, column)
        rows = LocalRows(queue.id, keys, column.heads, self._wall_ms, expiries)
        queue.count_in(count, size)
        if column.has_parts:
            copies = _CopyRows(rows, column.parts)
            self._batch.insert_message_copies(copies, sum(map(len, column.heads)))
        else:
            self._batch.insert_messages(rows, size)
        self._here.setdefault(queue, []).extend(keys)

    def put_elsewhere(
        self, column: Column, queue: OutgoingQueue, keys: list[int], positions: list[int]
    ) -> None:
        """Put stored messages into an outgoing queue; `positions` are those in its sequence."""
        confirm_by_s: Sequence[int | None] = [None] * len(keys)
        discard: Sequence[bool] = [False] * len(keys)
        if positions:
            services, examples = self._services, self._examples
            used = set(column.terms)
            by_term = {
                term: confirmation_requests.confirm_by_s(services, examples[term]) for term in used
            }
            discards = {
                term: confirmation_requests.discards(services, examples[term]) for term in used
            }
            confirm_by_s = [by_term[term] for term in column.terms]
            discard = [discards[term] for term in column.terms]
        else:
            queue.others += len(keys)
        size = sum(column.sizes)
        queue.grow(size)
        base, reach_by_s = queue.id << LOOKUP_BITS, self._each(self._reach_by_s, column)
        sequence_id = queue.sequence.sequence_id if positions else 0
        rows = _OutgoingRows(
            column, base, keys, (sequence_id, positions), (reach_by_s, confirm_by_s, discard)
        )
        self._batch.outgoing.insert_columns(rows, sum(map(len, column.heads)))
        self._elsewhere[queue] = min(self._elsewhere.get(queue, keys[0]), min(keys))

    def put_express(self, column: Column, keys: list[int]) -> None:
        """Put express messages into their queue; those for elsewhere leave later."""
        route = column.route
        packets: Iterable[Packet] = column.heads
        if column.has_parts:
            packets = map(SharedPacket, column.heads, column.parts)
        if isinstance(route, LocalQueue):
            expiries = self._each(self._live_by_s, column)
            for key, packet, expires_at_s in zip(keys, packets, expiries, strict=True):
                head = head_of(packet)
                stored = StoredMessage(key, self._wall_ms, head, expires_at_s=expires_at_s)
                held: Held = stored
                if isinstance(packet, SharedPacket):
                    held = SharedMessage(stored, packet)
                put_express(route, held)
            return
        deadlines = self._each(self._reach_by_s, column)
        self._express.setdefault(route, []).extend(
            self._outgoing.add(route, key, packet, self._batch, reach_by_s, None, discard=False)
            for key, packet, reach_by_s in zip(keys, packets, deadlines, strict=True)
        )

    def transmit_express(self) -> None:
        """Let the express messages leave before the commit: they have no outcome on the disk."""
        express, self._express = self._express, {}
        for queue, packets in express.items():
            self._outgoing.appended(queue, packets)

    def durable(self, answer: Callable[[], None]) -> None:
        """Answer the application after the commit, then let others have the messages."""
        answer()
        for queue, lookup_ids in self._here.items():
            queue.deliver_from_disk(lookup_ids)
        self._outgoing.all_appended_on_disk(self._elsewhere)
        if self._express:
            self._outgoing.all_appended(self._express)

    def _each(self, by_term: list[int | None], column: Column) -> Sequence[int | None]:
        """Return the values of a column's messages."""
        if len(by_term) == 1:
            return by_term * len(column.terms)
        return [by_term[term] for term in column.terms]


class _CopyRows:
    """Rows of a local queue with the parts that complete their packets."""

    def __init__(self, rows: LocalRows, parts: Sequence[Part]) -> None:
        self._rows = rows
        self._parts = parts

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[NewCopy]:
        return (
            (*row, (part.id, len(part.packet)))
            for row, part in zip(self._rows, self._parts, strict=True)
        )


class _OutgoingRows:
    """Rows of an outgoing queue, which the writer's thread makes.

    It also puts the positions in a sequence into the packets.
    """

    def __init__(
        self,
        column: Column,
        base: int,
        keys: list[int],
        positions: tuple[int, list[int]],
        deadlines: tuple[Sequence[int | None], Sequence[int | None], Sequence[bool]],
    ) -> None:
        """`positions` are the id of the sequence and the numbers in it; `deadlines` are those to
        arrive and to be confirmed, and whether a message is discarded then."""
        self._column = column
        self._base, self._keys = base, keys
        self._positions = positions
        self._deadlines = deadlines

    def __len__(self) -> int:
        return len(self._keys)

    def __iter__(self) -> Iterator[NewInColumn]:
        column, base = self._column, self._base
        heads: Iterable[bytes] = column.heads
        sequence_id, numbers = self._positions
        if numbers:
            heads = map(placed, heads, [(sequence_id, number) for number in numbers])
        part_ids: Sequence[int | None] = [None] * len(self)
        part_bytes: Sequence[int] = [0] * len(self)
        if column.has_parts:
            part_ids = [part.id for part in column.parts]
            part_bytes = [len(part.packet) for part in column.parts]
        reach_by_s, confirm_by_s, discard = self._deadlines
        keys = [base | key for key in self._keys]
        return zip(
            *(keys, reach_by_s, heads, confirm_by_s, discard, part_ids, part_bytes), strict=True
        )
