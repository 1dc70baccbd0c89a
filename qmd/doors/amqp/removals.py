"""Messages that clients have settled: gathered for one request for each queue and turn."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

from qmd.client.errors import ClientError
from qmd.control_protocol import locks as lock_frames
from qmd.control_protocol import messages as frames
from qmd.control_protocol import transactions as transaction_frames
from qmd.doors.amqp import engine
from qmd.doors.amqp.conditions import condition_of

if TYPE_CHECKING:
    from qmd.doors.amqp.context import Context
    from qmd.doors.amqp.receiving import Consumer


class Removals:
    """The settled messages of one connection."""

    def __init__(self, conversation: Context) -> None:
        self._conversation = conversation
        self._accepted: dict[str, list[tuple[int, Any]]] = {}
        self._returned: dict[str, list[int]] = {}
        self._under_way: set[asyncio.Task[None]] = set()

    async def finished(self) -> None:
        """Wait until no request is under way."""
        while self._under_way:
            await asyncio.wait(self._under_way)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._conversation.spawn(work)
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)

    def remove(self, consumer: Consumer, lookup_id: int, delivery: Any, settled: bool) -> None:
        """Remove an accepted message; its delivery is settled after the commit, if it is not."""
        if settled:
            engine.settle(delivery)
        waiting = None if settled else delivery
        self._accepted.setdefault(consumer.queue, []).append((lookup_id, waiting))

    def give_back(self, queue: str, lookup_ids: list[int]) -> None:
        """Return messages to their places."""
        self._returned.setdefault(queue, []).extend(lookup_ids)
        self._conversation.flush()

    def reject(self, consumer: Consumer, lookup_ids: list[int], reason: str) -> None:
        """Reject messages, with the reason."""
        self._spawn(self._reject(consumer, lookup_ids, reason))

    def fail(self, queue: str, lookup_id: int) -> None:
        """Return a message to its place, and count an attempt at it."""
        self._spawn(self._fail(queue, lookup_id))

    async def _fail(self, queue: str, lookup_id: int) -> None:
        """End a transaction with the message without success: that counts."""
        transaction = os.urandom(16)
        control = self._conversation.control
        try:
            answers = [
                control.ask(transaction_frames.Begin, transaction),
                control.ask(lock_frames.Enroll, transaction, queue, [lookup_id]),
                control.ask(
                    transaction_frames.Abort, transaction, "its receiver over AMQP has failed"
                ),
            ]
            results = await asyncio.gather(*answers, return_exceptions=True)
        except ClientError:
            return  # the connection has ended, and the message is at its place
        if isinstance(results[1], Exception):
            await self._ask(frames.GiveBack, queue, [lookup_id])
        self._conversation.more_room()

    def start(self) -> None:
        """Make the requests of this turn."""
        if self._returned:
            returned, self._returned = self._returned, {}
            for queue, lookup_ids in returned.items():
                self._spawn(self._give_back(queue, lookup_ids))
        if self._accepted:
            accepted, self._accepted = self._accepted, {}
            for queue, pairs in accepted.items():
                self._spawn(self._remove(queue, pairs))

    async def _remove(self, queue: str, pairs: list[tuple[int, Any]]) -> None:
        ids = [lookup_id for lookup_id, _ in pairs]
        error = await self._ask(frames.Remove, queue, ids)
        if self._conversation.is_over:
            return
        for _, delivery in pairs:
            if delivery is not None:
                if error is None:
                    engine.accept(delivery)
                else:
                    engine.reject(delivery, condition_of(error))
        if error is not None:
            await self._ask(frames.GiveBack, queue, ids)
        self._conversation.more_room()

    async def _reject(self, consumer: Consumer, lookup_ids: list[int], reason: str) -> None:
        error = await self._ask(frames.Reject, consumer.queue, lookup_ids, reason)
        if error is not None:
            await self._ask(frames.GiveBack, consumer.queue, lookup_ids)
        self._conversation.more_room()

    async def _give_back(self, queue: str, lookup_ids: list[int]) -> None:
        await self._ask(frames.GiveBack, queue, lookup_ids)
        self._conversation.more_room()

    async def _ask(self, verb: Any, *arguments: Any) -> ClientError | None:
        try:
            await self._conversation.control.ask(verb, *arguments)
        except ClientError as error:
            return error
        return None
