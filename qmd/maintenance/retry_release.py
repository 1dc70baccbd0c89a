"""Release of retries: at its time, a message moves from `;retry` back to its place in its queue."""

from __future__ import annotations

import asyncio
import contextlib
from functools import partial
from typing import TYPE_CHECKING

import structlog

from qmd.control_protocol.messages import Choice, Piece
from qmd.errors import Refusal
from storage.tables import retries as rows
from storage.tables.keys import LOOKUP_MASK, queue_id_of
from storage.tables.retries import RetryRow

if TYPE_CHECKING:
    from qmd.maintenance.housekeeping import Housekeeping
    from qmd.operations.move import Mover
    from qmd.operations.redelivery import Redelivery
    from qmd.queues.local_queue import LocalQueue
    from qmd.queues.registry import LocalQueues
    from qmd.runtime.services import Services

log = structlog.get_logger()

PIECE_MESSAGES = 256
LOOK_S = 1.0  # the longest sleep while a message waits
AGAIN_S = 5.0  # until a message that a reader of `;retry` has taken is tried again


class RetryRelease:
    """The release of messages that wait for another attempt; one task runs it."""

    def __init__(
        self,
        services: Services,
        housekeeping: Housekeeping,
        mover: Mover,
        queues: LocalQueues,
        redelivery: Redelivery,
    ) -> None:
        self._services = services
        self._housekeeping = housekeeping
        self._mover = mover
        self._queues = queues
        self._next_ms: int | None = None
        self._wake = asyncio.Event()
        self.returned_count = 0
        redelivery.on_waiting = self._waits

    def restore(self, next_ms: int | None) -> None:
        """Take the time of the first message that waits."""
        self._next_ms = next_ms

    def _waits(self, due_ms: int) -> None:
        if self._next_ms is None or due_ms < self._next_ms:
            self._next_ms = due_ms
            self._wake.set()

    async def run(self) -> None:
        """Release messages until cancelled.  Raises StorageError when the storage has failed."""
        while True:
            self._wake.clear()
            if self._next_ms is None:
                await self._wake.wait()
                continue
            self._services.clock.look(is_needed=True)
            left_s = self._next_ms / 1000 - self._services.clock.now
            if left_s > 0:
                with contextlib.suppress(TimeoutError):
                    # A timer may fire a little early, and the message is not due then.
                    await asyncio.wait_for(self._wake.wait(), min(left_s + 0.001, LOOK_S))
                continue
            await self._housekeeping.attempt(
                "release retries", self.release, otherwise=None, is_strict=True
            )

    async def release(self) -> None:
        """Move all messages back that are due."""
        while True:
            now_ms = int(self._services.clock.now * 1000)
            found = await self._services.storage.read(
                partial(rows.due, now_ms=now_ms, rows_max=PIECE_MESSAGES)
            )
            if not found:
                break
            by_queue: dict[LocalQueue | None, list[RetryRow]] = {}
            for row in found:
                by_queue.setdefault(self._queues.by_id.get(queue_id_of(row.key)), []).append(row)
            for queue, waiting in by_queue.items():
                await self._release(queue, waiting)
        self._next_ms = None
        next_ms = await self._services.storage.read(rows.next_due_ms)
        if next_ms is not None:
            self._waits(next_ms)

    async def _release(self, queue: LocalQueue | None, waiting: list[RetryRow]) -> None:
        """Move messages back, together or, if some of them cannot be moved, one by one."""
        later: list[RetryRow] = []
        if queue is not None and queue.parent is not None and not queue.deleted:
            refusal = await self._move_back(queue, waiting)
            if refusal is not None and len(waiting) > 1:
                for row in waiting:
                    await self._release(queue, [row])
                return
            if refusal is not None and refusal.code != "no_such_message":
                # A reader of the subqueue has taken it, or the queue manager stops.
                due_ms = int((self._services.clock.now + AGAIN_S) * 1000)
                later = [RetryRow(row.key, due_ms) for row in waiting]
        batch = self._services.storage.batch
        batch.run(partial(rows.remove, rows=waiting))
        await batch.run(partial(rows.add, rows=later))

    async def _move_back(self, queue: LocalQueue, waiting: list[RetryRow]) -> Refusal | None:
        assert queue.parent is not None
        choice = Choice(lookup_ids=[row.key & LOOKUP_MASK for row in waiting])
        start = 0
        try:
            while True:
                piece = Piece(start=start, limit=len(waiting))
                moved = await self._mover.move(queue, queue.parent.name, choice, piece)
                self.returned_count += moved["messages"]
                if moved["next"] is None:
                    return None
                start = moved["next"]
        except Refusal as refusal:
            return refusal
