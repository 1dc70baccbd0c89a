"""Receiving: take, remove durably, hand over — in this order.

A message that was taken is still on the daemon's disk and returns to its place when the connection
ends.  It is handed to the application only after its removal is durable.  When the connection
breaks in between, the token of the removal shows whether it was done.  Therefore a daemon that is
killed neither loses nor duplicates messages of `receive`; an application that is killed loses at
most the messages that it had received and not processed (use `take` to prevent that).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Sequence
from functools import partial
from typing import Any

from qmd.client.ambient import refuse_inside
from qmd.client.caller import Caller
from qmd.client.choice import chosen
from qmd.client.connection import Connection
from qmd.client.errors import (
    ClientError,
    NotConnected,
    NotTaken,
    OutcomeUnknown,
    QueueManagerError,
    Stopping,
)
from qmd.client.message import Message
from qmd.control_protocol import messages as frames

_RECEIVE_INSTEAD = "receive them inside the transaction, by `receive`"


class Taken:
    """Taken messages, which other receivers do not see until they are settled.

    As a context manager it returns, at its end, messages that were not removed to the queue.
    """

    def __init__(
        self, caller: Caller, connection: Connection, queue: str, messages: list[Message]
    ) -> None:
        self.queue = queue
        self.messages: Sequence[Message] = messages
        self._caller = caller
        self._connection = connection
        self._is_settled = not messages

    def __len__(self) -> int:
        return len(self.messages)

    @property
    def is_lost(self) -> bool:
        """Whether the connection has ended: messages that were not removed have returned."""
        return self._connection.is_lost

    def each(self) -> list[Taken]:
        """Return each message by itself, to be settled separately from the others."""
        self._is_settled = True  # by the parts
        return [
            Taken(self._caller, self._connection, self.queue, [message])
            for message in self.messages
        ]

    def lock_for(self, connection: Connection) -> bytes:
        """Return b"": they have no lock.  Raises NotTaken for another connection than theirs."""
        if connection is not self._connection:
            raise NotTaken(
                f"{len(self)} messages of {self.queue} were taken on another connection",
                "take them again",
            )
        return b""

    def handed_over(self) -> None:
        """Forget the messages: a transaction settles them."""
        self._is_settled = True

    async def remove(self, count: int | None = None) -> None:
        """Remove the first `count` messages durably, or all; the rest returns to the queue.

        Raises NotTaken when they returned to their queue because the connection was lost; another
        QueueManagerError when the queue manager refused, and they returned as well; and
        OutcomeUnknown when the daemon does not answer any more.
        """
        refuse_inside(self._caller, "the removal of taken messages", _RECEIVE_INSTEAD)
        await self._settle(frames.Remove, self._lookup_ids[:count])

    async def reject(self, reason: str = "") -> None:
        """Remove all messages durably, because this application rejects them.

        Senders that requested it get a negative acknowledgment, and keep them as dead letters;
        messages that no sender keeps are put into a dead-letter queue here, with `reason`.  Raises
        the errors of `remove`.
        """
        refuse_inside(self._caller, "the rejection of taken messages", _RECEIVE_INSTEAD)
        await self._settle(frames.Reject, self._lookup_ids, reason)

    async def _settle(
        self, verb: type[frames.Request], lookup_ids: list[int], *arguments: object
    ) -> None:
        assert not self._is_settled, "these messages were settled before"
        token = os.urandom(16)
        try:
            await self._connection.ask(verb, self.queue, lookup_ids, *arguments, token)
        except NotConnected as lost:
            self._is_settled = True
            if not await self._was_removed(token):
                raise NotTaken(
                    f"{len(lookup_ids)} messages returned to {self.queue}: {lost.text}",
                    "take them again",
                ) from lost
        except QueueManagerError:
            await self.give_back()
            raise
        if len(lookup_ids) < len(self):
            await self._give_back(self._lookup_ids[len(lookup_ids) :])
        self._is_settled = True

    async def give_back(
        self,
        *,
        failed: bool = False,
        reason: str = "",
        retry: frames.RetryProperties | None = None,
    ) -> None:
        """Return messages that were not removed to their old place.

        `failed`: the application has failed to process them.  That raises their abort counts, and
        the retry policy of the queue applies, or `retry` instead of it; `reason` is for the history
        of the messages.
        """
        if not self._is_settled:
            await self._give_back(self._lookup_ids, failed, reason, retry)

    async def _give_back(
        self,
        lookup_ids: list[int],
        failed: bool = False,
        reason: str = "",
        retry: frames.RetryProperties | None = None,
    ) -> None:
        self._is_settled = True
        if not self._connection.is_lost and not self._caller.home.is_elsewhere:
            answer = self._connection.ask(
                frames.GiveBack, self.queue, lookup_ids, failed, reason, retry
            )
            # A connection that ends returns them as well.
            with contextlib.suppress(NotConnected, QueueManagerError):
                await answer

    async def _was_removed(self, token: bytes) -> bool:
        try:
            return await self._caller.outcome(token) is not None
        except OutcomeUnknown as failure:
            failure.messages = self.messages
            raise

    async def __aenter__(self) -> Taken:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.give_back()

    @property
    def _lookup_ids(self) -> list[int]:
        return [message.stored.lookup_id for message in self.messages]


class _Woken(Exception):
    """Messages of a cancelled receive have become ready while this one waited for others."""


#: The waits of receives that may be woken; True: one was.
_Waits = dict[asyncio.Future[Any], bool]


class Receiver:
    """The receives of one client, from any number of queues."""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller
        # Messages removed durably and not yet handed over, by queue: the rest of a batch after its
        # iteration ended early, and messages that came for a caller that was cancelled.
        self._ready: defaultdict[str, deque[Message]] = defaultdict(deque)
        self._background: set[asyncio.Task[Any]] = set()
        # Removals whose caller was cancelled, by the id of the deque that gets their messages.
        self._unattended: defaultdict[int, set[asyncio.Task[Any]]] = defaultdict(set)
        # Receives that wait for the daemon, by the id of the deque from which they are served.
        self._waits: defaultdict[int, _Waits] = defaultdict(dict)

    async def take(
        self,
        queue: str,
        limit: int,
        timeout_s: float | None,
        choice: frames.Choice | None = None,
        waits: _Waits | None = None,
    ) -> Taken:
        """Take messages.  Raises ClientError, and _Woken if it is one of `waits` that is woken."""
        now = asyncio.get_running_loop().time
        deadline = None if timeout_s is None else now() + timeout_s
        patience = self._caller.patience()
        while True:
            connection = await self._caller.connection()
            wait_s = frames.FOREVER if deadline is None else max(0.0, deadline - now())
            try:
                if choice is None:
                    answer = connection.ask(frames.Take, queue, limit, wait_s)
                else:
                    answer = connection.ask(frames.TakeChosen, queue, choice, limit, wait_s)
                stored = frames.stored_messages(await _answered(answer, waits))
            except (asyncio.CancelledError, _Woken):
                # The caller that would settle the taken messages was cancelled.
                answer.add_done_callback(partial(_give_back, connection, queue))
                raise
            except (NotConnected, Stopping) as failure:
                await patience.wait(failure)
            else:
                return Taken(self._caller, connection, queue, [Message(each) for each in stored])

    async def receive_chosen(
        self, queue: str, choice: frames.Choice, limit: int, timeout_s: float | None
    ) -> list[Message]:
        """Receive messages at any place, other than those kept for this queue's next receive."""
        now = asyncio.get_running_loop().time
        deadline = None if timeout_s is None else now() + timeout_s
        patience = self._caller.patience()
        while True:
            left_s = None if deadline is None else max(0.0, deadline - now())
            taken = await self.take(queue, limit, left_s, choice)
            if not taken:
                return []
            try:
                await taken.remove()
                return list(taken.messages)
            except (NotTaken, Stopping) as failure:
                await patience.wait(failure)

    async def receive(self, queue: str, limit: int, timeout_s: float | None) -> list[Message]:
        self._caller.home.check()
        ready = self._ready[queue]
        now = asyncio.get_running_loop().time
        deadline = None if timeout_s is None else now() + timeout_s
        patience = self._caller.patience()
        while not ready and not await self._attend(ready):
            left_s = None if deadline is None else max(0.0, deadline - now())
            try:
                taken = await self.take(queue, limit, left_s, waits=self._waits[id(ready)])
            except _Woken:
                continue
            if not taken:
                break
            if failure := await self._remove(taken, ready):
                await patience.wait(failure)
        return [ready.popleft() for _ in range(min(limit, len(ready)))]

    async def receive_each(
        self, queue: str, timeout_s: float | None, batch: int, prefetch: bool, where: str = ""
    ) -> AsyncIterator[Message]:
        choice = chosen(where=where) if where else None
        # Messages of an iteration with a selector are not for the next receive without it.
        ready = self._ready[f"{queue} {where}" if where else queue]
        patience = self._caller.patience()
        ahead: asyncio.Task[Taken] | None = None  # the next batch, taken in advance
        self._refuse_step_inside()
        try:
            while True:
                while ready:
                    yield ready.popleft()
                    self._refuse_step_inside()
                taken = await ahead if ahead is not None else None
                ahead = None
                if not taken and await self._attend(ready):
                    continue
                if not taken:
                    try:
                        waits = self._waits[id(ready)]
                        taken = await self.take(queue, batch, timeout_s, choice, waits)
                    except _Woken:
                        continue
                if not taken:
                    return
                if prefetch:
                    ahead = asyncio.create_task(self.take(queue, batch, 0.0, choice))
                if failure := await self._remove(taken, ready):
                    # They are first in the queue again: the batch after them must not overtake.
                    await self._abandon(ahead)
                    ahead = None
                    await patience.wait(failure)
        finally:
            await self._abandon(ahead)

    def _refuse_step_inside(self) -> None:
        """Refuse a step of an outside iteration inside a transaction."""
        self._caller.home.check()
        refuse_inside(
            self._caller,
            "an iteration that was begun outside of it",
            "begin a new iteration inside the transaction",
        )

    def unread(self) -> list[Message]:
        """Return messages that were removed from a queue and not handed over yet."""
        return [message for ready in self._ready.values() for message in ready]

    async def settle(self) -> None:
        """Wait for removals that continue after their caller was cancelled."""
        while self._background:
            await asyncio.wait(self._background)

    async def _remove(self, taken: Taken, ready: deque[Message]) -> ClientError | None:
        """Remove taken messages and add them to `ready`; or return why they are in their queue.

        A caller that is cancelled meanwhile stops waiting, but the removal continues.
        """
        work = asyncio.create_task(self._remove_and_keep(taken, ready))
        self._background.add(work)
        work.add_done_callback(self._background.discard)
        try:
            return await asyncio.shield(work)
        except asyncio.CancelledError:
            if work.done():
                self._wake(ready)
            else:
                unattended = self._unattended[id(ready)]
                unattended.add(work)
                work.add_done_callback(unattended.discard)
                work.add_done_callback(lambda _: self._wake(ready))
            raise

    def _wake(self, ready: deque[Message]) -> None:
        """Let receives that wait for other messages take those that are ready."""
        waits = self._waits[id(ready)]
        asleep = [wait for wait, is_woken in waits.items() if not is_woken]
        for wait in asleep[: len(ready)]:
            waits[wait] = True
            wait.cancel()

    async def _attend(self, ready: deque[Message]) -> bool:
        """Wait for removals whose caller was cancelled; return whether messages are ready.

        Their messages come before all others of the queue, which a take would wait for.
        """
        while unattended := self._unattended.get(id(ready)):
            await asyncio.wait(unattended)
        return bool(ready)

    async def _remove_and_keep(self, taken: Taken, ready: deque[Message]) -> ClientError | None:
        try:
            await taken.remove()
        except (NotTaken, Stopping) as failure:
            return failure
        ready.extend(taken.messages)
        return None

    async def _abandon(self, ahead: asyncio.Task[Taken] | None) -> None:
        if ahead is None or self._caller.home.is_elsewhere:
            return
        ahead.cancel()
        await asyncio.wait([ahead])
        if not ahead.cancelled() and ahead.exception() is None:
            await ahead.result().give_back()


async def _answered(answer: asyncio.Future[Any], waits: _Waits | None) -> Any:
    """Return an answer of the daemon.  Raises _Woken if this wait is ended by `Receiver._wake`."""
    if waits is None:
        return await asyncio.shield(answer)
    task = asyncio.current_task()
    assert task is not None
    cancelled_before = task.cancelling()
    wait = asyncio.shield(answer)
    waits[wait] = False
    try:
        return await wait
    except asyncio.CancelledError:
        if waits[wait] and task.cancelling() == cancelled_before:
            raise _Woken from None
        raise
    finally:
        del waits[wait]


def _give_back(connection: Connection, queue: str, answer: asyncio.Future[Any]) -> None:
    """Give back the messages of a `Take` after its caller stopped waiting."""
    if answer.cancelled() or answer.exception() is not None or connection.is_lost:
        return
    if stored := frames.stored_messages(answer.result()):
        lookup_ids = [each.lookup_id for each in stored]
        done = connection.ask(frames.GiveBack, queue, lookup_ids)
        done.add_done_callback(asyncio.Future.exception)  # a failure gives them back too
