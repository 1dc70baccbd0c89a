"""Looking at the messages of a queue, in order, without taking any."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING

from qmd.control_protocol import messages as frames
from qmd.message.shared_packet import whole_message
from qmd.operations.receive import REFILL_BYTES, Matches, stored_message
from qmd.queues.local_queue import TAKE_BYTES_MAX, LocalQueue
from storage.tables import messages as message_rows
from storage.tables.keys import LOOKUP_MASK
from storage.tables.messages import MessageRow

if TYPE_CHECKING:
    import sqlite3

    from qmd.control_protocol.messages import StoredMessage
    from qmd.queues.quarantine import Damage
    from qmd.runtime.services import Services

PEEK_ROWS_MAX = 1000
FILTERED_ROWS = 256  # read and compared at once


class MessageBrowser:
    """Service for clients that look at messages."""

    def __init__(self, services: Services, damage: Damage) -> None:
        self._services = services
        self._damage = damage

    async def peek(
        self,
        queue: LocalQueue,
        start: int,
        limit: int,
        wait_s: float,
        turn: Callable[[], AbstractAsyncContextManager[None]] = nullcontext,
        matches: Matches | None = None,
    ) -> list[StoredMessage]:
        """Return up to `limit` ready messages from lookup id `start` on; no message is taken.

        With `matches` only those for which it is true.  If there are none, wait for up to `wait_s`
        seconds; a negative time has no end.  `turn` is entered for each read, because the messages
        take memory until they are in the answer.
        """
        deadline = None if wait_s < 0 else self._services.loop.time() + wait_s
        while True:
            watcher: asyncio.Future[None] = self._services.loop.create_future()
            queue.watchers.add(watcher)
            try:
                async with turn():
                    messages = await self._look(queue, start, min(limit, PEEK_ROWS_MAX), matches)
                if messages or wait_s == frames.NO_WAIT or queue.deleted:
                    return messages
                async with asyncio.timeout_at(deadline):
                    await watcher
            except TimeoutError:
                return []
            finally:
                queue.watchers.discard(watcher)

    async def _look(
        self, queue: LocalQueue, start: int, limit: int, matches: Matches | None
    ) -> list[StoredMessage]:
        """Return the first ready messages: up to `limit`, and about 8 MB, but at least one."""
        found: list[StoredMessage] = []
        first, size = start, 0
        now_s = self._services.clock.now_s
        rows_max = limit if matches is None else FILTERED_ROWS
        while len(found) < limit and size < TAKE_BYTES_MAX:
            rows, following = await self._services.storage.read(
                partial(_page, queue.id, start, rows_max, matches)
            )
            for row in self._damage.whole_messages(queue, rows):
                is_over = row.expires_at_s is not None and row.expires_at_s < now_s
                if not (is_over or queue.is_busy_with(row.key & LOOKUP_MASK)):
                    found.append(stored_message(row))
                    size += len(row.packet)
            start = following
            if start > LOOKUP_MASK:
                break  # the queue ends here
        # Express messages have no rows: they belong among the messages that were read.
        express = [
            message
            for message in (
                whole_message(held)
                for lookup_id, held in queue.express.items()
                if first <= lookup_id < start
                and not queue.is_busy_with(lookup_id)
                and (held.expires_at_s is None or held.expires_at_s >= now_s)
            )
            if matches is None or matches(message)
        ]
        if express:
            found = sorted(found + express, key=attrgetter("lookup_id"))
        return _up_to(found[:limit], TAKE_BYTES_MAX)


def _page(
    queue_id: int, start: int, rows_max: int, matches: Matches | None, db: sqlite3.Connection
) -> tuple[list[MessageRow], int]:
    """Return a page of rows that match or are damaged, and the lookup id behind the page."""
    rows = message_rows.page(db, queue_id, start, rows_max, REFILL_BYTES)
    following = LOOKUP_MASK + 1
    if len(rows) == rows_max or sum(len(row.packet) for row in rows) >= REFILL_BYTES:
        following = (rows[-1].key & LOOKUP_MASK) + 1
    if matches is not None:
        rows = [row for row in rows if not row.is_whole or matches(stored_message(row))]
    return rows, following


def _up_to(messages: list[StoredMessage], bytes_max: int) -> list[StoredMessage]:
    """Return the first messages, at least one, that have up to `bytes_max` bytes together."""
    size = 0
    for count, message in enumerate(messages):
        size += len(message.packet)
        if count and size > bytes_max:
            return messages[:count]
    return messages
