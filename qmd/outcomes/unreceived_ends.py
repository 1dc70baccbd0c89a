"""Ends of messages that no application received: purged, expired, or of a queue that is deleted.

    hold ──► read, right after a commit ──► part: one turn, one batch ──(a turn)──► part … ──► done

An acknowledgment takes 40 µs of the event loop, and a piece of a purge has 1,024 messages.  Those
that ask for one end in parts, each with the batch that is open in its turn.  If the process ends
between them, the messages of later parts are in their queue as before.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, Protocol

import structlog

from protocol.message_class import MessageClass
from qmd.core.packet_fields import may_want_word
from qmd.message.shared_packet import whole
from qmd.queues.local_queue import LocalQueue, Reader
from qmd.queues.quarantine import log_damaged, put_aside
from storage.tables import messages as message_rows
from storage.tables.keys import LOOKUP_BITS, LOOKUP_MASK
from storage.tables.messages import MessageRow
from storage.tables.pages import EMPTY, Totals

if TYPE_CHECKING:
    import sqlite3

    from qmd.events.recorder import Recorder
    from qmd.events.unit_events import UnitEvents
    from qmd.runtime.services import Services

log = structlog.get_logger()

#: Messages with acknowledgments that end in one turn of the event loop.
ACKNOWLEDGED_AT_ONCE = 64


class End(Protocol):
    """`DeadLetters.end`."""

    def __call__(
        self,
        queue: LocalQueue,
        messages: Sequence[tuple[int, bytes]],
        message_class: MessageClass,
        *,
        detail: str = "",
    ) -> None: ...


class _Unreceived(NamedTuple):
    """Messages of a queue that end together, of which the first ones may have ended."""

    queue: LocalQueue
    message_class: MessageClass
    detail: str
    done: asyncio.Future[Totals]
    messages: list[tuple[int, bytes]]  # lookup ids and packets; express messages are the last
    stored: int  # the number of those that are not express


class UnreceivedEnds:
    """Ends messages in parts."""

    def __init__(self, services: Services, recorder: Recorder, end: End) -> None:
        """`end` adds the consequences of ended messages to the open batch."""
        self._services = services
        self._recorder = recorder
        self._end = end
        self.under_way = 0  # number of ends that are not durable

    def end(
        self, queue: LocalQueue, lookup_ids: list[int], message_class: MessageClass, detail: str
    ) -> asyncio.Future[Totals]:
        """End messages; taken ones stay.  See `DeadLetters.end_unreceived`."""
        done: asyncio.Future[Totals] = self._services.loop.create_future()
        ender = Reader()
        held = [lookup_id for lookup_id in lookup_ids if queue.hold(ender, lookup_id)]
        if held:
            self.under_way += 1
            # Only the holder of a message ends it, so a row that the read finds is still there in
            # `_end_part`.
            keys = [queue.id << LOOKUP_BITS | each for each in held if each not in queue.express]
            self._services.storage.batch.read_after(
                partial(message_rows.find_all, keys=keys),
                partial(self._end_held, queue, held, message_class, detail, done),
            )
        else:
            done.set_result(EMPTY)
        return done

    def _end_held(
        self,
        queue: LocalQueue,
        held: list[int],
        message_class: MessageClass,
        detail: str,
        done: asyncio.Future[Totals],
        rows: list[MessageRow],
    ) -> None:
        stored = [(row.key & LOOKUP_MASK, row.packet) for row in rows if row.is_whole]
        aside = [row for row in rows if not row.is_whole]
        express = [
            (each, whole(queue.express[each].packet)) for each in held if each in queue.express
        ]
        messages = [*stored, *express]
        known = {each for each, _ in messages}
        if others := [each for each in held if each not in known]:
            self._leave_out(queue, others, aside)
        self._end_part(_Unreceived(queue, message_class, detail, done, messages, len(stored)), 0)

    def _end_part(self, unreceived: _Unreceived, at: int) -> None:
        """End the messages from index `at`, as many as one turn of the event loop allows."""
        queue, batch = unreceived.queue, self._services.storage.batch
        messages = unreceived.messages
        until = _end_of_part(messages, at)
        is_last = until == len(messages)
        part, stored = messages[at:until], messages[at : min(until, unreceived.stored)]
        batch.delete_messages([queue.id << LOOKUP_BITS | each for each, _ in stored])
        self._end(queue, part, unreceived.message_class, detail=unreceived.detail)

        def ended() -> None:
            queue.forget([each for each, _ in part])
            queue.count_out(len(stored), sum([len(packet) for _, packet in stored]))
            if is_last:
                self._ended(unreceived)

        batch.when_durable(ended)
        if not is_last:
            self._services.loop.call_soon(self._end_part, unreceived, until)

    def _ended(self, unreceived: _Unreceived) -> None:
        self.under_way -= 1
        sizes = [len(packet) for _, packet in unreceived.messages]
        log.info(
            "messages_ended",
            queue=unreceived.queue.name,
            count=len(sizes),
            reason=MessageClass.describe(unreceived.message_class),
        )
        if not unreceived.done.done():  # the request that waits for it may have been cancelled
            unreceived.done.set_result(Totals(len(sizes), sum(sizes)))

    def _leave_out(self, queue: LocalQueue, held: list[int], rows: list[MessageRow]) -> None:
        """Put damaged messages aside with the open batch; let go of those without a row."""
        batch = self._services.storage.batch
        if rows:
            batch.run(
                partial(
                    _put_aside,
                    recorded=self._recorder.for_unit(),
                    keys=[row.key for row in rows],
                    queue=queue.name,
                    at_s=int(self._services.environment.time()),
                )
            )

        def done() -> None:
            queue.forget(held)
            queue.count_out(len(rows), sum(len(row.packet) for row in rows))
            if rows:
                log_damaged(queue.name, [row.key for row in rows])

        batch.when_durable(done)


def _end_of_part(messages: Sequence[tuple[int, bytes]], at: int) -> int:
    """Return the index behind the messages that can end in one turn of the event loop."""
    acknowledged = 0
    for index in range(at, len(messages)):
        acknowledged += may_want_word(messages[index][1])
        if acknowledged == ACKNOWLEDGED_AT_ONCE:
            return index + 1
    return len(messages)


def _put_aside(
    db: sqlite3.Connection, recorded: UnitEvents, keys: Sequence[int], queue: str, at_s: int
) -> None:
    for key in keys:
        put_aside(db, recorded, "message", key, queue, at_s)
