"""Ends of many messages that a reader took: rejected, failed, or given back.

    request ──► all go to a holder ──► part ──(a turn)──► part ──(a turn)──► … ──► answer

To reject one message takes 14 µs of the event loop, so that 65,536 of them would hold it for a
second.  More than AT_ONCE (receive.py) are therefore done in parts, each in a turn of the heavy
connections, and each with the batch that is open then.  A request is answered after the commit of
the last part.  If the process ends before, the messages of later parts are ready again, and their
application gets them once more.

The commit of a transaction is not divided: it has all of its effects, or none.  Nor is a removal:
its client returns the messages to the application only after the answer (large_removals.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import structlog

from qmd.errors import Refusal
from qmd.queues.local_queue import LocalQueue, Reader

if TYPE_CHECKING:
    from qmd.core.retry_policy import RetryPolicy
    from qmd.operations.receive import MessageReceiver
    from qmd.runtime.services import Services
    from qmd.runtime.work_parts import Line, WorkParts

log = structlog.get_logger()

NUMBERS_EACH = 3  # an acknowledgment, a final ack, and a copy

#: End some messages of a holder with the open batch: the holder and their lookup ids.
End = Callable[[Reader, list[int]], None]


def _ignore(seconds: float) -> None:
    """Ignore the time that a part has taken."""


class LargeEnds:
    """Ends many taken messages in parts."""

    def __init__(
        self, services: Services, receiver: MessageReceiver, parts: WorkParts, line: Line
    ) -> None:
        """`line` is that of large requests: its accounts take turns."""
        self._services = services
        self._receiver = receiver
        self._parts = parts
        self._line = line
        self._tasks: set[asyncio.Task[None]] = set()
        #: The aborts of transactions that are under way, by the id of the transaction as text.
        self._aborts: dict[str, list[asyncio.Task[None]]] = {}

    async def reject(
        self,
        reader: Reader,
        queue: LocalQueue,
        lookup_ids: list[int],
        detail: str,
        token: bytes,
        account: Hashable,
        spend: Callable[[float], None],
    ) -> int:
        """Reject messages as `MessageReceiver.reject`; return their number after the last commit.

        Raises Refusal, StorageError.
        """
        lookup_ids = self._receiver.own(reader, queue, lookup_ids)
        self._receiver.check_rejectable(queue)
        receiver, last = self._receiver, self._last(lookup_ids)

        def reject(holder: Reader, some: list[int]) -> None:
            final = last(some)
            receiver.reject(
                *(holder, queue, some, detail, token if final else b"", _unanswered), total=final
            )

        return await self._end(reader, queue, lookup_ids, reject, account, spend)

    async def fail(
        self,
        reader: Reader,
        queue: LocalQueue,
        lookup_ids: list[int],
        reason: str,
        policy: RetryPolicy | None,
        account: Hashable,
        spend: Callable[[float], None],
    ) -> int:
        """Return messages as `MessageReceiver.fail`; return their number after the last commit.

        Raises Refusal, StorageError.
        """
        lookup_ids = self._receiver.own(reader, queue, lookup_ids)
        fail = partial(self._fail, queue, reason, "", policy)
        return await self._end(reader, queue, sorted(lookup_ids), fail, account, spend)

    def fail_later(
        self,
        reader: Reader,
        queue: LocalQueue,
        lookup_ids: list[int],
        reason: str,
        transaction: str,
        policy: RetryPolicy | None,
    ) -> None:
        """Begin to return the messages of a reader that has ended, as `MessageReceiver.fail`."""
        fail = partial(self._fail, queue, reason, transaction, policy)
        task = self._begin(reader, queue, lookup_ids, fail)
        if transaction:
            self._aborts.setdefault(transaction, []).append(task)
            task.add_done_callback(lambda _: self._aborts.pop(transaction, None))

    def give_back_later(
        self, reader: Reader, queue: LocalQueue, lookup_ids: list[int], why: str
    ) -> None:
        """Begin to give back the messages of a reader that has ended."""

        def give_back(holder: Reader, some: list[int]) -> None:
            self._receiver.give_back(holder, queue, some, why)

        self._begin(reader, queue, lookup_ids, give_back)

    def abort_of(self, transaction: str) -> Sequence[asyncio.Task[None]]:
        """Return the tasks that return the messages of an aborted transaction, if there are any."""
        return tuple(self._aborts.get(transaction, ()))

    async def stop(self) -> None:
        """End the work that has begun: on the disk, the messages of later parts never left."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    def _last(self, lookup_ids: list[int]) -> Callable[[list[int]], int]:
        """Return a function of a part: the number of all messages for the last one, else 0."""
        end = lookup_ids[-1]
        return lambda some: len(lookup_ids) if some[-1] == end else 0

    def _fail(
        self,
        queue: LocalQueue,
        reason: str,
        transaction: str,
        policy: RetryPolicy | None,
        holder: Reader,
        some: list[int],
    ) -> None:
        self._receiver.fail(holder, queue, some, reason, transaction, policy)

    def _begin(
        self, reader: Reader, queue: LocalQueue, lookup_ids: list[int], end: End
    ) -> asyncio.Task[None]:
        holder = hold(reader, queue, lookup_ids)
        task = self._services.loop.create_task(self._end_held(holder, queue, lookup_ids, end))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _end(
        self,
        reader: Reader,
        queue: LocalQueue,
        lookup_ids: list[int],
        end: End,
        account: Hashable,
        spend: Callable[[float], None],
    ) -> int:
        holder = hold(reader, queue, lookup_ids)
        async with self._line.place(account):
            await self._end_held(holder, queue, lookup_ids, end, spend)
        await self._services.storage.batch.barrier()
        return len(lookup_ids)

    async def _end_held(
        self,
        holder: Reader,
        queue: LocalQueue,
        lookup_ids: list[int],
        end: End,
        spend: Callable[[float], None] = _ignore,
    ) -> None:
        try:
            async for some in self._parts.of(len(lookup_ids), spend):
                part = lookup_ids[some]
                await self._services.ids.ensure(NUMBERS_EACH * len(part))
                if queue.deleted:
                    raise Refusal(
                        "no_such_queue",
                        f"{queue.name} is being deleted, with the messages that were taken",
                    )
                end(holder, part)
        except Refusal as refusal:
            # Its deletion ends the messages: no client of an abort waits for this.
            log.info("messages_not_ended", queue=queue.name, reason=refusal.text)
            raise
        finally:
            if not queue.deleted and not self._services.lifecycle.stopping:
                self._receiver.return_held(holder, queue, sorted(holder.taken.get(queue, ())))


def hold(reader: Reader, queue: LocalQueue, lookup_ids: list[int]) -> Reader:
    """Let a holder have messages, so that the end of their reader does not return them."""
    holder = Reader(who=reader.who, is_unread=reader.is_unread, took_at_s=reader.took_at_s)
    reader.hand_over(queue, lookup_ids, holder)
    return holder


def _unanswered(count: int) -> None:
    """Ignore the result of a part: the request is answered after the last one."""
