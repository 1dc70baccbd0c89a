"""Transactions, as an application sees them: sends and receives that take effect together.

    async with qm.transaction() as transaction:
        order = await transaction.receive("orders", timeout_s=30)
        await transaction.send("invoices@hostb", invoice(order))

Verbs of `qm` itself take part too when they are called inside the block: see `ambient.py`.  The end
of the context commits.  An error aborts: the messages that the transaction received return to their
queue with a higher abort count.  A send that fails dooms it, even if the error is handled: it can
only abort.  The work is bound to one connection: when that breaks before the commit, nothing was
done, and TransactionAborted is raised; when it breaks during the commit, the queue manager is asked
for the outcome.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any, Unpack

from qmd.client import ambient
from qmd.client.caller import Caller
from qmd.client.choice import chosen
from qmd.client.connection import Connection
from qmd.client.enrollable import Enrollable
from qmd.client.errors import (
    ClientError,
    NotConnected,
    OutcomeUnknown,
    QueueManagerError,
    TransactionAborted,
    TransactionDoomed,
)
from qmd.client.message import Message
from qmd.client.new_message import Body, Properties, new_message
from qmd.client.sent_id import sent_ids
from qmd.client.signing import signed_by
from qmd.client.two_phase import Branch, Branches, Database
from qmd.control_protocol import locks as lock_frames
from qmd.control_protocol import messages as frames
from qmd.control_protocol import transactions as transaction_frames
from qmd.control_protocol.messages import RetryProperties


class Transaction:
    """A transaction made by `QueueManager.transaction`; a context manager.

    Every method raises TransactionAborted when it has ended without a commit, and then all of its
    work can be repeated in another one; after a send that failed every method but `abort` raises
    TransactionDoomed, a subclass of it.
    """

    def __init__(self, qm: Branches, caller: Caller, idle_s: float) -> None:
        self._qm = qm
        self._caller = caller
        self._branches: list[Branch] = []
        self._idle_s = idle_s
        self._connection: Connection | None = None
        self._is_over = False
        self._doom: Exception | None = None  # why the first send failed
        self._was_cancelled = False  # a request was cancelled, and its answer was not seen
        self._block: ambient.Block | None = None
        self.id: bytes = os.urandom(16)
        #: Ids of sent messages, set by the commit.
        self.sent: list[str] = []

    @property
    def is_over(self) -> bool:
        """Return whether it has committed or aborted, or is about to."""
        return self._is_over

    async def begin(self) -> None:
        """Begin the transaction; the context manager does this."""
        patience = self._caller.patience()
        while True:
            connection = await self._caller.connection()
            try:
                await connection.ask(transaction_frames.Begin, self.id, self._idle_s)
            except NotConnected as lost:
                self.id = os.urandom(16)
                await patience.wait(lost)
            else:
                self._connection = connection
                return

    async def send(
        self, destination: str, body: Body = b"", **properties: Unpack[Properties]
    ) -> str:
        """Send one message as part of the transaction; return the id that it will have."""
        self._check()
        with self._dooming():
            message = new_message(destination, body, **properties)
        return (await self.send_many([message]))[0]

    async def send_many(self, messages: Sequence[frames.NewMessage]) -> list[str]:
        """Send messages as part of the transaction, in this order; return their ids."""
        self._check()
        with self._dooming():
            for message in messages:
                self._caller.check_body(message.body)
            caller = self._caller
            signed = await signed_by(caller.signer, caller, messages, in_transaction=True)
            return sent_ids(await self._ask(frames.Send, signed, b"", self.id))

    async def receive(
        self, queue: str, *, timeout_s: float | None = 0.0, where: str = ""
    ) -> Message | None:
        """Receive the first message; None when none came within `timeout_s` (None: no limit).

        `where`: the first one that matches this selector.
        """
        messages = await self.receive_many(queue, 1, timeout_s=timeout_s, where=where)
        return messages[0] if messages else None

    async def receive_many(
        self, queue: str, limit: int, *, timeout_s: float | None = 0.0, where: str = ""
    ) -> list[Message]:
        """Receive the messages that are there, at most `limit`; wait only for the first."""
        if where:
            choice = chosen(where=where)
            return await self.receive_chosen(queue, choice, limit=limit, timeout_s=timeout_s)
        wait_s = frames.FOREVER if timeout_s is None else timeout_s
        result = await self._ask(frames.Take, queue, limit, wait_s, self.id)
        return [Message(stored) for stored in frames.stored_messages(result)]

    async def receive_each(
        self, queue: str, *, timeout_s: float | None = None, where: str = ""
    ) -> AsyncIterator[Message]:
        """Receive one message after the other, until none came for `timeout_s`.

        Each message is received separately: the commit removes only messages that the iteration has
        handed over.
        """
        while message := await self.receive(queue, timeout_s=timeout_s, where=where):
            yield message

    async def move(
        self, queue: str, lookup_ids: Sequence[int], target: str, reason: str = ""
    ) -> None:
        """Move messages that it received to another queue, instead of removing them.

        The target is a queue of this computer.  The first move to a subqueue such as `orders;retry`
        creates it.  The reason is recorded in their history, where `qmd why` shows it.
        """
        await self._ask(transaction_frames.Settle, self.id, queue, list(lookup_ids), target, reason)

    async def reject(self, queue: str, lookup_ids: Sequence[int], reason: str = "") -> None:
        """Reject messages that it received: they are returned to their senders, with the reason."""
        await self._ask(transaction_frames.Settle, self.id, queue, list(lookup_ids), "", reason)

    async def settle(self, messages: Enrollable) -> int:
        """Let the commit remove messages of `take` or `take_locked`; return their number.

        An abort puts them back, and counts it.  They may be moved or rejected in the transaction
        instead, as those that it received.
        """
        self._check()
        assert self._connection is not None
        lock = messages.lock_for(self._connection)
        lookup_ids = [message.lookup_id for message in messages.messages]
        count = await self._ask(lock_frames.Enroll, self.id, messages.queue, lookup_ids, lock)
        messages.handed_over()
        return int(count)

    async def receive_chosen(
        self, queue: str, choice: frames.Choice, *, limit: int = 1, timeout_s: float | None = 0.0
    ) -> list[Message]:
        """Receive messages at any place that match `choice` (see `chosen`)."""
        wait_s = frames.FOREVER if timeout_s is None else timeout_s
        result = await self._ask(frames.TakeChosen, queue, choice, limit, wait_s, self.id)
        return [Message(stored) for stored in frames.stored_messages(result)]

    async def enlist(self, database: Database) -> Any:
        """Return a new connection to the database, as part of the transaction.

        Its work commits or rolls back with the transaction.  Its user must neither commit nor close
        it.  See `qmd.client.two_phase`.
        """
        self._check()
        assert self._connection is not None
        try:
            branch = await Branch.begin(database, self._qm, self._connection, self.id)
        except NotConnected as lost:
            await self._end_branches(commit=False)
            raise self._aborted(lost) from lost
        self._branches.append(branch)
        return branch.connection

    async def commit(self) -> list[str]:
        """Commit the transaction durably; return the ids of the messages that were sent.

        Raises TransactionAborted when none of it was done (TransactionDoomed, when a send in it
        failed), and OutcomeUnknown, with the transaction's id as `token`, when the daemon does not
        answer.
        """
        self._caller.home.check()
        if self._doom is not None:
            await self.abort(f"a message could not be sent in it: {self._doom}"[:200])
            raise self._doomed(self._doom) from self._doom
        self._check()
        if self._was_cancelled:
            # It may have received a message that its application does not know: do not remove that.
            reason = "one of its requests was cancelled before its answer came"
            await self.abort(reason)
            raise TransactionAborted(
                f"nothing of the transaction was done: {reason}", "repeat its work"
            )
        for branch in self._branches:
            try:
                await branch.prepare()
            except BaseException as error:
                await self.abort(f"{branch.database.name} could not prepare: {error}"[:200])
                raise
        # Once it is requested it continues, even if the caller that waits for it is cancelled.
        return await asyncio.shield(asyncio.ensure_future(self._commit()))

    async def _commit(self) -> list[str]:
        self._is_over = True
        assert self._connection is not None
        try:
            try:
                self.sent = sent_ids(await self._connection.ask(transaction_frames.Commit, self.id))
            except NotConnected as lost:
                outcome = await self._caller.outcome(self.id)
                if outcome is None:
                    raise self._aborted(lost) from lost
                self.sent = sent_ids(outcome)
        except (OutcomeUnknown, asyncio.CancelledError):
            for branch in self._branches:
                await branch.leave()
            raise
        except BaseException:
            await self._end_branches(commit=False)
            raise
        await self._end_branches(commit=True)
        return self.sent

    async def abort(
        self, reason: str = "", *, unread: bool = False, retry: RetryProperties | None = None
    ) -> None:
        """Abort the transaction.  `reason` is for the log and the history of its messages.

        `unread`: the application has not looked at the messages that it received, so this was no
        attempt: their abort counts stay unchanged.  `retry` replaces the retry policies of their
        queues.
        """
        if self._is_over:
            return
        self._is_over = True
        if self._caller.home.is_elsewhere:
            return  # it, and the databases in it, belong to the process that began it
        if self._connection is not None and not self._connection.is_lost:
            # A connection that ends aborts it as well.
            with contextlib.suppress(NotConnected, QueueManagerError):
                await self._connection.ask(transaction_frames.Abort, self.id, reason, unread, retry)
        await self._end_branches(commit=False)

    async def __aenter__(self) -> Transaction:
        await self.begin()
        self._enter_block()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: object
    ) -> None:
        self._leave_block()
        if kind is not None:
            await self.abort((str(error) or kind.__name__)[:200])
        elif not self._is_over:
            await self.commit()

    # ----------------------------------------------------------------------------------------

    def _enter_block(self) -> None:
        self._block = ambient.enter(self, self._caller)

    def _leave_block(self) -> None:
        if self._block is not None:
            ambient.leave(self._block)

    def _check(self) -> None:
        self._caller.home.check()
        if self._doom is not None:
            raise self._doomed(self._doom) from self._doom
        if self._is_over or self._connection is None:
            raise ClientError(
                "the transaction has ended, or has not begun",
                "begin a new transaction",
                code="transaction_over",
            )

    @contextlib.contextmanager
    def _dooming(self) -> Iterator[None]:
        """Doom the transaction when a send fails within the block, as the daemon does."""
        try:
            yield
        except Exception as failure:
            if not self._is_over:
                self._doom = self._doom or failure
            raise

    def _doomed(self, first: Exception) -> TransactionDoomed:
        reason = first.text if isinstance(first, ClientError) else str(first)
        return TransactionDoomed(
            f"a message could not be sent in this transaction: {reason}",
            "repeat its work in a new transaction, without that message or with a corrected one",
            code=TransactionDoomed.code,
        )

    async def _ask(self, verb: Any, *arguments: object) -> Any:
        self._check()
        assert self._connection is not None
        try:
            return await self._connection.ask(verb, *arguments)
        except NotConnected as lost:
            self._is_over = True
            await self._end_branches(commit=False)
            raise self._aborted(lost) from lost
        except TransactionAborted:
            self._is_over = True
            await self._end_branches(commit=False)
            raise
        except asyncio.CancelledError:
            self._was_cancelled = True
            raise

    async def _end_branches(self, *, commit: bool) -> None:
        branches, self._branches = self._branches, []
        for branch in branches:
            await branch.end(self._qm, self.id, commit=commit)

    def _aborted(self, lost: NotConnected) -> TransactionAborted:
        return TransactionAborted(
            f"nothing of the transaction was done: {lost.text}", "repeat its work"
        )
