"""What is published to queues of ours, made ready while others are served.

    prepare ──(some rows in each turn of the loop)──► packets ──► commit: all in one turn, one batch

A publication may have a hundred thousand rows.  Taking them over like those of an application would
keep everybody waiting for seconds, so their packets are made before, and what is left for the turn
in which it happens is to give them their places.  Arrival numbers are given in that turn, never
before: whoever reads a range by arrival relies on nothing coming in below it later.

What is not as usual (a queue elsewhere, several queues, acknowledgments of arrival, a report queue
...) is left to `Sending`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import TYPE_CHECKING

from protocol.headers import PACKET_BYTES_MAX
from qmd.compose import NO_ADDRESS, PRIORITY_MAX, compose
from qmd.core.acknowledgment import POSITIVE_ARRIVAL
from qmd.core.stored_packet import receive_time_s
from qmd.forms import Form, Row, shape
from qmd.frames import EXPRESS, TRANSACTIONAL, NewMessage, StoredMessage
from qmd.handover import sent_to
from qmd.local_queue import LocalQueue
from qmd.quotas import queue_refusal
from qmd.recorder import bear_correlation
from qmd.refusal import Refusal
from storage.keys import LOOKUP_BITS

if TYPE_CHECKING:
    from qmd.manager import QueueManager

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
    queue: LocalQueue
    delivery: int
    form: Form
    live_s: int | None  # until they are received

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


class Prepared:
    """A publication on its way."""

    def __init__(self, manager: QueueManager) -> None:
        self._manager = manager
        self._sent_s = int(manager.environment.time())
        self._kinds: dict[Row, _Kind] = {}
        self._runs: list[_Run] = []
        self.messages = 0

    async def prepare(self, rows: Sequence[Row]) -> None:
        """The next rows.  Raises NotAlike, and StorageError."""
        manager = self._manager
        for first in range(0, len(rows), ROWS_A_TURN):
            some = rows[first : first + ROWS_A_TURN]
            await manager.numbers_for(len(some))
            self._add(some)
            await asyncio.sleep(0)

    def _add(self, rows: Sequence[Row]) -> None:
        numbers = self._manager.next_message_numbers(len(rows))
        at = 0
        for key, alike in groupby(rows, shape):
            kind = self._kinds.get(key)
            some = list(alike)
            if kind is None:
                kind = self._kinds[key] = self._kind_of(some[0])
            run = self._runs[-1] if self._runs and self._runs[-1].kind is kind else None
            if run is None:
                run = _Run(kind)
                self._runs.append(run)
            mine = numbers[at : at + len(some)]
            index = self._manager.sending.next_indexes(len(some))
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
        self.messages += len(rows)

    def _kind_of(self, row: Row) -> _Kind:
        if len(self._kinds) >= SHAPES_MAX:
            raise NotAlike
        manager = self._manager
        new = NewMessage(*row)
        queue, delivery = self._way(new)
        confirmations, names = manager.confirmations, manager.routes
        is_transactional = delivery == TRANSACTIONAL
        model = compose(
            new,
            source=manager.id,
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
            time_to_reach_queue_s=int(manager.settings.delivery.time_to_reach_queue_s),
        )
        form = Form(model)
        if not form.fits:
            raise NotAlike
        return _Kind(new, queue, delivery, form, receive_time_s(model))

    def _way(self, new: NewMessage) -> tuple[LocalQueue, int]:
        """Its queue, and how it goes there.  Raises NotAlike, also where it may not go."""
        if new.report_queue or new.dead_letter_queue or self._manager.stopping:
            raise NotAlike
        if new.acknowledge & POSITIVE_ARRIVAL:  # each is answered
            raise NotAlike
        try:
            way = self._manager.sending.way_of(new)
        except Refusal as refusal:
            raise NotAlike from refusal
        if way is None or not isinstance(way[0], LocalQueue) or way[1] == EXPRESS:
            raise NotAlike
        return way[0], way[1]

    def take_over(self) -> None:
        """All of them in the batch that is open; they are ready when it is durable.

        Raises Refusal where there is no room for them, and NotAlike where they have to go another
        way since they were prepared: nothing was taken over then.
        """
        manager = self._manager
        by_queue = self._check()
        full = manager.is_full(sum(by_queue.values()), messages=self.messages)
        if full is not None:
            raise full
        manager.releasing.release()
        batch = manager.storage.batch
        wall_ms = int(manager.environment.time() * 1000)
        arrived: dict[LocalQueue, list[StoredMessage]] = {}
        on_disk: dict[LocalQueue, list[int]] = {}
        for run in self._runs:
            kind, queue = run.kind, run.kind.queue
            lookup_ids = manager.next_lookup_ids(kind.level, len(run.packets))
            expires_at_s = manager.clock.deadline_s(kind.live_s)
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
            self._tell(run, lookup_ids)
            if self.messages > IN_MEMORY_MAX:
                on_disk.setdefault(queue, []).append(min(lookup_ids))
            else:
                arrived.setdefault(queue, []).extend(
                    StoredMessage(lookup_id, wall_ms, packet, expires_at_s=expires_at_s)
                    for lookup_id, packet in zip(lookup_ids, run.packets, strict=True)
                )
        manager.sent_count += self.messages

        def durable() -> None:
            for queue, messages in arrived.items():
                queue.arrived(messages)
                manager.reading.serve(queue)
            for queue, firsts in on_disk.items():
                queue.arrived_on_disk(firsts)
                manager.reading.serve(queue)

        batch.when_durable(durable)

    def _check(self) -> dict[LocalQueue, int]:
        """How many bytes come to each queue.  Raises Refusal and NotAlike, as `take_over`."""
        limit = self._manager.settings.quotas.message_bytes_max
        for kind in self._kinds.values():
            if self._way(kind.example) != (kind.queue, kind.delivery):
                raise NotAlike
        by_queue: dict[LocalQueue, int] = {}
        for run in self._runs:
            # Also a body that is allowed by itself is looked at where its packet is not small.
            if max(run.sizes) > min(PACKET_BYTES_MAX, limit):
                raise NotAlike
            queue = run.kind.queue
            by_queue[queue] = by_queue.get(queue, 0) + sum(run.sizes)
        for queue, size in by_queue.items():
            if not queue.has_room(size):
                raise queue_refusal(queue, size)
        return by_queue

    def _tell(self, run: _Run, lookup_ids: list[int]) -> None:
        manager = self._manager
        if not manager.recorder.enabled:
            return
        told = sent_to(manager, run.kind.queue, run.kind.delivery)
        if not run.correlation_ids:
            told.numbers += run.numbers
        else:
            for number, correlation_id in zip(run.numbers, run.correlation_ids, strict=True):
                told.numbers.append(number)
                if correlation_id:
                    bear_correlation(told, correlation_id)
        told.sizes += run.sizes
        told.places += lookup_ids
