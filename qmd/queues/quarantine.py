"""Quarantine: messages that the disk returned altered are put aside and logged, not delivered.

All rows that are read from the disk for delivery or sending are checked here. A row with a packet
that does not match its checksum moves to the table `damaged` in a commit of its own; `qmd check`
shows that table.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import structlog

from qmd.events.header import EventHeader, Kind
from qmd.queues.local_queue import LocalQueue
from qmd.queues.outgoing_queue import OutgoingQueue
from qmd.queues.transmission import TRANSACTIONAL_FIRST
from storage.tables import damaged, events, pages
from storage.tables.keys import LOOKUP_MASK
from storage.tables.messages import MessageRow
from storage.tables.outgoing import OutgoingRow

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable

    from qmd.events.recorder import Recorder
    from qmd.events.unit_events import UnitEvents
    from qmd.runtime.services import Services

log = structlog.get_logger()

KEYS_NAMED = 10  # in one line of the log
REMEDY = "They are kept, and not delivered: stop the daemon, and see `qmd check`. Check the disk."


class Damage:
    """Separates intact rows from damaged ones, and puts the latter aside."""

    def __init__(self, services: Services, recorder: Recorder) -> None:
        self._services = services
        self._recorder = recorder
        self._under_way: set[int] = set()  # keys of messages that are being put aside

    def connect(self, arm_resend: Callable[[OutgoingQueue], None]) -> None:
        """Set the function that sets the resend timer of a queue after a change."""
        self._arm_resend = arm_resend

    def whole_messages(self, queue: LocalQueue, rows: list[MessageRow]) -> list[MessageRow]:
        """Return the intact rows of a local queue; put the others aside."""
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
        """Return the intact rows of an outgoing queue; put the others aside.

        The next message of the sequence is linked around a message that was put aside.
        """
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

    def _set_aside(self, table: str, queue: str, keys: list[int]) -> asyncio.Future[int]:
        recorded, at_s = self._recorder.for_unit(), int(self._services.environment.time())

        def move(db: sqlite3.Connection) -> int:
            return sum(put_aside(db, recorded, table, key, queue, at_s) for key in keys)

        return self._services.storage.batch.run(move)

    def _message_is_aside(
        self, queue: LocalQueue, rows: list[MessageRow], done: asyncio.Future[int]
    ) -> None:
        if done.cancelled() or done.exception() is not None:
            return  # the storage failed, and the daemon stops
        for row in rows:
            self._under_way.discard(row.key)
        queue.count_out(len(rows), sum(len(row.packet) for row in rows))
        log_damaged(queue.name, [row.key for row in rows])

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
        log_damaged(queue.destination, [row.key for row in rows])
        queue.link.wake()


def put_aside(
    db: sqlite3.Connection, recorded: UnitEvents, table: str, key: int, queue: str, at_s: int
) -> bool:
    """Put a damaged row aside, in a unit of work; return False if it is gone already.

    `table` is "message" or "outgoing", `queue` the name of its queue, `at_s` the time by the wall
    clock.
    """
    if recorded.enabled:
        found = pages.heads(db, table, [key])
        known = events.of_place(db, queue, key & LOOKUP_MASK)
        messages = [
            # The event log identifies the message more reliably than its damaged packet.
            (*(known or (row.source, row.number)), key & LOOKUP_MASK, row.size)
            for row in found
        ]
        events.insert(
            db,
            recorded.of_messages(EventHeader(Kind.DAMAGED, queue=queue, reason=REMEDY), messages),
        )
    return damaged.set_aside(db, table, key, at_s)


def log_damaged(queue: str, keys: Sequence[int]) -> None:
    """Log that messages were put aside. Call it after the commit."""
    log.error(
        "messages_damaged",
        queue=queue,
        count=len(keys),
        lookup_ids=[key & LOOKUP_MASK for key in keys[:KEYS_NAMED]],
        remedy=REMEDY,
    )
