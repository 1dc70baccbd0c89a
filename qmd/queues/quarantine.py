"""Messages that came back from the disk as something else: set aside and named, never delivered.

Whatever is read from the disk to be given or sent goes through here.  A row whose checksum does not
fit its packet goes to the table `damaged` in a commit of its own; `qmd check` shows what is there.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING

import structlog

from qmd.events.header import EventHeader, Kind
from qmd.queues.local_queue import LocalQueue
from qmd.queues.outgoing_queue import TRANSACTIONAL_FIRST, OutgoingQueue
from storage.tables import damaged, events, pages
from storage.tables.keys import LOOKUP_MASK
from storage.tables.messages import MessageRow
from storage.tables.outgoing import OutgoingRow

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable

    from qmd.events.recorder import Recorder
    from qmd.runtime.services import Services

log = structlog.get_logger()

KEYS_NAMED = 10  # in one line of the log
REMEDY = "They are kept, and not delivered: stop the daemon, and see `qmd check`. Check the disk."


class Damage:
    """Sorts out rows."""

    def __init__(self, services: Services, recorder: Recorder) -> None:
        self._services = services
        self._recorder = recorder
        self._under_way: set[int] = set()  # keys of messages that are being set aside

    def connect(self, arm_resend: Callable[[OutgoingQueue], None]) -> None:
        """Name what sets the timer of a queue after it was changed."""
        self._arm_resend = arm_resend

    def whole_messages(self, queue: LocalQueue, rows: list[MessageRow]) -> list[MessageRow]:
        """Those of the rows that are what was stored."""
        whole = [row for row in rows if row.is_whole]
        if len(whole) < len(rows):
            broken = [row for row in rows if not row.is_whole and row.key not in self._under_way]
            self._under_way.update(row.key for row in broken)
            if broken:
                self._set_aside(
                    "message", queue.name, [row.key for row in broken]
                ).add_done_callback(partial(self._message_is_aside, queue, broken))
        return whole

    def whole_outgoing(self, queue: OutgoingQueue, rows: list[OutgoingRow]) -> list[OutgoingRow]:
        """Likewise, for elsewhere.  What follows in a sequence is linked around the rest."""
        whole = [row for row in rows if row.is_whole]
        if len(whole) < len(rows):
            broken = [
                row
                for row in rows
                if not row.is_whole and queue.begin_removal(row.key & LOOKUP_MASK)
            ]
            if broken:
                self._set_aside(
                    "outgoing", queue.destination, [row.key for row in broken]
                ).add_done_callback(partial(self._outgoing_is_aside, queue, broken))
        return whole

    def put_aside(self, db: sqlite3.Connection, table: str, key: int, queue: str) -> bool:
        """Within a unit that has found a row that is not whole; False when it is gone already."""
        recorder = self._recorder
        if recorder.enabled:
            found = pages.heads(db, table, [key])
            known = events.of_place(db, queue, key & LOOKUP_MASK)
            told = [
                # The log knows better which message it was than what is left of it.
                (*(known or (row.source, row.number)), key & LOOKUP_MASK, row.size)
                for row in found
            ]
            events.insert(
                db,
                recorder.events_of_messages(
                    EventHeader(Kind.DAMAGED, queue=queue, reason=REMEDY), told
                ),
            )
        return damaged.set_aside(db, table, key, int(self._services.environment.time()))

    def name(self, queue: str, keys: list[int]) -> None:
        """Say that messages were set aside; it is durable."""
        log.error(
            "messages_damaged",
            queue=queue,
            count=len(keys),
            lookup_ids=[key & LOOKUP_MASK for key in keys[:KEYS_NAMED]],
            remedy=REMEDY,
        )

    def _set_aside(self, table: str, queue: str, keys: list[int]) -> asyncio.Future[int]:
        def move(db: sqlite3.Connection) -> int:
            return sum(self.put_aside(db, table, key, queue) for key in keys)

        return self._services.storage.batch.run(move)

    def _message_is_aside(
        self, queue: LocalQueue, rows: list[MessageRow], done: asyncio.Future[int]
    ) -> None:
        if done.cancelled() or done.exception() is not None:
            return  # the storage failed, and the daemon stops
        for row in rows:
            self._under_way.discard(row.key)
        queue.count_out(len(rows), sum(len(row.packet) for row in rows))
        self.name(queue.name, [row.key for row in rows])

    def _outgoing_is_aside(
        self, queue: OutgoingQueue, rows: list[OutgoingRow], done: asyncio.Future[int]
    ) -> None:
        if done.cancelled() or done.exception() is not None:
            return  # the storage failed, and the daemon stops
        for row in rows:
            key = row.key & LOOKUP_MASK
            queue.end_removal(key)
            queue.shrink(len(row.packet))
            if key < TRANSACTIONAL_FIRST:
                queue.others -= 1
            elif queue.sequence.remove(queue.number_of(key)):
                queue.sequence.hasten(self._services.loop.time())
                self._arm_resend(queue)
        self.name(queue.destination, [row.key for row in rows])
        queue.link.wake()
