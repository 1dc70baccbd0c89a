"""What is published, made ready while others are served.

    prepare ──(some rows in each turn of the loop)──► packets ──► commit: all in one turn, one batch

A publication may have a hundred thousand rows.  Taking them over like those of an application would
keep everybody waiting for seconds, so their packets are made before, and what is left for the turn
in which it happens is to give them their places.  Arrival numbers are given in that turn, never
before: whoever reads a range by arrival relies on nothing coming in below it later.  So are the
numbers of a sequence to a queue elsewhere; those are written into the packets on the way to the
disk, by the thread that writes.

What is not as usual (several queues, acknowledgments of arrival here, a report queue ...) is left
to `MessageSender`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import TYPE_CHECKING

from protocol import patch_sequence, transaction_offset
from protocol.headers import PACKET_BYTES_MAX
from qmd.control_protocol.messages import EXPRESS, TRANSACTIONAL, NewMessage, StoredMessage
from qmd.core.acknowledgment import POSITIVE_ARRIVAL
from qmd.core.packet_fields import reach_time_s, receive_time_s
from qmd.core.sequence import NUMBER_MAX
from qmd.directory.resolver import MustAsk, Resolution
from qmd.errors import Refusal
from qmd.events.recorder import bear_correlation
from qmd.message.build import NO_ADDRESS, PRIORITY_MAX, compose
from qmd.message.template import Row, Template, shape
from qmd.operations.send_batch import sent_to
from qmd.queues.local_queue import LocalQueue
from qmd.queues.outgoing_queue import OutgoingQueue
from qmd.queues.quotas import queue_refusal
from storage.tables.keys import LOOKUP_BITS

if TYPE_CHECKING:
    from qmd.directory.resolver import Resolver
    from qmd.events.recorder import Recorder
    from qmd.naming.destinations import Destinations
    from qmd.operations.send import MessageSender
    from qmd.operations.send_batch import Route
    from qmd.queues.outgoing_queues import Appended, OutgoingQueues
    from qmd.queues.quotas import Admission
    from qmd.runtime.services import Services
    from qmd.transfer.confirmation import Confirmations
    from qmd.transfer.release import OutgoingRelease
    from storage.engine.batch import Batch
    from storage.tables.outgoing import RowsOfCopies

ROWS_A_TURN = 1_000  # some 5 ms
SHAPES_MAX = 256  # more: the messages are not alike
#: As many as a queue reads from the disk at once: fewer are handed to it as they are.
IN_MEMORY_MAX = 512
_CORRELATION_ID = 10  # of a row


class NotAlike(Exception):
    """These rows have to be sent one by one."""


@dataclass(slots=True)
class _Kind:
    """Messages of one shape."""

    example: NewMessage  # the first of them
    queue: Route
    delivery: int
    form: Template
    reach_s: int | None  # they may take so long to reach their queue
    live_s: int | None  # until they are received
    transaction_at: int  # where their place in a sequence stands, if they have one

    @property
    def in_sequence(self) -> bool:
        return self.delivery == TRANSACTIONAL and isinstance(self.queue, OutgoingQueue)

    @property
    def level(self) -> int:
        if self.delivery == TRANSACTIONAL:
            return PRIORITY_MAX
        return PRIORITY_MAX - self.example.priority


@dataclass(slots=True)
class _Run:
    """Rows of one kind that follow each other."""

    kind: _Kind
    numbers: list[int] = field(default_factory=list)
    packets: list[bytes] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    correlation_ids: list[bytes] = field(default_factory=list)  # empty: none has one


class _InSequence:
    """Rows of a queue elsewhere, as the disk has them: each packet with its number, which it did
    not have when it was made.  The thread that writes makes them, one at a time."""

    def __init__(
        self, first_key: int, packets: Sequence[bytes], at: int, sequence_id: int, first: int
    ) -> None:
        self._first_key, self._packets = first_key, packets
        self._at, self._sequence_id, self._first = at, sequence_id, first

    def __len__(self) -> int:
        return len(self._packets)

    def __iter__(self) -> Iterator[tuple[int, bytes]]:
        for index, packet in enumerate(self._packets):
            placed, number = bytearray(packet), self._first + index
            patch_sequence(placed, self._at, self._sequence_id, number, number - 1)
            yield self._first_key + index, bytes(placed)


class Prepared:
    """A publication on its way."""

    def __init__(
        self,
        services: Services,
        admission: Admission,
        confirmations: Confirmations,
        outgoing: OutgoingQueues,
        recorder: Recorder,
        outgoing_release: OutgoingRelease,
        resolver: Resolver,
        destinations: Destinations,
        message_sender: MessageSender,
    ) -> None:
        self._services = services
        self._admission = admission
        self._confirmations = confirmations
        self._outgoing = outgoing
        self._recorder = recorder
        self._outgoing_release = outgoing_release
        self._resolver = resolver
        self._destinations = destinations
        self._message_sender = message_sender
        self._sent_s = int(services.environment.time())
        self._kinds: dict[Row, _Kind] = {}
        self._runs: list[_Run] = []
        self._answers: dict[str, Resolution | Refusal] = {}  # of the directory
        self.messages = 0

    async def prepare(self, rows: Sequence[Row]) -> None:
        """The next rows.  Raises NotAlike, and StorageError."""
        for first in range(0, len(rows), ROWS_A_TURN):
            some = rows[first : first + ROWS_A_TURN]
            groups = [(key, list(alike)) for key, alike in groupby(some, shape)]
            for key, alike in groups:
                if key not in self._kinds:
                    self._kinds[key] = await self._meet(NewMessage(*alike[0]))
            await self._services.ids.ensure(len(some))
            self._add(groups, len(some))
            await asyncio.sleep(0)

    def _add(self, groups: Sequence[tuple[Row, list[Row]]], count: int) -> None:
        numbers = self._services.ids.next_message_numbers(count)
        at = 0
        for key, some in groups:
            kind = self._kinds[key]
            run = self._runs[-1] if self._runs and self._runs[-1].kind is kind else None
            if run is None:
                run = _Run(kind)
                self._runs.append(run)
            mine = numbers[at : at + len(some)]
            index = self._message_sender.next_indexes(len(some))
            packets = kind.form.packets(some, mine, index)
            if packets is None:
                raise NotAlike
            if any(row[_CORRELATION_ID] for row in some) or run.correlation_ids:
                run.correlation_ids += [b""] * (len(run.numbers) - len(run.correlation_ids))
                run.correlation_ids += [row[_CORRELATION_ID] for row in some]
            run.numbers += mine
            run.packets += packets
            run.sizes += map(len, packets)
            at += len(some)
        self.messages += count

    async def _meet(self, new: NewMessage) -> _Kind:
        """The first of a kind; the directory is asked as often as it takes."""
        while True:
            self._destinations.answers = self._answers
            try:
                return self._kind_of(new)
            except MustAsk as ask:
                name = ask.name
            finally:
                self._destinations.answers = {}
            try:
                self._answers[name] = await self._resolver.resolve_text(name)
            except Refusal as refusal:
                self._answers[name] = refusal

    def _kind_of(self, new: NewMessage) -> _Kind:
        if len(self._kinds) >= SHAPES_MAX:
            raise NotAlike
        queue, delivery = self._way(new)
        confirmations, names = self._confirmations, self._destinations
        is_transactional = delivery == TRANSACTIONAL
        model = compose(
            new,
            source=self._services.id,
            destination=queue.address,
            admin=names.reply_address(new.admin_queue) if new.admin_queue else NO_ADDRESS,
            response=names.reply_address(new.response_queue) if new.response_queue else NO_ADDRESS,
            message_number=0,
            sent_time_s=self._sent_s,
            delivery=delivery,
            position=(0, 0, 0) if is_transactional else None,
            dead_letter=confirmations.asks(new)
            if is_transactional
            else new.dead_letter is not False,
            time_to_reach_queue_s=int(self._services.settings.delivery.time_to_reach_queue_s),
        )
        form = Template(model)
        if not form.fits:
            raise NotAlike
        return _Kind(
            new,
            queue,
            delivery,
            form,
            reach_time_s(model),
            receive_time_s(model),
            transaction_offset(model) or 0,
        )

    def _way(self, new: NewMessage) -> tuple[Route, int]:
        """Its queue, and how it goes there.  Raises NotAlike, also where it may not go; MustAsk."""
        if new.report_queue or new.dead_letter_queue or self._services.lifecycle.stopping:
            raise NotAlike
        try:
            way = self._message_sender.way_of(new)
        except MustAsk:
            raise
        except Refusal as refusal:
            raise NotAlike from refusal
        if way is None or way[1] == EXPRESS:
            raise NotAlike
        if new.acknowledge & POSITIVE_ARRIVAL and isinstance(way[0], LocalQueue):
            raise NotAlike  # each is answered
        return way

    def take_over(self) -> None:
        """All of them in the batch that is open; they are ready when it is durable.

        Raises Refusal where there is no room for them, and NotAlike where they have to go another
        way since they were prepared: nothing was taken over then.
        """
        size = self._check()
        full = self._admission.is_full(size, messages=self.messages)
        if full is not None:
            raise full
        self._outgoing_release.release()  # where all is acknowledged, a new sequence begins
        batch = self._services.storage.batch
        here = _Here(self._services, self.messages)
        elsewhere = _Elsewhere(self._services, self._confirmations, self._outgoing, self.messages)
        for run in self._runs:
            if isinstance(run.kind.queue, LocalQueue):
                lookup_ids = here.put(run, run.kind.queue, batch)
                self._tell(run, lookup_ids)
            else:
                keys, positions = elsewhere.put(run, run.kind.queue, batch)
                self._tell(run, keys, positions)
        elsewhere.save(batch)
        self._message_sender.sent_count += self.messages

        def durable() -> None:
            here.durable()
            elsewhere.durable()

        batch.when_durable(durable)

    def _check(self) -> int:
        """How many bytes they have.  Raises Refusal and NotAlike, as `take_over`."""
        limit = self._services.settings.quotas.message_bytes_max
        self._destinations.answers = self._answers
        try:
            for kind in self._kinds.values():
                if self._way(kind.example) != (kind.queue, kind.delivery):
                    raise NotAlike
        except MustAsk as ask:
            raise NotAlike from ask
        finally:
            self._destinations.answers = {}
        by_queue: dict[Route, int] = {}
        in_sequence: dict[OutgoingQueue, int] = {}
        for run in self._runs:
            # Also a body that is allowed by itself is looked at where its packet is not small.
            if max(run.sizes) > min(PACKET_BYTES_MAX, limit):
                raise NotAlike
            queue = run.kind.queue
            by_queue[queue] = by_queue.get(queue, 0) + sum(run.sizes)
            if isinstance(queue, OutgoingQueue) and run.kind.in_sequence:
                in_sequence[queue] = in_sequence.get(queue, 0) + len(run.sizes)
        for queue, size in by_queue.items():
            if isinstance(queue, LocalQueue) and not queue.has_room(size):
                raise queue_refusal(queue, size)
        for queue, count in in_sequence.items():
            if queue.sequence.next_number + count > NUMBER_MAX:
                raise NotAlike  # it may be full, or begin a new one
        return sum(by_queue.values())

    def _tell(self, run: _Run, places: list[int], positions: Sequence[int] = ()) -> None:
        if not self._recorder.enabled:
            return
        told = sent_to(self._recorder, self._services.id, run.kind.queue, run.kind.delivery)
        if not run.correlation_ids:
            told.numbers += run.numbers
        else:
            for number, correlation_id in zip(run.numbers, run.correlation_ids, strict=True):
                told.numbers.append(number)
                if correlation_id:
                    bear_correlation(told, correlation_id)
        told.sizes += run.sizes
        told.places += places
        told.positions += positions


class _Here:
    """What comes into queues of ours."""

    def __init__(self, services: Services, messages: int) -> None:
        self._services = services
        self._in_memory = messages <= IN_MEMORY_MAX
        self._wall_ms = int(services.environment.time() * 1000)
        self._arrived: dict[LocalQueue, list[StoredMessage]] = {}
        self._on_disk: dict[LocalQueue, list[int]] = {}

    def put(self, run: _Run, queue: LocalQueue, batch: Batch) -> list[int]:
        """Into the open batch; their lookup ids."""
        wall_ms = self._wall_ms
        lookup_ids = self._services.ids.next_lookup_ids(run.kind.level, len(run.packets))
        expires_at_s = self._services.clock.deadline_s(run.kind.live_s)
        base = queue.id << LOOKUP_BITS
        size = sum(run.sizes)
        batch.insert_messages(
            [
                (base | lookup_id, wall_ms, expires_at_s, None, packet)
                for lookup_id, packet in zip(lookup_ids, run.packets, strict=True)
            ],
            size,
        )
        queue.count_in(len(lookup_ids), size)
        if self._in_memory:
            self._arrived.setdefault(queue, []).extend(
                StoredMessage(lookup_id, wall_ms, packet, expires_at_s=expires_at_s)
                for lookup_id, packet in zip(lookup_ids, run.packets, strict=True)
            )
        else:
            self._on_disk.setdefault(queue, []).append(min(lookup_ids))
        return lookup_ids

    def durable(self) -> None:
        for queue, messages in self._arrived.items():
            queue.deliver(messages)
        for queue, firsts in self._on_disk.items():
            queue.deliver_from_disk(firsts)


class _Elsewhere:
    """What is to be sent to queues of other queue managers."""

    def __init__(
        self,
        services: Services,
        confirmations: Confirmations,
        outgoing: OutgoingQueues,
        messages: int,
    ) -> None:
        self._services = services
        self._confirmations = confirmations
        self._outgoing = outgoing
        self._in_memory = messages <= IN_MEMORY_MAX
        self._in_sequences: dict[OutgoingQueue, None] = {}
        self._appended: dict[OutgoingQueue, list[Appended]] = {}
        self._on_disk: dict[OutgoingQueue, int] = {}  # the first key of each

    def put(self, run: _Run, queue: OutgoingQueue, batch: Batch) -> tuple[list[int], Sequence[int]]:
        """Into the open batch; their keys, and their numbers in the sequence."""
        kind, count = run.kind, len(run.packets)
        positions: Sequence[int] = ()
        rows: RowsOfCopies
        base = queue.id << LOOKUP_BITS
        confirm_by_s, discard = None, False
        if kind.in_sequence:
            first, first_key = queue.next_keys(count)
            positions = range(first, first + count)
            keys = list(range(first_key, first_key + count))
            self._in_sequences[queue] = None
            rows = _InSequence(
                base | first_key,
                run.packets,
                kind.transaction_at,
                queue.sequence.sequence_id,
                first,
            )
            confirm_by_s = self._confirmations.confirm_by_s(kind.example)
            discard = self._confirmations.discards(kind.example)
        else:
            keys = self._services.ids.next_lookup_ids(kind.level, count)
            rows = [(base | key, packet) for key, packet in zip(keys, run.packets, strict=True)]
            queue.others += count
        size = sum(run.sizes)
        queue.grow(size)
        reach_by_s = self._services.clock.deadline_s(kind.reach_s)
        if self._in_memory:
            rows = list(rows)
            self._appended.setdefault(queue, []).extend(
                (key, packet, reach_by_s) for key, (_, packet) in zip(keys, rows, strict=True)
            )
        else:
            self._on_disk[queue] = min(self._on_disk.get(queue, keys[0]), keys[0])
        batch.outgoing.insert_copies(
            rows, reach_by_s, confirm_by_s, discard=discard, part=None, size=size
        )
        return keys, positions

    def save(self, batch: Batch) -> None:
        """Where the sequences stand, in the same batch."""
        self._outgoing.save(self._in_sequences, batch)

    def durable(self) -> None:
        self._outgoing.all_appended(self._appended)
        self._outgoing.all_appended_on_disk(self._on_disk)
