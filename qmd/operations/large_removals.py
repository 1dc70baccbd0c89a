"""Removals of many messages whose senders asked for an acknowledgment of their receipt.

    request ──► all go to a holder ──► acknowledgments (parts) ──► remove: one turn, one batch
                                              │                      └──► (commit) ──► answer
                                              └─ the client leaves: all are ready again

A removal is one commit, with all of its acknowledgments: the client gives the messages to its
application after the answer, and a sender must not get an acknowledgment before.  To make an
acknowledgment takes 100 µs of the event loop.  They are therefore made before, between other work
(`PreparedEnd`).  Until the last turn nothing has changed: if the process ends, all messages are in
their queue.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from protocol.message_class import MessageClass
from qmd.errors import Refusal
from qmd.operations.large_ends import NUMBERS_EACH, hold
from qmd.operations.transaction import PreparedEnds, by_queues

if TYPE_CHECKING:
    from qmd.operations.receive import MessageReceiver
    from qmd.operations.transaction import Transaction
    from qmd.outcomes.dead_letter import DeadLetters
    from qmd.outcomes.prepared_ends import PreparedEnd
    from qmd.queues.local_queue import LocalQueue, Reader
    from qmd.runtime.services import Services
    from qmd.runtime.work_parts import Line, WorkParts


def _ignore(seconds: float) -> None:
    """Ignore the time that a part has taken."""


def _always() -> bool:
    """Return that the work goes on, whether its client waits or not."""
    return True


class Remover(NamedTuple):
    """The client that removes messages."""

    account: Hashable
    spend: Callable[[float], None]  # counts CPU time, in seconds
    is_there: Callable[[], bool]  # whether it waits for the answer


class LargeRemovals:
    """Removes many messages, of which the acknowledgments are made in parts."""

    def __init__(
        self,
        services: Services,
        receiver: MessageReceiver,
        dead_letters: DeadLetters,
        parts: WorkParts,
        line: Line,
    ) -> None:
        """`line` is that of large requests: its accounts take turns."""
        self._services = services
        self._receiver = receiver
        self._dead_letters = dead_letters
        self._parts = parts
        self._line = line

    async def prepare(
        self,
        messages: Sequence[tuple[int, bytes]],
        message_class: int = MessageClass.ACK_RECEIVE,
        spend: Callable[[float], None] = _ignore,
        is_there: Callable[[], bool] = _always,
    ) -> PreparedEnd:
        """Make the acknowledgments of messages of one queue, given as lookup ids and packets.

        As many numbers are left afterwards as their end may need.  Raises StorageError, and
        CancelledError when the client has left.
        """
        prepared = self._dead_letters.prepare(message_class)
        async for some in self._parts.of(len(messages), spend):
            if not is_there():
                raise asyncio.CancelledError  # nothing was done, and no client waits
            part = messages[some]
            await self._services.ids.ensure(len(part))
            prepared.add(part)
        await self._services.ids.ensure(prepared.acknowledgments + NUMBERS_EACH * len(messages))
        return prepared

    async def prepare_commit(
        self,
        transaction: Transaction,
        spend: Callable[[float], None],
        is_there: Callable[[], bool],
    ) -> PreparedEnds:
        """Make the acknowledgments of the messages that a transaction removes or rejects.

        Raises StorageError, and CancelledError when the client has left.
        """

        async def prepare(
            queue: LocalQueue, lookup_ids: list[int], message_class: int
        ) -> PreparedEnd | None:
            if not self._receiver.acknowledges_many(queue, lookup_ids):
                return None
            messages = [(each, queue.taken[each].packet) for each in lookup_ids]
            return await self.prepare(messages, message_class, spend, is_there)

        receipts: dict[LocalQueue, PreparedEnd] = {}
        rejections: dict[tuple[LocalQueue, str], PreparedEnd] = {}
        for queue, mine in list(transaction.reader.taken.items()):
            if not self._receiver.acknowledges_many(queue, mine):
                continue
            received = transaction.received(queue)
            if (end := await prepare(queue, received, MessageClass.ACK_RECEIVE)) is not None:
                receipts[queue] = end
        for what, rejected in by_queues(transaction.rejections).items():
            end = await prepare(what[0], rejected, MessageClass.NACK_RECEIVE_REJECTED)
            if end is not None:
                rejections[what] = end
        ends = *receipts.values(), *rejections.values()
        numbers = sum(each.acknowledgments for each in ends)
        await self._services.ids.ensure(numbers + NUMBERS_EACH * transaction.taken_count)
        return PreparedEnds(receipts, rejections)

    async def remove(
        self,
        reader: Reader,
        queue: LocalQueue,
        lookup_ids: list[int],
        token: bytes,
        check: Callable[[], None],
        remover: Remover,
    ) -> int:
        """Remove messages as `MessageReceiver.remove`, after a last `check`; return their number
        after the commit.

        If they are not removed, `reader` has them again, or their queue if it has ended.  Raises
        Refusal, StorageError, and CancelledError when the client has left.
        """
        lookup_ids = self._receiver.own(reader, queue, lookup_ids)
        holder = hold(reader, queue, lookup_ids)
        try:
            async with self._line.place(remover.account):
                messages = [(each, queue.taken[each].packet) for each in lookup_ids]
                prepared = await self.prepare(
                    messages, spend=remover.spend, is_there=remover.is_there
                )
                self._check(queue, check, remover)
                self._receiver.check_numbers(holder, queue, lookup_ids)
                self._receiver.remove(
                    holder, queue, lookup_ids, token, _unanswered, prepared=prepared
                )
                durable = self._services.storage.batch.barrier()
        finally:
            self._return(holder, reader, queue)
        await durable
        return len(lookup_ids)

    def _check(self, queue: LocalQueue, check: Callable[[], None], remover: Remover) -> None:
        """Check that the messages can be removed in this turn of the loop.  Raises Refusal."""
        if not remover.is_there():
            raise asyncio.CancelledError
        check()
        if queue.deleted:
            raise Refusal(
                "no_such_queue",
                f"{queue.name} is being deleted, with the messages that were taken",
            )

    def _return(self, holder: Reader, reader: Reader, queue: LocalQueue) -> None:
        """Return messages that were not removed: nothing has happened to them."""
        mine = sorted(holder.taken.get(queue, ()))
        if not mine or queue.deleted or self._services.lifecycle.stopping:
            return  # its deletion ends them; on the disk, they never left
        if reader.has_left:
            self._receiver.leave(holder)
        else:
            holder.hand_over(queue, mine, reader)


def _unanswered(count: int) -> None:
    """Ignore the result of the removal: its request is answered when it is durable."""
