"""Messages under a lock: taken for some seconds, and settled over any connection."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

from qmd.client.ambient import refuse_inside
from qmd.client.caller import Caller
from qmd.client.connection import Connection
from qmd.client.errors import LockLost, NotConnected, Stopping
from qmd.client.message import Message
from qmd.control_protocol import locks as lock_frames
from qmd.control_protocol import messages as frames

_ENROLL = "let the transaction settle them, by `transaction.settle`"


class Locked:
    """Messages of one queue under a lock.

    They return to their places when its time is over, which counts as an attempt.  As a context
    manager it gives back, at its end, messages that were not settled; after an error as failed.
    """

    def __init__(
        self, caller: Caller, queue: str, id: bytes, messages: Sequence[Message] = ()
    ) -> None:
        self._caller = caller
        self.queue = queue
        #: Another client of the same user can settle the messages by this id: see `locked`.
        self.id = id
        self.messages: list[Message] = list(messages)

    def __len__(self) -> int:
        return len(self.messages)

    async def __aenter__(self) -> Locked:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        if not self.messages or self._caller.home.is_elsewhere:
            return
        try:
            await self.give_back(failed=kind is not None, reason="" if kind is None else str(kind))
        except LockLost:
            self.messages = []  # its time is over: they are at their places

    async def renew(self, lock_s: float) -> None:
        """Let the lock end `lock_s` seconds from now.  Raises LockLost."""
        await self._caller.ask(lock_frames.RenewLock, self.id, lock_s)

    async def take(
        self,
        limit: int = 1,
        *,
        lock_s: float,
        timeout_s: float | None = 0.0,
        choice: frames.Choice | None = None,
    ) -> list[Message]:
        """Take further messages of the queue under the same lock, and renew it; return them."""
        refuse_inside(self._caller, "take under a lock", "receive by `receive`")
        choice = choice or frames.EVERY_MESSAGE
        now = asyncio.get_running_loop().time
        deadline = None if timeout_s is None else now() + timeout_s
        patience = self._caller.patience()
        while True:
            wait_s = frames.FOREVER if deadline is None else max(0.0, deadline - now())
            connection = await self._caller.connection()
            answer = connection.ask(
                lock_frames.TakeLocked, self.queue, self.id, lock_s, limit, wait_s, choice
            )
            try:
                stored = await asyncio.shield(answer)
            except asyncio.CancelledError:
                # The caller that would settle the messages was cancelled.
                answer.add_done_callback(partial(_give_back, connection, self.id, self.queue))
                raise
            except (NotConnected, Stopping) as failure:
                # Its answer may be lost: then it holds messages that no client knows.
                await self._give_back_unknown()
                await patience.wait(failure)
            else:
                break
        taken = [Message(each) for each in frames.stored_messages(stored)]
        self.messages += taken
        return taken

    async def _give_back_unknown(self) -> None:
        if self.messages:
            return  # the others are settled by their lookup ids
        with contextlib.suppress(LockLost):
            await self._settle((), lock_frames.GIVE_BACK, "its client did not get the answer")

    async def remove(self, messages: Iterable[Message] | None = None) -> int:
        """Remove some of the messages durably, or all; return their number.

        Raises LockLost when the time of the lock was over before, and OutcomeUnknown when the
        daemon does not answer any more.
        """
        refuse_inside(self._caller, "the removal of locked messages", _ENROLL)
        return await self._settled(messages, lock_frames.REMOVE, "")

    async def reject(self, reason: str = "", messages: Iterable[Message] | None = None) -> int:
        """Remove some of the messages durably, or all, as rejected; return their number.

        Their senders are notified, or they go to a dead-letter queue here: see `Taken.reject`.
        Raises the errors of `remove`.
        """
        refuse_inside(self._caller, "the rejection of locked messages", _ENROLL)
        return await self._settled(messages, lock_frames.REJECT, reason)

    async def give_back(
        self, messages: Iterable[Message] | None = None, *, failed: bool = False, reason: str = ""
    ) -> int:
        """Return some of the messages to their places, or all; return their number.

        `failed`: this counts as an attempt.  Raises LockLost.
        """
        how = lock_frames.FAIL if failed else lock_frames.GIVE_BACK
        return await self._settled(messages, how, reason)

    def lock_for(self, connection: Connection) -> bytes:
        """Return the id of the lock, whatever the connection."""
        return self.id

    def handed_over(self) -> None:
        """Forget the messages: a transaction settles them.

        The list may be in use: a program reads `messages`, enrolls them, and then uses them.
        """
        self.messages = []

    async def _settled(self, messages: Iterable[Message] | None, how: str, reason: str) -> int:
        chosen = self.messages if messages is None else list(messages)
        if messages is not None and not chosen:
            return 0
        lookup_ids = [message.lookup_id for message in chosen]
        count = await self._settle(lookup_ids, how, reason)
        gone = set(lookup_ids)
        self.messages = [each for each in self.messages if each.lookup_id not in gone]
        return count

    async def settle(self, how: str, lookup_ids: Sequence[int] = (), reason: str = "") -> int:
        """Settle messages by their lookup ids, or all of the lock; return their number.

        `how`: "remove", "reject", "give_back" or "fail".  Raises the errors of `remove`.
        """
        refuse_inside(self._caller, "the settlement of locked messages", _ENROLL)
        return await self._settle(lookup_ids, how, reason)

    async def _settle(self, lookup_ids: Sequence[int], how: str, reason: str) -> int:
        arguments: tuple[Any, ...] = (self.id, self.queue, list(lookup_ids), how, reason)
        if how in (lock_frames.REMOVE, lock_frames.REJECT):
            token = os.urandom(16)
            return int(
                await self._caller.change_once(lock_frames.SettleLocked, *arguments, token=token)
            )
        return int(await self._caller.ask(lock_frames.SettleLocked, *arguments))


def _give_back(
    connection: Connection, lock: bytes, queue: str, answer: asyncio.Future[Any]
) -> None:
    """Give back the messages of a take after its caller stopped waiting."""
    if answer.cancelled() or answer.exception() is not None or connection.is_lost:
        return
    if stored := frames.stored_messages(answer.result()):
        lookup_ids = [each.lookup_id for each in stored]
        done = connection.ask(
            lock_frames.SettleLocked, lock, queue, lookup_ids, lock_frames.GIVE_BACK
        )
        done.add_done_callback(asyncio.Future.exception)  # then the end of the lock returns them
