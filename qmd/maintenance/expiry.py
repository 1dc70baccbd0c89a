"""Ends messages whose time is over, wherever they wait.

The disk keeps an index of the times; the reaper looks at its first entry when a
second of the queue manager's clock begins, and so ends a message within the
second in which its time is over.  Of a hundred thousand that end together it
takes a piece, waits until that is on the disk, and takes the next one: others
have their turn in between, and memory holds one piece.
"""

from __future__ import annotations

import asyncio
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
    from qmd.events.recorder import Recorder
    from qmd.maintenance.housekeeping import Housekeeping
    from qmd.maintenance.retention import Retention
    from qmd.outcomes.dead_letter import DeadLetters
    from qmd.outcomes.undeliverable import Undeliverable
    from qmd.queues.outgoing_queues import OutgoingQueues
    from qmd.queues.registry import LocalQueues
    from qmd.runtime.services import Services
    from qmd.transfer.confirmation import Confirmations

Queue = TypeVar("Queue", LocalQueue, OutgoingQueue)

INTERVAL_S = 1.0  # time-outs are in whole seconds
# Ended in one go, in some 5 ms of the event loop; with 500 others wait four times as long, and
# all of it is over hardly sooner.
EXPIRED_ROWS = 100
EXPIRED_BYTES = 4 * 1024 * 1024
RETENTION_INTERVAL_S = 60.0
VACUUM_STEPS_MAX = 64  # some 3 ms each
ROOM_COMMITS_MAX = 8  # in a row


class Expiry:
    """`run` until cancelled."""

    def __init__(
        self,
        services: Services,
        confirmations: Confirmations,
        dead_letters: DeadLetters,
        housekeeping: Housekeeping,
        outgoing: OutgoingQueues,
        queues: LocalQueues,
        recorder: Recorder,
        retention: Retention,
        undeliverable: Undeliverable,
    ) -> None:
        self._services = services
        self._confirmations = confirmations
        self._dead_letters = dead_letters
        self._housekeeping = housekeeping
        self._outgoing = outgoing
        self._queues = queues
        self._recorder = recorder
        self._retention = retention
        self._undeliverable = undeliverable
        self._retention_due = 0.0

    async def run(self) -> None:
        """What fails is tried again: only a storage that is over stops the daemon."""
        attempt = self._housekeeping.attempt
        while True:
            may_be_more = await attempt(
                "end expired messages", self.reap, otherwise=False, is_strict=True
            )
            now = self._services.loop.time()
            await attempt("make room", partial(self._make_room, now), otherwise=None)
            if now >= self._retention_due:
                self._retention_due = now + RETENTION_INTERVAL_S
                for name, act in self._retention.acts.items():
                    await attempt(name, act, otherwise=None)
                await attempt("give pages back", self._give_back, otherwise=None)
            interval_s = min(INTERVAL_S, self._services.clock.next_second_in_s)
            await asyncio.sleep(0 if may_be_more else interval_s)

    async def _make_room(self, now: float) -> None:
        """What was deleted is room only when the database has given it back; each commit on a
        short disk does a piece of that, and nobody else may have one to make."""
        for _ in range(ROOM_COMMITS_MAX):
            if self._services.storage.room(now):
                break
            await self._recorder.make_room()

    async def _give_back(self) -> None:
        """In a quiet moment, give the disk back what a flood has left empty."""
        storage = self._services.storage
        for _ in range(VACUUM_STEPS_MAX):
            if storage.pressure or not storage.room(self._services.loop.time()):
                return
            if await storage.vacuum() == 0:
                return

    async def reap(self) -> bool:
        """End what is over now; True when there may be more."""
        now_s = self._services.clock.now_s
        ended = self._reap_express(now_s)
        may_be_more = ended >= EXPIRED_ROWS
        may_be_more |= await self._confirmations.expire(EXPIRED_ROWS)
        earliest = await self._services.storage.read(expiry.next_expiry)
        self._services.clock.look(is_needed=earliest is not None or self._confirmations.any)
        if earliest is not None and earliest < now_s:
            ended_stored, is_part = await self._reap_stored(now_s)
            ended += ended_stored
            may_be_more |= is_part
        if ended:
            # One piece at a time: a look at it, then its end.
            await self._services.storage.batch.barrier()
            await self._services.storage.batch.barrier()
        return may_be_more

    async def _reap_stored(self, now_s: int) -> tuple[int, bool]:
        """How many were ended; whether there may be more."""
        senders = {sender.id: sender for sender in self._outgoing.queues}
        busy = sum(len(sender.removing) for sender in senders.values())
        found = await self._services.storage.read(
            partial(expiry.expired_outgoing, now_s=now_s, rows_max=EXPIRED_ROWS + busy)
        )
        to_expire, may_be_more = _shared_out(found, senders)
        for sender, keys in to_expire.items():
            self._undeliverable.expire(sender, keys)
        # What somebody has taken is not ended before it comes back, and must not stand in the way.
        busy = sum(len(queue.taken) for queue in self._queues.by_key.values())
        found = await self._services.storage.read(
            partial(expiry.expired_messages, now_s=now_s, rows_max=EXPIRED_ROWS + busy)
        )
        to_end, is_part = _shared_out(found, self._queues.by_id)
        may_be_more |= is_part
        for queue, lookup_ids in to_end.items():
            self._dead_letters.end_unreceived(queue, lookup_ids, MessageClass.NACK_RECEIVE_TIMEOUT)
        ended = sum(map(len, [*to_expire.values(), *to_end.values()]))
        return ended, may_be_more

    def _reap_express(self, now_s: int) -> int:
        """The same for express messages: the disk knows nothing of them.  How many were ended."""
        ended = self._undeliverable.expire_express(now_s, EXPIRED_ROWS)
        for queue in list(self._queues.by_key.values()):
            ended += queue.expire_express(now_s, EXPIRED_ROWS - ended)
            if queue.expired:
                self._dead_letters.expire_received(queue)
        return ended


def _shared_out(
    found: list[Expired], queues: Mapping[int, Queue]
) -> tuple[dict[Queue, list[int]], bool]:
    """The keys by their queue, of those that can be ended now; whether that is only a part."""
    chosen: dict[Queue, list[int]] = {}
    count = size = 0
    for row in found:
        queue, key = queues.get(queue_id_of(row.key)), row.key & LOOKUP_MASK
        if queue is None or queue.is_busy_with(key):
            continue
        if count == EXPIRED_ROWS or size >= EXPIRED_BYTES:
            return chosen, True
        chosen.setdefault(queue, []).append(key)
        count += 1
        size += row.size
    return chosen, count == EXPIRED_ROWS
