"""Sending of messages at most once, however often a client repeats its request."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from qmd.access.rights import MARK_BYTES
from qmd.errors import Refusal
from qmd.operations.once_limit import OnceLimit

if TYPE_CHECKING:
    from qmd.control_protocol.messages import NewMessage
    from qmd.operations.request_outcomes import RequestOutcomes
    from qmd.operations.sealed_tokens import SealedTokens
    from qmd.operations.send import MessageSender
    from qmd.runtime.services import Services


Done = Callable[[list[object]], None]
#: Sends the messages of a request, in one turn: (token, done, owner).
Sending = Callable[[bytes, Done, str], Awaitable[None]]


class OnceSender:
    """Sender of messages that are sent once for each token."""

    def __init__(
        self,
        services: Services,
        message_sender: MessageSender,
        request_outcomes: RequestOutcomes,
        sealed: SealedTokens,
    ) -> None:
        self._services = services
        self._message_sender = message_sender
        self._request_outcomes = request_outcomes
        self._sealed = sealed
        self._limit = OnceLimit(services)
        self._sending: dict[bytes, asyncio.Future[list[object]]] = {}

    async def send(
        self,
        messages: list[NewMessage],
        token: bytes,
        connection: int,
        shared: bytes = b"",
        owner: str = "",
        fingerprint: bytes = b"",
    ) -> object:
        """Send the messages as `send_prepared`.  Raises Refusal, MustAsk."""

        async def prepare() -> Sending:
            return send

        async def send(token: bytes, done: Done, owner: str) -> None:
            self._message_sender.send(messages, token, done, owner)

        return await self.send_prepared(prepare, token, connection, shared, owner, fingerprint)

    async def send_prepared(
        self,
        prepare: Callable[[], Awaitable[Sending]],
        token: bytes,
        connection: int,
        shared: bytes = b"",
        owner: str = "",
        fingerprint: bytes = b"",
    ) -> object:
        """Send messages unless an earlier request with this token did so; return their ids.

        `prepare()` returns the function that sends them, in one turn of the event loop if anything
        of them is stored.
        `owner` is the client that may cancel delayed messages.  `shared` is the token that it had
        if a version without rights executed it.  The fingerprint of the request is stored in the
        same commit.

        Raises Refusal, also for another fingerprint than that of the earlier request; MustAsk.
        """
        while (other := self._sending.get(token)) is not None:
            await asyncio.wait([other])
        done: asyncio.Future[list[object]] = self._services.loop.create_future()
        self._sending[token] = done
        try:
            before = await self._request_outcomes.find(token, shared)
            if before is not None:
                if fingerprint:
                    await self._check_fingerprint(token, fingerprint)
                return before
            self._limit.check(owner)
            send = await prepare()
            self._sealed.check(token, connection)
            await send(token, partial(settle, done), owner)
            self._limit.count(owner)
            if fingerprint:
                # In the same turn of the event loop: in the batch of messages that are stored.
                self._services.storage.batch.record_outcome(
                    _key_of_fingerprint(token),
                    msgspec.msgpack.encode(fingerprint),
                    self._services.clock.now_s,
                )
            return await asyncio.shield(done)
        finally:
            done.cancel()
            del self._sending[token]

    async def _check_fingerprint(self, token: bytes, fingerprint: bytes) -> None:
        stored = await self._request_outcomes.find(_key_of_fingerprint(token))
        if stored is not None and stored != fingerprint:
            raise Refusal(
                "idempotency_key_reused",
                "another request was executed under this key",
                "Choose a new key for each request; a repetition must be the same request.",
            )


def _key_of_fingerprint(token: bytes) -> bytes:
    """Return the token under which the fingerprint of a request is stored.

    It ends as the token itself, with the mark of the client: both are outcomes of this client.
    """
    return hashlib.sha256(b"fingerprint\0" + token).digest() + token[-MARK_BYTES:]


def settle(done: asyncio.Future[list[object]], ids: list[object]) -> None:
    """Settle a future with the ids of durable messages."""
    if not done.done():  # the caller may have been cancelled
        done.set_result(ids)
