"""Ends messages whose time is over, wherever they wait.

The disk keeps an index of the times; the reaper looks at its first entry, and
sleeps until then, or a little, because messages come that are over sooner.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING

from protocol.message_class import MessageClass
from storage import expiry
from storage.keys import LOOKUP_MASK, queue_id_of

if TYPE_CHECKING:
    from qmd.manager import QueueManager

INTERVAL_S = 1.0  # time-outs are in whole seconds
EXPIRED_ROWS = 500  # ended in one go
HISTORY_INTERVAL_S = 60.0
VACUUM_STEPS_MAX = 64  # some 3 ms each
ROOM_COMMITS_MAX = 8  # in a row


class Reaper:
    """`run` until cancelled."""

    def __init__(self, manager: QueueManager) -> None:
        self._manager = manager
        self._history_due = 0.0

    async def run(self) -> None:
        manager = self._manager
        while True:
            may_be_more = await self.reap()
            now = manager.loop.time()
            # What was deleted is room only when the database has given it back; each commit on a
            # short disk does a piece of that, and nobody else may have one to make.
            for _ in range(ROOM_COMMITS_MAX):
                if manager.storage.room(now):
                    break
                await manager.storage.batch.run(lambda db: None)
            if now >= self._history_due:
                self._history_due = now + HISTORY_INTERVAL_S
                manager.forget_old()
                await self._give_back()
            await asyncio.sleep(0 if may_be_more else INTERVAL_S)

    async def _give_back(self) -> None:
        """In a quiet moment, give the disk back what a flood has left empty."""
        storage = self._manager.storage
        for _ in range(VACUUM_STEPS_MAX):
            if storage.pressure or not storage.room(self._manager.loop.time()):
                return
            if await storage.vacuum() == 0:
                return

    async def reap(self) -> bool:
        """End what is over now; True when there may be more."""
        manager = self._manager
        wall_s = int(manager.environment.time())
        manager.undelivered.expire_express(wall_s)
        for queue in list(manager.queues.values()):
            queue.expire_express(wall_s)
            if queue.expired:
                manager.endings.expire_received(queue)
        earliest = await manager.storage.read(expiry.next_expiry)
        if earliest is None or earliest >= wall_s:
            return False
        outgoing = await manager.storage.read(
            partial(expiry.expired_outgoing, now_s=wall_s, rows_max=EXPIRED_ROWS)
        )
        by_outgoing: dict[int, list[int]] = {}
        for row in outgoing:
            by_outgoing.setdefault(queue_id_of(row.key), []).append(row.key & LOOKUP_MASK)
        for sender in manager.outgoing.queues:
            if keys := by_outgoing.get(sender.id):
                manager.undelivered.expire(sender, keys)
        messages = await manager.storage.read(
            partial(expiry.expired_messages, now_s=wall_s, rows_max=EXPIRED_ROWS)
        )
        ended = 0  # what somebody has taken is not ended before it comes back
        by_queue: dict[int, list[int]] = {}
        for message in messages:
            by_queue.setdefault(queue_id_of(message.key), []).append(message.key & LOOKUP_MASK)
        for queue_id, lookup_ids in by_queue.items():
            owner = manager.queues_by_id.get(queue_id)
            if owner is not None:
                ended += manager.endings.end_unreceived(
                    owner, lookup_ids, MessageClass.NACK_RECEIVE_TIMEOUT
                )
        # Until these are off the disk, the same rows would be found again.
        await manager.storage.batch.run(lambda db: None)
        return len(outgoing) == EXPIRED_ROWS or (len(messages) == EXPIRED_ROWS and ended > 0)
