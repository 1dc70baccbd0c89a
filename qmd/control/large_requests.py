"""Requests with many messages: decoded, checked and made into packets in parts.

The next request of the connection begins when the messages are in the open batch, so none
overtakes another.
"""

from __future__ import annotations

import asyncio
from collections.abc import Hashable
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, Protocol

import msgspec

from qmd.bulk.large_send import Sender
from qmd.control.refusals import not_decoded
from qmd.control_protocol import messages as frames
from qmd.control_protocol.once import SendOnce
from qmd.control_protocol.parts import SendOnceParts, SendParts
from qmd.directory.resolver import MustAsk
from qmd.errors import Refusal
from qmd.operations.send_once import Sending, settle

if TYPE_CHECKING:
    from collections.abc import Callable

    from qmd.access.rights import Rights
    from qmd.control.accounts import Account
    from qmd.control.components import Components
    from qmd.control_protocol.messages import NewMessage, Request
    from qmd.directory.resolver import Resolution
    from qmd.operations.transaction import Transaction
    from qmd.queues.local_queue import LocalQueue


class Client(Hashable, Protocol):
    """The connection of a client, which owns its transactions."""

    components: Components
    serial: int
    rights: Rights
    account: Account | None


class Hooks(NamedTuple):
    """The functions of a connection that the execution of a request calls."""

    is_there: Callable[[], bool]
    #: Return a request as it is executed.  Raises Refusal, MustAsk.
    admit: Callable[[Request], Request]
    begun: Callable[[], None]  # the memory of the request is not that of a waiting one any more
    go_on: Callable[[], None]  # later requests may begin


def ignore() -> None:
    """Do nothing when a request begins."""


async def send_in_parts(
    client: Client, request: SendParts | SendOnceParts, hooks: Hooks, *, is_admitted: bool = False
) -> object:
    """Do a request, which may be admitted already; return its answer.

    Raises Refusal, InvalidName, MustAsk, StorageError.
    """
    if is_admitted:
        hooks = hooks._replace(admit=_as_it_is)
    execution = _Execution(client, hooks, request)
    try:
        return await execution.run()
    finally:
        execution.go_on()


class _Execution:
    """The execution of one request."""

    def __init__(self, client: Client, hooks: Hooks, request: SendParts | SendOnceParts) -> None:
        self._client = client
        self._hooks = hooks
        self._request = request
        self._is_under_way = True
        #: The request as it is executed, with the messages of the last part that was admitted.
        self._claimed = self._with([])
        assert client.account is not None
        self._sender = Sender(
            client.account.name, partial(client.account.spend, 0, 0), hooks.is_there, self._admit
        )

    def go_on(self) -> None:
        """Let the later requests of the connection begin, once."""
        if self._is_under_way:
            self._is_under_way = False
            self._hooks.go_on()

    def _with(self, messages: list[NewMessage]) -> frames.Send | SendOnce:
        request = self._request
        if isinstance(request, SendParts):
            return frames.Send(
                request.number, messages, request.token, request.transaction, request.once
            )
        return SendOnce(request.number, messages, request.token, request.fingerprint)

    def _admit(self, messages: list[NewMessage]) -> None:
        claimed = self._hooks.admit(self._with(messages))
        assert isinstance(claimed, frames.Send | SendOnce)
        self._claimed = claimed

    async def run(self) -> object:
        sender = self._client.components.large_sender
        async with sender.line.place(self._sender.account):
            self._hooks.begun()
            try:
                messages = await sender.decode(self._request, self._sender)
            except msgspec.DecodeError as error:
                raise not_decoded(error) from error
            if isinstance(self._request, SendParts) and self._request.transaction:
                return await sender.send_in_transaction(messages, self._sender, self._give)
            if isinstance(self._request, SendOnceParts) or self._request.once:
                return await self._send_once(messages)
            prepared = await sender.prepare(messages, self._sender, self._owner)
            durable = asyncio.get_running_loop().create_future()
            await prepared.send(
                self._check, self._claimed.token, partial(settle, durable), self._owner
            )
            self.go_on()
        return await durable

    @property
    def _owner(self) -> str:
        return self._client.rights.owner

    def _check(self) -> None:
        components = self._client.components
        components.sealed_tokens.check(self._claimed.token, self._client.serial)

    def _give(self, messages: list[NewMessage]) -> list[object]:
        """Give a part of the messages to the transaction."""
        self._admit(messages)
        claimed = self._claimed
        assert isinstance(claimed, frames.Send)
        transactions = self._client.components.transactions
        return transactions.send(claimed.transaction, self._client, claimed.messages)

    async def _send_once(self, messages: list[NewMessage]) -> object:
        if not self._request.token:
            raise no_token()
        client, components = self._client, self._client.components
        self._admit(messages[:1])  # to know the token

        async def prepare() -> Sending:
            prepared = await components.large_sender.prepare(messages, self._sender, self._owner)
            return partial(prepared.send, self._check)

        while True:
            try:
                return await components.once_sender.send_prepared(
                    prepare,
                    self._claimed.token,
                    client.serial,
                    client.rights.shared_token(self._claimed.token),
                    self._owner,
                    getattr(self._request, "fingerprint", b""),
                )
            except MustAsk as ask:
                await ask.answered(components.resolver)


async def commit_in_parts(client: Client, transaction: Transaction, hooks: Hooks) -> object:
    """Commit a transaction with many messages; return their ids.  Raises Refusal, StorageError."""
    components, account = client.components, client.account
    assert account is not None
    sender = components.large_sender
    durable = asyncio.get_running_loop().create_future()
    spend = partial(account.spend, 0, 0)
    try:
        async with sender.line.place(account.name):
            await sender.commit(
                components.transactions,
                transaction,
                Sender(account.name, spend, hooks.is_there, _admit_all),
                partial(settle, durable),
                client.rights.owner,
            )
    finally:
        hooks.go_on()
    return await durable


async def import_in_parts(
    client: Client, queue: LocalQueue, request: frames.Import, hooks: Hooks
) -> object:
    """Import messages that are checked in parts; return the answer.  Raises Refusal."""
    components, account = client.components, client.account
    assert account is not None
    large, importer = components.large_sender, components.importer
    sender = Sender(account.name, partial(account.spend, 0, 0), hooks.is_there, _admit_all)
    durable = asyncio.get_running_loop().create_future()
    try:
        async with large.line.place(account.name):
            async for some in large.parts_of(len(request.messages), sender):
                importer.check(queue, request.messages[some], some.start)
            if components.destinations.find_queue(request.queue) is not queue:
                raise Refusal("no_such_queue", f"{queue.name} was deleted meanwhile")
            components.sealed_tokens.check(request.token, client.serial)
            importer.take_in(
                *(queue, request.messages),
                dry_run=request.dry_run,
                token=request.token,
                done=partial(settle, durable),
                are_checked=True,
            )
    finally:
        hooks.go_on()
    return await durable


def _as_it_is(request: Request) -> Request:
    """Admit a request that was admitted before it was divided."""
    return request


def _admit_all(messages: list[NewMessage]) -> None:
    """Admit messages that were admitted when the transaction got them."""


async def with_answers(
    components: Components, ask: MustAsk, is_open: Callable[[], bool], begin: Callable[[], None]
) -> None:
    """Begin a request with the answers of the directory that it asks for, unless its client leaves.

    Raises Refusal, InvalidName.
    """
    answers: dict[str, Resolution | Refusal] = {}
    while is_open():  # else nothing was done, and no client waits
        try:
            if (answer := await ask.answered(components.resolver)) is not None:
                answers[ask.name] = answer
        except Refusal as refusal:
            answers[ask.name] = refusal
        components.destinations.answers = answers
        try:
            begin()
            return
        except MustAsk as further:
            ask = further
        finally:
            components.destinations.answers = {}


def no_token() -> Refusal:
    """Return the refusal of a message that is to be sent once, without a token."""
    return Refusal(
        "no_token",
        "a message that is to be sent once has no id to recognize its repetitions",
        "Choose one: up to 64 bytes, different for each message.",
    )
