"""Outcomes of requests, for clients that lost the answers."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from storage.tables import outcomes as outcome_rows

if TYPE_CHECKING:
    from qmd.operations.sealed_tokens import SealedTokens
    from qmd.operations.send import MessageSender
    from qmd.operations.transactions import Transactions
    from qmd.runtime.services import Services


class RequestOutcomes:
    """The answers to requests that had a token."""

    def __init__(
        self,
        services: Services,
        message_sender: MessageSender,
        sealed: SealedTokens,
        transactions: Transactions,
    ) -> None:
        self._services = services
        self._message_sender = message_sender
        self._sealed = sealed
        self._transactions = transactions
        self._at_work: dict[bytes, asyncio.Event] = {}

    async def outcome(self, token: bytes, asker: int = 0, shared: bytes = b"") -> object:
        """Return the answer to an earlier request with this token; None: it was not done.

        None is a promise: the request will be refused if it still arrives over a connection that
        is older than that of the `asker`, the number of a connection.
        """
        self._transactions.seal(token, asker)
        answer = await self.find(token, shared)
        if answer is not None:
            self._sealed.unseal(token)
        return answer

    async def find(self, token: bytes, shared: bytes = b"") -> object:
        """Return the answer as `outcome`, without the promise.

        `shared` is the token that the request had if a version without rights executed it.
        """
        if token in self._at_work:
            await self._at_work[token].wait()
        found: asyncio.Future[bytes | None] = self._services.loop.create_future()
        # After the open batch, which may have this request.
        self._services.storage.batch.read_after(
            partial(outcome_rows.find, token=token, shared=shared), partial(_settle, found)
        )
        result = await found
        if result is None:
            return None
        answer = msgspec.msgpack.decode(result)
        if isinstance(answer, list):  # the numbers of messages that were sent
            return self._message_sender.ids(answer)
        return answer

    @contextlib.asynccontextmanager
    async def at_work(self, token: bytes) -> AsyncIterator[object]:
        """Delay questions for the outcome of a request that takes several turns of the event loop.

        Yields None, or the answer if the same request was in progress and is done now.
        """
        if not token:
            yield None
            return
        if token in self._at_work and (before := await self.find(token)) is not None:
            yield before
            return
        done = self._at_work[token] = asyncio.Event()
        try:
            yield None
        finally:
            self._at_work.pop(token, None)
            done.set()


def _settle(found: asyncio.Future[bytes | None], result: bytes | None) -> None:
    if not found.done():  # its caller may have been cancelled
        found.set_result(result)
