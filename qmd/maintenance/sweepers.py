"""The sweepers of the expiry: one for outgoing queues, one for local queues."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from protocol.message_class import MessageClass
from qmd.queues.local_queue import LocalQueue
from qmd.queues.outgoing_queue import OutgoingQueue
from storage.tables import expiry
from storage.tables.expiry import Expired
from storage.tables.keys import LOOKUP_MASK, queue_id_of

if TYPE_CHECKING:
    from qmd.outcomes.dead_letter import DeadLetters
    from qmd.outcomes.undeliverable import Undeliverable
    from qmd.queues.outgoing_queues import OutgoingQueues
    from qmd.queues.registry import LocalQueues
    from qmd.runtime.services import Services

Queue = TypeVar("Queue", LocalQueue, OutgoingQueue)

EXPIRED_BYTES = 4 * 1024 * 1024  # of the messages of one piece


class OutgoingSweeper:
    """The sweeper of outgoing queues: ends messages that did not reach their queue in time."""

    def __init__(
        self, services: Services, outgoing: OutgoingQueues, undeliverable: Undeliverable
    ) -> None:
        self._services = services
        self._outgoing = outgoing
        self._undeliverable = undeliverable

    def sweep_express(self, now_s: int, rows_max: int) -> int:
        """End express messages; return their number."""
        return self._undeliverable.expire_express(now_s, rows_max)

    async def sweep_stored(self, now_s: int, rows_max: int) -> tuple[int, bool]:
        """End stored messages; return their number, and whether there may be more."""
        queues = {queue.id: queue for queue in self._outgoing.queues}
        busy = sum(len(queue.removing) for queue in queues.values())
        found = await self._services.storage.read(
            partial(expiry.expired_outgoing, now_s=now_s, rows_max=rows_max + busy)
        )
        to_end, may_be_more = _endable(found, queues, rows_max)
        for queue, keys in to_end.items():
            self._undeliverable.expire(queue, keys)
        return sum(map(len, to_end.values())), may_be_more


class LocalSweeper:
    """The sweeper of local queues: ends messages that were not received in time."""

    def __init__(self, services: Services, queues: LocalQueues, dead_letters: DeadLetters) -> None:
        self._services = services
        self._queues = queues
        self._dead_letters = dead_letters

    def sweep_express(self, now_s: int, rows_max: int) -> int:
        """End express messages; return their number."""
        ended = 0
        for queue in list(self._queues.by_key.values()):
            ended += queue.expire_express(now_s, rows_max - ended)
            if queue.expired:
                self._dead_letters.expire_received(queue)
        return ended

    async def sweep_stored(self, now_s: int, rows_max: int) -> tuple[int, bool]:
        """End stored messages; return their number, and whether there may be more."""
        # A taken message does not end before it is put back, and must not hide the others.
        busy = sum(queue.reserved.unready for queue in self._queues.by_key.values())
        found = await self._services.storage.read(
            partial(expiry.expired_messages, now_s=now_s, rows_max=rows_max + busy)
        )
        to_end, may_be_more = _endable(found, self._queues.by_id, rows_max)
        for queue, lookup_ids in to_end.items():
            self._dead_letters.end_unreceived(queue, lookup_ids, MessageClass.NACK_RECEIVE_TIMEOUT)
        return sum(map(len, to_end.values())), may_be_more


def _endable(
    found: list[Expired], queues: Mapping[int, Queue], rows_max: int
) -> tuple[dict[Queue, list[int]], bool]:
    """Return the keys, by queue, of the messages that can be ended now, and whether there may be
    more than these."""
    chosen: dict[Queue, list[int]] = {}
    count = size = 0
    for row in found:
        queue, key = queues.get(queue_id_of(row.key)), row.key & LOOKUP_MASK
        if queue is None or queue.is_busy_with(key):
            continue
        if count == rows_max or size >= EXPIRED_BYTES:
            return chosen, True
        chosen.setdefault(queue, []).append(key)
        count += 1
        size += row.size
    return chosen, count == rows_max
