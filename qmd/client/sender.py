"""Sending many messages: in batches, several under way, confirmed in order.

    send() ──► waiting ──► one Send request ──► confirmed
               at most `window` messages in all ─┘

A message leaves at once while nothing is under way; under load the next batch gathers while earlier
ones are written to disk.  Each batch waits until the one before it is settled before it is
confirmed, and, when the connection was lost, before it is sent again: this keeps the order through
every failure.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from typing import NamedTuple, Unpack

from qmd.client.ambient import refuse_inside
from qmd.client.caller import Caller
from qmd.client.connection import Connection
from qmd.client.errors import NotConnected, Stopping
from qmd.client.new_message import Body, Properties, new_message
from qmd.client.sent_id import sent_ids
from qmd.client.signing import signed_by
from qmd.control_protocol import messages as frames

BATCH_MESSAGES_MAX = 128
BATCH_BYTES_MAX = 4 * 1024 * 1024  # a larger message is a batch of its own
WINDOW_MESSAGES = 1024
WINDOW_BYTES_MAX = 32 * 1024 * 1024


class _Unsent(NamedTuple):
    message: frames.NewMessage
    size: int  # bytes of body and extension
    confirmed: asyncio.Future[str]


class Sender:
    """A sender made by `QueueManager.sender`; a context manager that waits for all messages.

    A refusal concerns all messages of its batch and ends the sender: messages that wait after it
    are not sent, and `send` and the end of the context raise the same error.  When the context is
    left with an error, waiting messages are not sent either.
    """

    def __init__(self, caller: Caller, destination: str, window: int) -> None:
        self._caller = caller
        self._destination = destination
        self._window = window
        self._loop = asyncio.get_running_loop()
        self._connection: Connection | None = None  # it carries all batches under way
        self._waiting: deque[_Unsent] = deque()
        self._unconfirmed = 0
        self._unconfirmed_bytes = 0
        self._room = asyncio.Event()
        self._batches_under_way = 0
        self._last_batch: asyncio.Task[None] | None = None
        self._flush_is_due = False
        self._failure: Exception | None = None

    async def send(self, body: Body = b"", **properties: Unpack[Properties]) -> asyncio.Future[str]:
        """Hand over one message; the future gives its id once it is on disk.

        Waits while too many messages are unconfirmed.  The future need not be awaited: the end of
        the context raises the error, if there is one.
        """
        refuse_inside(self._caller, "a sender", "send by `send_many`")
        self._caller.home.check()
        message = new_message(self._destination, body, **properties)
        self._caller.check_body(message.body)
        if self._caller.signer is not None:
            (message,) = await signed_by(self._caller.signer, self._caller, [message])
        size = len(message.body) + len(message.extension)
        while self._failure is None and self._is_full():
            self._room.clear()
            await self._room.wait()
        if self._failure is not None:
            raise self._failure
        unsent = _Unsent(message, size, self._loop.create_future())
        self._waiting.append(unsent)
        self._unconfirmed += 1
        self._unconfirmed_bytes += size
        if not self._flush_is_due:
            self._flush_is_due = True
            self._loop.call_soon(self._flush)
        return unsent.confirmed

    async def flush(self) -> None:
        """Wait until everything handed over so far is confirmed.

        Raises the error of a failed send.
        """
        self._caller.home.check()
        self._flush()
        while self._batches_under_way:
            assert self._last_batch is not None
            await asyncio.wait([self._last_batch])
        if self._failure is not None:
            raise self._failure

    async def __aenter__(self) -> Sender:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        if kind is None:
            await self.flush()
            return
        if self._caller.home.is_elsewhere:
            return
        waiting, self._waiting = self._waiting, deque()
        for unsent in waiting:
            unsent.confirmed.cancel()
        if self._last_batch is not None:
            await asyncio.wait([self._last_batch])

    # ----------------------------------------------------------------------------------------

    def _is_full(self) -> bool:
        return self._unconfirmed >= self._window or self._unconfirmed_bytes >= WINDOW_BYTES_MAX

    def _flush(self) -> None:
        """Start the batches that are due."""
        self._flush_is_due = False
        if self._batches_under_way == 0:
            self._connection = self._caller.live_connection
        elif self._connection is None or self._connection.is_lost:
            return  # batches under way go one by one, in order; then sending resumes in parallel
        while self._waiting and (
            self._batches_under_way == 0 or len(self._waiting) >= BATCH_MESSAGES_MAX
        ):
            self._batches_under_way += 1
            batch, token = self._next_batch(), os.urandom(16)
            answer = self._ask([unsent.message for unsent in batch], token)
            self._last_batch = self._loop.create_task(
                self._deliver(batch, token, answer, self._last_batch)
            )
        if self._connection is not None:
            self._connection.write_now()

    def _next_batch(self) -> list[_Unsent]:
        batch: list[_Unsent] = []
        size = 0
        while self._waiting and len(batch) < BATCH_MESSAGES_MAX:
            size += self._waiting[0].size
            if batch and size > BATCH_BYTES_MAX:
                break
            batch.append(self._waiting.popleft())
        return batch

    def _ask(
        self, messages: list[frames.NewMessage], token: bytes
    ) -> asyncio.Future[list[str | list[str]]] | None:
        """Send a batch; return the future of its ids, None if there is no connection for it."""
        if self._connection is None:
            return None
        try:
            return self._connection.ask(frames.Send, messages, token)
        except Exception as failure:  # it was not sent: `_deliver` handles that
            answer: asyncio.Future[list[str | list[str]]] = self._loop.create_future()
            answer.set_exception(failure)
            return answer

    async def _deliver(
        self,
        batch: list[_Unsent],
        token: bytes,
        answer: asyncio.Future[list[str | list[str]]] | None,
        before: asyncio.Task[None] | None,
    ) -> None:
        ids: list[str | list[str]] | None = None
        try:
            try:
                if answer is not None:
                    ids = await answer
            except (NotConnected, Stopping):
                pass  # done or not: the outcome is requested below
            finally:
                if before is not None and not before.done():
                    await asyncio.wait([before])
            if ids is None and self._failure is None:
                send = self._caller.change_once if answer is None else self._caller.change_again
                messages = [unsent.message for unsent in batch]
                ids = await send(frames.Send, messages, token=token)
            elif ids is None:
                ids = await self._caller.outcome(token)  # after a failure it is not sent again
        except Exception as failure:  # every failure must reach the callers that wait
            self._fail(failure)
        self._settle(batch, ids)
        self._batches_under_way -= 1
        self._flush()

    def _settle(self, batch: list[_Unsent], ids: list[str | list[str]] | None) -> None:
        """Resolve the futures of a batch: with the ids, or with the failure when there are none."""
        confirmed_ids = [] if ids is None else sent_ids(ids)
        for index, (_, size, confirmed) in enumerate(batch):
            self._unconfirmed -= 1
            self._unconfirmed_bytes -= size
            if confirmed.done():
                continue  # its caller was cancelled
            if ids is not None:
                confirmed.set_result(confirmed_ids[index])
            else:
                assert self._failure is not None
                confirmed.set_exception(self._failure)
                confirmed.exception()  # `flush` raises it too: no warning is needed
        self._room.set()

    def _fail(self, failure: Exception) -> None:
        if self._failure is None:
            self._failure = failure
        waiting, self._waiting = self._waiting, deque()
        self._settle(list(waiting), None)
