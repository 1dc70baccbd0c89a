"""The messages of a publication in the open batch: stored, recorded, ready after the commit.

Arrival numbers are assigned in the turn of the loop in which the batch gets the messages, never
before: a client that reads a range by arrival relies on no message arriving below it later.  The
same holds for the numbers of an outgoing sequence; the writer's thread puts those into the packets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from protocol.patching import with_sequence
from qmd.bulk.message_shapes import MessageShape
from qmd.control_protocol.messages import StoredMessage
from qmd.events.recorder import add_correlation
from qmd.operations.sent_events import sent_to
from qmd.queues.local_queue import LocalQueue
from qmd.queues.outgoing_queue import OutgoingQueue
from qmd.transfer import confirmation_requests
from storage.tables.keys import LOOKUP_BITS

if TYPE_CHECKING:
    from qmd.events.recorder import Recorder
    from qmd.queues.outgoing_queues import Appended, OutgoingQueues
    from qmd.runtime.services import Services
    from qmd.transfer.release import OutgoingRelease
    from storage.engine.batch import Batch
    from storage.tables.outgoing import RowsOfCopies

#: As many messages as a queue reads from the disk at once.  The queues get a smaller publication
#: from memory; they read a larger one from the disk.
IN_MEMORY_MAX = 512


@dataclass(slots=True)
class PacketGroup:
    """Consecutive packets of one shape, as parallel lists."""

    shape: MessageShape
    numbers: list[int] = field(default_factory=list)
    packets: list[bytes] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    correlation_ids: list[bytes] = field(default_factory=list)  # empty if no message has one
    #: Makes the packets when the messages get their places: from the sequence id and the number of
    #: the first one.  None: `packets` has them.
    make: Callable[[int, int], list[bytes]] | None = None


class PublicationWriter:
    """The part that adds the messages of publications to the open batch."""

    def __init__(
        self,
        services: Services,
        outgoing: OutgoingQueues,
        outgoing_release: OutgoingRelease,
        recorder: Recorder,
    ) -> None:
        self._services = services
        self._outgoing = outgoing
        self._outgoing_release = outgoing_release
        self._recorder = recorder

    def write(
        self,
        groups: Sequence[PacketGroup],
        messages: int,
        transaction: str = "",
        answer: Callable[[], None] | None = None,
    ) -> None:
        """Add all `messages` messages of `groups`; they are ready when the batch is durable.

        `transaction` is the id, as text, of the one that sends them, or "".  `answer` is called
        then, before others get the messages.  If this raises, it is never called.
        """
        # If all messages of an outgoing sequence are acknowledged, a new sequence begins.
        self._outgoing_release.release()
        batch = self._services.storage.batch
        local = _LocalDelivery(self._services, messages)
        remote = _OutgoingDelivery(self._services, self._outgoing, messages)
        for group in groups:
            if isinstance(group.shape.queue, LocalQueue):
                lookup_ids = local.put(group, group.shape.queue, batch)
                self._record(group, lookup_ids, transaction=transaction)
            else:
                keys, positions = remote.put(group, group.shape.queue, batch)
                self._record(group, keys, positions, transaction=transaction)
        remote.save(batch)

        def durable() -> None:
            if answer is not None:
                answer()
            local.durable()
            remote.durable()

        batch.when_durable(durable)

    def _record(
        self,
        group: PacketGroup,
        places: list[int],
        positions: Sequence[int] = (),
        *,
        transaction: str,
    ) -> None:
        """Record that the messages of a group were sent."""
        if not self._recorder.enabled:
            return
        shape = group.shape
        event = sent_to(self._recorder, self._services.id, shape.queue, shape.delivery, transaction)
        if not group.correlation_ids:
            event.numbers += group.numbers
        else:
            for number, correlation_id in zip(group.numbers, group.correlation_ids, strict=True):
                event.numbers.append(number)
                if correlation_id:
                    add_correlation(event, correlation_id)
        event.sizes += group.sizes
        event.places += places
        event.positions += positions


class _LocalDelivery:
    """The messages of a publication for local queues."""

    def __init__(self, services: Services, messages: int) -> None:
        self._services = services
        self._in_memory = messages <= IN_MEMORY_MAX
        self._wall_ms = int(services.environment.time() * 1000)
        self._arrived: dict[LocalQueue, list[StoredMessage]] = {}
        self._on_disk: dict[LocalQueue, list[int]] = {}

    def put(self, group: PacketGroup, queue: LocalQueue, batch: Batch) -> list[int]:
        """Add the messages to the open batch; return their lookup ids."""
        wall_ms = self._wall_ms
        lookup_ids = self._services.ids.next_lookup_ids(group.shape.level, len(group.packets))
        expires_at_s = self._services.clock.deadline_s(group.shape.live_s)
        base = queue.id << LOOKUP_BITS
        size = sum(group.sizes)
        batch.insert_messages(
            [
                (base | lookup_id, wall_ms, expires_at_s, None, packet)
                for lookup_id, packet in zip(lookup_ids, group.packets, strict=True)
            ],
            size,
        )
        queue.count_in(len(lookup_ids), size)
        if self._in_memory:
            self._arrived.setdefault(queue, []).extend(
                [
                    StoredMessage(lookup_id, wall_ms, packet, expires_at_s=expires_at_s)
                    for lookup_id, packet in zip(lookup_ids, group.packets, strict=True)
                ]
            )
        else:
            self._on_disk.setdefault(queue, []).extend(lookup_ids)
        return lookup_ids

    def durable(self) -> None:
        """Make the messages ready in their queues."""
        for queue, messages in self._arrived.items():
            queue.deliver(messages)
        for queue, lookup_ids in self._on_disk.items():
            queue.deliver_from_disk(lookup_ids)


class _OutgoingDelivery:
    """The messages of a publication for queues of other queue managers."""

    def __init__(
        self,
        services: Services,
        outgoing: OutgoingQueues,
        messages: int,
    ) -> None:
        self._services = services
        self._outgoing = outgoing
        self._in_memory = messages <= IN_MEMORY_MAX
        self._in_sequences: dict[OutgoingQueue, None] = {}
        self._appended: dict[OutgoingQueue, list[Appended]] = {}
        self._on_disk: dict[OutgoingQueue, int] = {}  # the first key of each queue

    def put(
        self, group: PacketGroup, queue: OutgoingQueue, batch: Batch
    ) -> tuple[list[int], Sequence[int]]:
        """Add the messages to the open batch; return their keys and their sequence numbers."""
        shape, count = group.shape, len(group.numbers)
        positions: Sequence[int] = ()
        rows: RowsOfCopies
        base = queue.id << LOOKUP_BITS
        confirm_by_s, discard = None, False
        if shape.in_sequence:
            first, first_key = queue.next_key(count)
            positions = range(first, first + count)
            keys = list(range(first_key, first_key + count))
            self._in_sequences[queue] = None
            sequence_id = queue.sequence.sequence_id
            if group.make is not None:
                packets = group.make(sequence_id, first)
                rows = [(base | key, packet) for key, packet in zip(keys, packets, strict=True)]
            else:
                rows = _SequencedRows(
                    base | first_key, group.packets, shape.transaction_at, sequence_id, first
                )
            confirm_by_s = confirmation_requests.confirm_by_s(self._services, shape.example)
            discard = confirmation_requests.discards(self._services, shape.example)
        else:
            keys = self._services.ids.next_lookup_ids(shape.level, count)
            rows = [(base | key, packet) for key, packet in zip(keys, group.packets, strict=True)]
            queue.others += count
        size = sum(group.sizes)
        queue.grow(size)
        reach_by_s = self._services.clock.deadline_s(shape.reach_s)
        if self._in_memory:
            whole = list(rows)
            self._appended.setdefault(queue, []).extend(
                (key, packet, reach_by_s) for key, (_, packet) in zip(keys, whole, strict=True)
            )
            batch.outgoing.insert_many(
                [(key, reach_by_s, packet, confirm_by_s, discard) for key, packet in whole], size
            )
        else:
            self._on_disk[queue] = min(self._on_disk.get(queue, keys[0]), keys[0])
            batch.outgoing.insert_copies(
                rows, reach_by_s, confirm_by_s, discard=discard, part=None, size=size
            )
        return keys, positions

    def save(self, batch: Batch) -> None:
        """Save the state of the sequences in the same batch."""
        self._outgoing.save(self._in_sequences, batch)

    def durable(self) -> None:
        """Give the messages to the links of their queues."""
        self._outgoing.all_appended(self._appended)
        self._outgoing.all_appended_on_disk(self._on_disk)


class _SequencedRows:
    """Rows of an outgoing sequence, as the disk has them.

    The packets were made without sequence numbers.  The writer's thread iterates over the rows and
    puts the numbers into the packets, one at a time.
    """

    def __init__(
        self, first_key: int, packets: Sequence[bytes], at: int, sequence_id: int, first: int
    ) -> None:
        self._first_key, self._packets = first_key, packets
        self._at, self._sequence_id, self._first = at, sequence_id, first

    def __len__(self) -> int:
        return len(self._packets)

    def __iter__(self) -> Iterator[tuple[int, bytes]]:
        for index, packet in enumerate(self._packets):
            number = self._first + index
            placed = with_sequence(packet, self._at, self._sequence_id, number, number - 1)
            yield self._first_key + index, placed
