"""Requests with many messages: prepared in parts, and then one batch.

    decode ──► check, make packets ──► send: one turn, one batch ──► (commit) ──► answer
    (parts, between which other work has its turn)

The last turn assigns the places of the messages, so their order is that of their commits.  Packets
of uniform messages are made from templates (prepared_publication.py), those of all others (express,
signed, to several queues …) one by one (prepared_messages.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from qmd.bulk.message_shapes import NotUniform
from qmd.bulk.prepared_messages import PreparedMessages, changed
from qmd.control_protocol import parts as frames
from qmd.naming.fan_out import Copies
from qmd.operations.delayed import is_delayed

if TYPE_CHECKING:
    from qmd.bulk.directory_answers import DirectoryAnswers
    from qmd.bulk.prepared_publication import PreparedPublication
    from qmd.control_protocol.messages import NewMessage
    from qmd.naming.fan_out import Several
    from qmd.operations.large_removals import LargeRemovals
    from qmd.operations.send import MessageSender
    from qmd.operations.send_checks import SendChecks
    from qmd.operations.transaction import Transaction
    from qmd.operations.transactions import Transactions
    from qmd.runtime.services import Services
    from qmd.runtime.work_parts import Line, WorkParts


#: Packets that are put into the open batch one by one, 5 to 15 µs each.
ONE_BY_ONE_MAX = 512


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

    answers: DirectoryAnswers
    prepared: PreparedMessages | UniformMessages
    parts: WorkParts

    async def send(
        self,
        check: Callable[[], None],
        token: bytes,
        done: Callable[[list[object]], None],
        owner: str,
    ) -> None:
        """Send all of the messages or none, as `MessageSender.send`, after a last `check`.

        All of it is one turn of the loop, unless nothing of it is stored: express messages are sent
        in parts.  Raises Refusal.
        """
        if isinstance(self.prepared, PreparedMessages) and self.prepared.is_express:
            await self.answers.complete(partial(self._begin_parts, self.prepared, check, token))
            await self.prepared.write_in_parts(self.parts, token, done)
            return
        await self.answers.complete(partial(self._send, check, token, done))

    def _begin_parts(
        self, prepared: PreparedMessages, check: Callable[[], None], token: bytes
    ) -> None:
        self._check(check)
        prepared.record(token)

    def _check(self, check: Callable[[], None]) -> None:
        check()
        if not self.prepared.check():
            raise changed()

    def _send(
        self, check: Callable[[], None], token: bytes, done: Callable[[list[object]], None]
    ) -> None:
        self._check(check)
        self.prepared.write(token, done)


@dataclass(slots=True)
class UniformMessages:
    """The messages of a request or a transaction that are alike, ready for one turn."""

    services: Services
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
        if token:
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
        removals: LargeRemovals,
        checks: SendChecks,
        message_sender: MessageSender,
        new_answers: Callable[[], DirectoryAnswers],
        new_publication: Callable[[DirectoryAnswers, str], PreparedPublication],
        new_messages: Callable[..., PreparedMessages],
    ) -> None:
        """`new_publication(answers, transaction)` returns an empty one, and so does
        `new_messages(transaction=..., owner=...)` for messages that are not uniform."""
        self._services = services
        self._parts = parts
        self.line = line
        self._removals = removals
        self._checks = checks
        self._message_sender = message_sender
        self._new_answers = new_answers
        self._new_publication = new_publication
        self._new_messages = new_messages

    async def decode(
        self, request: frames.SendParts | frames.SendOnceParts, sender: Sender
    ) -> list[NewMessage]:
        """Return the messages of a request.  Raises msgspec.DecodeError."""
        messages: list[NewMessage] = []
        async for some in self.parts_of(len(request.messages), sender):
            messages += frames.decode_messages(request.messages[some], some.start)
        return messages

    async def prepare(
        self, messages: list[NewMessage], sender: Sender, owner: str = ""
    ) -> PreparedSend:
        """Check messages, and make their packets; `owner` may cancel those that are delayed.

        Raises Refusal, InvalidName, StorageError.
        """
        answers = self._new_answers()
        publication: PreparedPublication | None = self._new_publication(answers, "")
        numbers: list[object] = []
        ids: list[object] = []
        protected: list[NewMessage] = []
        async for some in self.parts_of(len(messages), sender):
            part = await answers.complete(partial(self._checked, messages[some], sender))
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
        if publication is not None:
            uniform = UniformMessages(self._services, publication, numbers, ids)
            return PreparedSend(answers, uniform, self._parts)
        prepared = self._new_messages(owner=owner)
        async for some in self.parts_of(len(protected), sender):
            await self._compose(prepared, answers, protected[some])
        await self._arrange(prepared, len(protected), sender)
        return PreparedSend(answers, prepared, self._parts)

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
        """Commit a transaction, as `Transactions.commit`, after its packets were made in parts, and
        the acknowledgments of messages that it has received.

        Raises Refusal.
        """
        answers = self._new_answers()
        prepared = None
        transaction.choosing += 1  # it is not idle
        try:
            if transaction.packets:
                prepared = await self._prepare_commit(transaction, answers, sender, owner)
            ends = await self._removals.prepare_commit(transaction, sender.spend, sender.is_there)
        finally:
            transaction.choosing -= 1
        commit = partial(transactions.commit, transaction.id, transaction.owner, done, owner)
        await answers.complete(partial(commit, prepared, ends))

    async def _prepare_commit(
        self, transaction: Transaction, answers: DirectoryAnswers, sender: Sender, owner: str
    ) -> PreparedMessages | UniformMessages:
        """Make the packets of a transaction.  Raises Refusal."""
        publication = self._new_publication(answers, transaction.id.hex())
        messages, numbers = transaction.messages, transaction.numbers
        ids: list[object] = []
        try:
            async for some in self.parts_of(len(messages), sender):
                await self._packets(publication, messages[some], numbers[some])
                ids += self._message_sender.ids(numbers[some])
        except NotUniform:
            pass
        else:
            return UniformMessages(self._services, publication, numbers, ids)
        prepared = self._new_messages(transaction=transaction.id, owner=owner)
        last = sum(not is_delayed(each) for each in messages) - 1
        async for some in self.parts_of(len(messages), sender):
            several = transaction.several[some]
            await self._compose(prepared, answers, messages[some], numbers[some], several, last)
        await self._arrange(prepared, len(messages), sender)
        return prepared

    async def _arrange(self, prepared: PreparedMessages, count: int, sender: Sender) -> None:
        """Arrange many packets in columns, unless nothing of them is stored."""
        if prepared.copies > ONE_BY_ONE_MAX and not prepared.is_express:
            async for some in self.parts_of(count, sender):
                # For the parts of copies, and for acknowledgments.
                await self._services.ids.ensure(prepared.copies_of(some))
                prepared.arrange(some)
        # A copy needs a place, and one for its dead letter if its queue refuses it.
        await self._services.ids.ensure(2 * prepared.copies + prepared.acknowledgments)

    def _checked(self, part: list[NewMessage], sender: Sender) -> list[NewMessage]:
        """Return messages as they are to be sent: signatures are verified, bodies encrypted."""
        sender.admit(part)
        part = self._message_sender.protect(part)
        self._checks.check(part)
        return part

    async def _compose(
        self,
        prepared: PreparedMessages,
        answers: DirectoryAnswers,
        part: list[NewMessage],
        numbers: list[object] | None = None,
        several: list[Several | None] | None = None,
        last: int | None = None,
    ) -> None:
        """Make the packets of a part, with a number for each copy if there are none yet."""
        if numbers is None:
            ways = await answers.complete(partial(self._checks.check, part, is_part=True))
            copies = sum(len(each.routes) if isinstance(each, Copies) else 1 for each in ways)
            await self._services.ids.ensure(2 * copies)  # also of acknowledgments
        else:
            await self._services.ids.ensure(len(part))
        await answers.complete(partial(prepared.add, part, numbers, several, last))

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
