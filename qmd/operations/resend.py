"""Resending: messages are sent again as new messages, and removed in the same commit.

It serves dead letters when the cause of their end has been removed, and messages that must be
corrected.  A new message has an id of its own; its correlation id is that of the old message, or if
it had none, the id of the old message.  It is never express: an express message could be lost
together with the old one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
import structlog

from qmd.control_protocol.messages import Choice, NewMessage, Piece, StoredMessage
from qmd.directory.resolver import Resolution
from qmd.errors import Refusal
from qmd.events.header import EventHeader, Kind
from qmd.operations.restore_message import Changes, MessageRestorer
from qmd.operations.selection import Chosen
from qmd.operations.send import flat
from qmd.queues.local_queue import LocalQueue, Reader
from storage.tables import messages as message_rows
from storage.tables.keys import LOOKUP_BITS, LOOKUP_MASK
from storage.tables.messages import MessageRow

if TYPE_CHECKING:
    from qmd.events.recorder import Recorder
    from qmd.naming.destinations import Destinations
    from qmd.operations.selection import Selection
    from qmd.operations.send import MessageSender
    from qmd.outcomes.dead_letter import DeadLetters
    from qmd.runtime.services import Services

log = structlog.get_logger()

Result = dict[str, Any]


def _allow(new: NewMessage) -> None:
    """Allow any message: the caller has all rights."""


class Resender:
    """Resending of messages, piece by piece; each piece is one commit."""

    def __init__(
        self,
        services: Services,
        dead_letters: DeadLetters,
        destinations: Destinations,
        message_sender: MessageSender,
        recorder: Recorder,
        restorer: MessageRestorer,
        selection: Selection,
    ) -> None:
        self._services = services
        self._dead_letters = dead_letters
        self._destinations = destinations
        self._message_sender = message_sender
        self._recorder = recorder
        self._restorer = restorer
        self._selection = selection

    async def resend(
        self,
        queue: LocalQueue,
        choice: Choice,
        piece: Piece,
        changes: Changes,
        *,
        keep: bool = False,
        dry_run: bool = False,
        token: bytes = b"",
        check: Callable[[NewMessage], None] = _allow,
    ) -> Result:
        """Resend one piece of the chosen messages; return the answer to `frames.Resend`: the
        messages, their bytes, the messages that were taken, the next piece, and the ids and
        destinations of the new messages.

        `check` raises Refusal for a new message that the client must not send; with `keep`, the
        old messages stay.  Raises Refusal.
        """
        chosen = await self._selection.choose(queue, choice, piece)
        news = [self._restorer.new_message(queue, message, changes) for message in chosen.messages]
        for new in news:
            check(new)
        answers = await self._restorer.resolve(new.destination for new in news)
        if dry_run:
            for new in news:
                self._restorer.check_destination(new.destination)
            return _result(chosen, chosen.messages)
        if not news:
            return _result(chosen, [])
        sender = Reader()
        held = [each for each in chosen.messages if queue.hold(sender, each.lookup_id)]
        if len(held) < len(news) and (choice.lookup_ids or choice.message_ids):
            _let_go(queue, held)
            raise Refusal(
                "message_taken",
                f"a message of {queue.name} has been taken by an application",
                "Try again when the application has finished with it, or end that application.",
            )
        # No other request removes held messages: those that are there now will be there in the
        # next commit.
        done: asyncio.Future[Result] = self._services.loop.create_future()
        keys = [
            queue.id << LOOKUP_BITS | each.lookup_id
            for each in held
            if each.lookup_id not in queue.express
        ]
        self._services.storage.batch.read_after(
            partial(message_rows.find_all, keys=keys),
            partial(self._send, queue, held, chosen, changes, keep, token, done, answers),
        )
        return await asyncio.shield(done)

    def _send(
        self,
        queue: LocalQueue,
        held: list[StoredMessage],
        chosen: Chosen,
        changes: Changes,
        keep: bool,
        token: bytes,
        done: asyncio.Future[Result],
        answers: dict[str, Resolution | Refusal],
        rows: list[MessageRow],
    ) -> None:
        """Send the messages that are still there, and remove them, with the open batch."""
        there = {row.key & LOOKUP_MASK for row in rows if row.is_whole} | queue.express.keys()
        for message in held:
            if message.lookup_id not in there:
                queue.let_go(message, is_there=False)
        old = [message for message in held if message.lookup_id in there]
        if not old:
            if not done.done():  # the caller may have been cancelled
                done.set_result(_result(chosen, []))
            return
        batch = self._services.storage.batch
        ids: list[str] = []
        try:
            self._destinations.answers = answers  # the resolver may have dropped them since
            news = [self._restorer.new_message(queue, message, changes) for message in old]
            self._message_sender.send(news, b"", lambda sent: ids.extend(flat(sent)))
        except Refusal as refusal:
            _let_go(queue, old)
            queue.wake_readers()
            done.set_exception(refusal)
            return
        finally:
            self._destinations.answers = {}
        if not keep:
            self._recorder.record(
                EventHeader(
                    Kind.REQUEUED,
                    queue=queue.name,
                    to_queue=news[0].destination
                    if len({new.destination for new in news}) == 1
                    else "",
                    reason="It was sent again as another message.",
                ),
                [message.packet for message in old],
                places=[message.lookup_id for message in old],
            )
            self._dead_letters.replaced(queue, [message.packet for message in old])
            batch.delete_messages([queue.id << LOOKUP_BITS | each.lookup_id for each in old])
        result = _result(chosen, old)
        if token:
            batch.record_outcome(token, msgspec.msgpack.encode(result), self._services.clock.now_s)

        def durable() -> None:
            if keep:
                _let_go(queue, old)
                queue.wake_readers()
            else:
                queue.forget([each.lookup_id for each in old])
                stored = [row for row in rows if row.is_whole]
                queue.count_out(len(stored), sum(len(row.packet) for row in stored))
            log.info("messages_sent_again", queue=queue.name, count=len(old))
            if not done.done():  # the caller may have been cancelled
                done.set_result(_result(chosen, old, ids, news))

        batch.when_durable(durable)
        assert batch is self._services.storage.batch, (
            "the new messages and the removal are in one commit"
        )


def _let_go(queue: LocalQueue, messages: list[StoredMessage]) -> None:
    for message in messages:
        queue.let_go(message, is_there=True)


def _result(
    chosen: Chosen,
    messages: list[StoredMessage],
    ids: Sequence[str] = (),
    news: Sequence[NewMessage] = (),
) -> Result:
    return {
        "messages": len(messages),
        "bytes": sum(len(message.packet) for message in messages),
        "taken": chosen.taken,
        "next": chosen.next,
        "until": chosen.until,
        "ids": list(ids),
        "destinations": sorted({new.destination for new in news}),
    }
