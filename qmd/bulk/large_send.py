"""Requests with many messages: prepared in parts, and then one batch.

    decode ──► check, make packets ──► send: one turn, one batch ──► (commit) ──► answer
    (parts, between which other work has its turn)

The last turn assigns the places of the messages, so their order is that of their commits.  Requests
with unusual messages (express, signed, to several queues …) are checked in parts too, with their
signatures and encryption; the last turn makes the packets, by `MessageSender`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from qmd.bulk.message_shapes import NotUniform
from qmd.control_protocol import parts as frames

if TYPE_CHECKING:
    from qmd.bulk.directory_answers import DirectoryAnswers
    from qmd.bulk.prepared_publication import PreparedPublication
    from qmd.control_protocol.messages import NewMessage
    from qmd.operations.send import MessageSender
    from qmd.operations.send_checks import SendChecks
    from qmd.operations.transaction import Transaction
    from qmd.operations.transactions import Transactions
    from qmd.runtime.services import Services
    from qmd.runtime.work_parts import Line, WorkParts


class Sender(NamedTuple):
    """The client that sends the messages of a request."""

    account: Hashable
    spend: Callable[[float], None]  # counts CPU time, in seconds
    is_there: Callable[[], bool]  # whether it waits for the answer
    #: Return a part of the request as it is executed.  Raises Refusal, MustAsk.
    admit: Callable[[list[NewMessage]], None]


@dataclass(slots=True)
class PreparedSend:
    """A request that is ready to be sent in one turn of the event loop."""

    services: Services
    message_sender: MessageSender
    answers: DirectoryAnswers
    messages: list[NewMessage]
    publication: PreparedPublication | None  # None: the messages are not uniform
    numbers: list[int]
    ids: list[object]

    async def send(
        self,
        check: Callable[[], None],
        token: bytes,
        done: Callable[[list[object]], None],
        owner: str,
    ) -> None:
        """Send all of the messages or none, as `MessageSender.send`, after a last `check`.

        All of it is one turn of the loop.  Raises Refusal.
        """
        await self.answers.complete(partial(self._send, check, token, done, owner))

    def _send(
        self,
        check: Callable[[], None],
        token: bytes,
        done: Callable[[list[object]], None],
        owner: str,
    ) -> None:
        check()
        try:
            if self.publication is None:
                raise NotUniform
            self.publication.take_over()
        except NotUniform:
            self.message_sender.send_protected(self.messages, token, done, owner)
            return
        batch = self.services.storage.batch
        if token:
            result = msgspec.msgpack.encode(self.numbers)
            batch.record_outcome(token, result, self.services.clock.now_s)
        batch.when_durable(partial(done, self.ids))


@dataclass(slots=True)
class PreparedCommit:
    """The messages of a transaction, ready for its commit."""

    services: Services
    answers: DirectoryAnswers
    publication: PreparedPublication
    numbers: list[object]  # of the transaction, also of messages that it gets later
    ids: list[object]

    def check(self) -> bool:
        """Return whether they can be sent as they were made.  Raises Refusal."""
        if len(self.ids) != len(self.numbers):
            return False  # the transaction has got more messages meanwhile
        try:
            self.publication.check()
        except NotUniform:
            return False
        return True

    def write(self, token: bytes, done: Callable[[list[object]], None]) -> None:
        """Add them to the open batch, and the outcome `token`; `done(ids)` when it is durable."""
        self.publication.write()
        batch = self.services.storage.batch
        result = msgspec.msgpack.encode(self.numbers)
        batch.record_outcome(token, result, self.services.clock.now_s)
        batch.when_durable(partial(done, self.ids))


class LargeSender:
    """Sender of requests with many messages: one request is prepared at a time."""

    def __init__(
        self,
        services: Services,
        parts: WorkParts,
        line: Line,
        checks: SendChecks,
        message_sender: MessageSender,
        new_answers: Callable[[], DirectoryAnswers],
        new_publication: Callable[[DirectoryAnswers, str], PreparedPublication],
    ) -> None:
        """`new_publication(answers, transaction)` returns an empty one."""
        self._services = services
        self._parts = parts
        self.line = line
        self._checks = checks
        self._message_sender = message_sender
        self._new_answers = new_answers
        self._new_publication = new_publication

    async def decode(
        self, request: frames.SendParts | frames.SendOnceParts, sender: Sender
    ) -> list[NewMessage]:
        """Return the messages of a request.  Raises msgspec.DecodeError."""
        messages: list[NewMessage] = []
        async for some in self.parts_of(len(request.messages), sender):
            messages += frames.decode_messages(request.messages[some], some.start)
        return messages

    async def prepare(self, messages: list[NewMessage], sender: Sender) -> PreparedSend:
        """Check messages, and make their packets as far as possible.

        Raises Refusal, InvalidName, StorageError.
        """
        answers = self._new_answers()
        publication: PreparedPublication | None = self._new_publication(answers, "")
        numbers: list[int] = []
        ids: list[object] = []
        protected: list[NewMessage] = []
        async for some in self.parts_of(len(messages), sender):
            part = messages[some]
            await answers.complete(partial(self._check, part, sender))
            part = await answers.complete(partial(self._message_sender.protect, part))
            protected += part
            if publication is None:
                continue
            try:
                more = await self._packets(publication, part)
            except NotUniform:
                publication = None
            else:
                numbers += more
                ids += self._message_sender.ids(more)
        return PreparedSend(
            self._services, self._message_sender, answers, protected, publication, numbers, ids
        )

    async def send_in_transaction(
        self,
        messages: list[NewMessage],
        sender: Sender,
        send: Callable[[list[NewMessage]], list[object]],
    ) -> list[object]:
        """Give messages to a transaction in parts, each with `send(messages)`; return their ids.

        A part that is refused dooms the transaction.  Raises Refusal, InvalidName.
        """
        answers = self._new_answers()
        ids: list[object] = []
        async for some in self.parts_of(len(messages), sender):
            ids += await answers.complete(partial(send, messages[some]))
        return ids

    async def commit(
        self,
        transactions: Transactions,
        transaction: Transaction,
        sender: Sender,
        done: Callable[[list[object]], None],
        owner: str,
    ) -> None:
        """Commit a transaction, as `Transactions.commit`, after its packets were made in parts.

        Raises Refusal.
        """
        answers = self._new_answers()
        transaction.choosing += 1  # it is not idle
        try:
            prepared = await self._prepare_commit(transaction, answers, sender)
        finally:
            transaction.choosing -= 1
        await answers.complete(
            partial(transactions.commit, transaction.id, transaction.owner, done, owner, prepared)
        )

    async def _prepare_commit(
        self, transaction: Transaction, answers: DirectoryAnswers, sender: Sender
    ) -> PreparedCommit | None:
        """Make the packets of a transaction; None: they are not uniform."""
        publication = self._new_publication(answers, transaction.id.hex())
        messages, numbers = transaction.messages, transaction.numbers
        ids: list[object] = []
        try:
            async for some in self.parts_of(len(messages), sender):
                await self._packets(publication, messages[some], numbers[some])
                ids += self._message_sender.ids(numbers[some])
        except NotUniform:
            return None
        return PreparedCommit(self._services, answers, publication, numbers, ids)

    def _check(self, part: list[NewMessage], sender: Sender) -> None:
        sender.admit(part)
        self._checks.check(part)

    async def _packets(
        self,
        publication: PreparedPublication,
        part: list[NewMessage],
        numbers: list[object] | None = None,
    ) -> Sequence[int]:
        """Make the packets of a part; return the numbers of its messages.  Raises NotUniform."""
        if any(new.signature or new.privacy_level for new in part):
            raise NotUniform
        known = None if numbers is None else [each for each in numbers if isinstance(each, int)]
        if known is not None and len(known) < len(part):
            raise NotUniform  # a message to several queues has several numbers
        rows = [msgspec.structs.astuple(new) for new in part]
        return await publication.prepare_some(rows, known)

    async def parts_of(self, count: int, sender: Sender) -> AsyncIterator[slice]:
        """Iterate over `count` items in slices, each in a turn of its own, while the client waits.

        Raises CancelledError when it has left.
        """
        async for some in self._parts.of(count, sender.spend):
            if not sender.is_there():
                raise asyncio.CancelledError  # nothing was sent, and no client waits
            yield some
