"""The queue manager, as an application on the same computer sees it.

    async with connect("/run/qmd/qmd.sock") as qm:
        await qm.send("orders@hostb", b"10 screws", label="order 17")
        message = await qm.receive("replies", timeout_s=30)

A queue is named in any spelling: `orders`, `orders@hostb`, a path name, a format name.  A verb that
changes something returns after the change is on disk.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any, Unpack

from msgspec import structs

from qmd.client.access import AccessControl
from qmd.client.address import Address, address_of
from qmd.client.administration import Administration, Facts
from qmd.client.ambient import joined, refuse_inside
from qmd.client.caller import Caller
from qmd.client.choice import chosen
from qmd.client.directory import Directory
from qmd.client.errors import BadRequest, NotHandedOver
from qmd.client.locked import Locked
from qmd.client.message import Message
from qmd.client.new_message import Body, Properties, new_message
from qmd.client.pieces import Moved
from qmd.client.pipeline import Pipeline
from qmd.client.queue import Access, Place, Queue, Share
from qmd.client.receiver import Receiver, Taken
from qmd.client.sender import WINDOW_MESSAGES, Sender
from qmd.client.sent_id import sent_ids
from qmd.client.signing import Signer, signed_by
from qmd.client.topics import Topics
from qmd.client.transaction import Transaction
from qmd.control_protocol import locks as lock_frames
from qmd.control_protocol import messages as frames
from qmd.control_protocol import transactions as transaction_frames
from qmd.control_protocol.doors import Note
from qmd.control_protocol.messages import Choice

RECONNECT_S = 30.0
RECEIVE_BATCH_MESSAGES = 256
PEEK_BATCH_MESSAGES = 256

__all__ = ["Moved", "QueueManager", "connect"]


def connect(
    path: str | os.PathLike[str],
    *,
    reconnect_s: float = RECONNECT_S,
    token_file: str | os.PathLike[str] | None = None,
    ca_file: str | os.PathLike[str] | None = None,
    client_certificate: str | os.PathLike[str] | None = None,
    client_key: str | os.PathLike[str] | None = None,
) -> QueueManager:
    """Return a client of the daemon at the control socket `path`: `async with connect(...) as qm`.

    For a daemon on another host, `path` is "tls://host:port"; the token is then read from
    `token_file` (or the file that QMD_TOKEN_FILE names, or QMD_TOKEN), and the certificate of the
    daemon must be signed by an authority of `ca_file` (QMD_CA_FILE; else of the system).  Raises
    NotConnected for files that cannot be read.  A lost connection is opened again automatically;
    after `reconnect_s` seconds of attempts NotConnected (or OutcomeUnknown) is raised.
    """
    address = address_of(
        path,
        token_file=token_file,
        ca_file=ca_file,
        client_certificate=client_certificate,
        client_key=client_key,
    )
    return QueueManager(address, reconnect_s=reconnect_s)


class QueueManager(Administration):
    """A client of the queue manager, made by `connect`; any number of tasks may use it at once.

    Inside `async with qm.transaction()` sends and receives are part of the transaction; verbs that
    change messages and cannot be part of one raise BadRequest there (see `no_transaction`).
    Peeking and the administration of queues are allowed there, and take effect at once.

    Every method can raise NotConnected and a QueueManagerError; those that change something can
    raise OutcomeUnknown too.
    """

    def __init__(self, path: Path | Address, *, reconnect_s: float) -> None:
        super().__init__(Caller(path, reconnect_s=reconnect_s))
        self._receiver = Receiver(self._caller)
        #: Fixed ranges of queues and staged sends, for data pipelines.
        self.pipeline = Pipeline(self._caller)
        #: Public queues, distribution lists, computers, and the meaning of names.
        self.directory = Directory(self._caller)
        #: Names of which messages go to the queues of matching subscriptions.
        self.topics = Topics(self._caller)
        #: The rights of users, groups and tokens on queues and on the host.
        self.access = AccessControl(self._caller)

    async def __aenter__(self) -> QueueManager:
        await self._caller.open()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        if self._caller.home.is_elsewhere:
            return  # the connection, and messages not read yet, belong to the other process
        try:
            await self._receiver.settle()
        finally:
            await self._caller.close()
        if kind is None and self.unread:
            raise NotHandedOver(self.unread)

    @property
    def caller(self) -> Caller:
        """Return the requests of this client, for code that makes requests of its own."""
        return self._caller

    @property
    def name(self) -> str:
        """Return the computer's name in the canonical names of its queues."""
        return self._caller.name

    @property
    def id(self) -> str:
        """Return the GUID of the queue manager."""
        return self._caller.queue_manager

    @property
    def message_bytes_max(self) -> int:
        """Return the size of the largest body that the queue manager accepts."""
        return self._caller.message_bytes_max

    # -- sending -----------------------------------------------------------------------------

    async def send(
        self,
        destination: str,
        body: Body = b"",
        *,
        retry: bool = True,
        token: bytes = b"",
        **properties: Unpack[Properties],
    ) -> str:
        """Send one message and return its id once it is on disk (express: once it is accepted).

        `destination`: a queue, or several, separated by commas: then each gets a copy, or none
        does, and the id is a `SentId`, which has the ids of the copies.
        `retry`: when the connection is lost, find out whether the message was sent, and send it if
        not.  `token`, 16 random bytes that the caller chooses, does the same across a restart of
        the application: `outcome(token)` is the list of ids, or None.  Inside a transaction the
        message is sent at its commit; `retry` is ignored, and a token is refused.
        """
        if (transaction := self._joined_by_send(token)) is not None:
            return await transaction.send(destination, body, **properties)
        ids = await self.send_many(
            [new_message(destination, body, **properties)], retry=retry, token=token
        )
        return ids[0]

    async def send_many(
        self, messages: Sequence[frames.NewMessage], *, retry: bool = True, token: bytes = b""
    ) -> list[str]:
        """Send all of the messages (see `new_message`) or none, in this order; return their ids."""
        if (transaction := self._joined_by_send(token)) is not None:
            return await transaction.send_many(messages)
        for message in messages:
            self._caller.check_body(message.body)
        messages = await signed_by(self._caller.signer, self._caller, messages)
        if retry and not token:
            token = os.urandom(16)
        if token:
            ids = await self._caller.change_once(frames.Send, list(messages), token=token)
        else:
            ids = await self._caller.change(frames.Send, list(messages), safe_to_retry=False)
        return sent_ids(ids)

    async def sign(self, message: frames.NewMessage, signer: Signer) -> frames.NewMessage:
        """Return a message (see `new_message`) with its signature, for `send_many`.

        Inside a transaction it must be sent in that transaction.
        """
        in_transaction = self._joined_by_send(b"") is not None
        return await signer.sign(self._caller, message, in_transaction=in_transaction)

    def sign_all(self, signer: Signer | None) -> None:
        """Sign all messages that this client sends from now on, but not staged ones; None: none."""
        self._caller.signer = signer

    def sender(self, destination: str, *, window: int = WINDOW_MESSAGES) -> Sender:
        """Return a sender to one destination: `async with qm.sender("orders") as sender`.

        At most `window` messages are unconfirmed at a time.
        """
        refuse_inside(self._caller, "sender", "send by `send_many`")
        return Sender(self._caller, destination, window)

    def transaction(self, *, idle_s: float = 0.0) -> Transaction:
        """Return a transaction for sends and receives: `async with qm.transaction()`.

        They take effect together or not at all.  The transaction is aborted when it is idle for
        `idle_s` seconds (0: the default of the daemon).  Inside another transaction it is
        independent of that one: it commits or aborts separately.
        """
        return Transaction(self, self._caller, idle_s)

    async def list_transactions(self) -> list[Facts]:
        """Return the transactions under way, of all clients."""
        return await self._list(transaction_frames.ListTransactions)

    async def list_branches(self) -> list[Facts]:
        """Return databases that may not know the outcome of a transaction, with that outcome."""
        return await self._list(transaction_frames.ListBranches)

    async def forget_branch(self, transaction: bytes, resource: str) -> bool:
        """Remove the record of a branch after its database has carried out the decision.

        Returns whether there was such a record.
        """
        return bool(await self._caller.ask(transaction_frames.ForgetBranch, transaction, resource))

    async def send_once(
        self,
        destination: str,
        body: Body = b"",
        *,
        deduplication_id: bytes | str,
        **properties: Unpack[Properties],
    ) -> str:
        """Send a message unless one was sent before with this id, which the application chooses.

        The id, up to 64 bytes, is remembered on disk for `[transactions] outcome_age`; a repetition
        within that time returns the id of the message that was sent first.
        """
        refuse_inside(self._caller, "send_once", "send by `send`")
        token = deduplication_id.encode() if isinstance(deduplication_id, str) else deduplication_id
        if len(token) > frames.TOKEN_BYTES_MAX:
            raise BadRequest(
                f"a deduplication id has at most {frames.TOKEN_BYTES_MAX} bytes; this one has"
                f" {len(token)}",
                "use a digest of it",
                code="bad_deduplication_id",
            )
        message = new_message(destination, body, **properties)
        (message,) = await signed_by(self._caller.signer, self._caller, [message])
        # It is done only once even if it is requested twice: it may be repeated like a query.
        ids = await self._caller.ask(frames.Send, [message], token, b"", True)
        return sent_ids(ids)[0]

    async def outcome(self, token: bytes) -> Any:
        """Return the result of the request that carried `token`, or None when it was not done."""
        return await self._caller.outcome(token)

    # -- receiving ---------------------------------------------------------------------------

    async def receive(
        self, queue: str, *, timeout_s: float | None = 0.0, where: str = ""
    ) -> Message | None:
        """Receive the first message; None when none came within `timeout_s`.

        `where`: the first one that matches this selector.  A `timeout_s` of None sets no time
        limit.  The message is removed from the queue, durably, when this returns; inside a
        transaction, when that commits.
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
        if (transaction := joined(self._caller)) is not None:
            return await transaction.receive_many(queue, limit, timeout_s=timeout_s)
        return await self._receiver.receive(queue, limit, timeout_s)

    def receive_each(
        self,
        queue: str,
        *,
        timeout_s: float | None = None,
        batch: int = RECEIVE_BATCH_MESSAGES,
        prefetch: bool = True,
        where: str = "",
    ) -> AsyncIterator[Message]:
        """Receive one message after the other, until none came for `timeout_s`.

        They are removed in batches, and the next batch is taken ahead (`prefetch`).  When the
        iteration ends early, the rest of the batch is kept for the next receive from this queue by
        the same name; closing the client with such a rest raises NotHandedOver, which has these
        messages.  Inside a transaction each message is received separately as part of it.
        """
        if (transaction := joined(self._caller)) is not None:
            return transaction.receive_each(queue, timeout_s=timeout_s, where=where)
        return self._receiver.receive_each(queue, timeout_s, batch, prefetch, where)

    async def receive_chosen(
        self,
        queue: str,
        choice: Choice,
        *,
        limit: int = 1,
        timeout_s: float | None = 0.0,
    ) -> list[Message]:
        """Receive the messages that match `choice`, at any place in the queue; wait for the first.

        See `chosen`: by lookup id, id, correlation id, label and so on.
        """
        if (transaction := joined(self._caller)) is not None:
            return await transaction.receive_chosen(queue, choice, limit=limit, timeout_s=timeout_s)
        return await self._receiver.receive_chosen(queue, choice, limit, timeout_s)

    async def request(
        self,
        destination: str,
        body: Body = b"",
        *,
        response_queue: str,
        timeout_s: float | None = 30.0,
        **properties: Any,
    ) -> Message | None:
        """Send a message and receive its answer: the message that has its id as the correlation id.

        `response_queue` is a queue of this computer; other messages in it stay there.  Returns None
        when no answer came within `timeout_s` (None: no time limit); a later answer can still be
        received from that queue.  `properties` are those of `send`.
        """
        refuse_inside(
            self._caller,
            "request",
            "the request is sent when the transaction commits: receive its answer after that",
        )
        message_id = await self.send(destination, body, response_queue=response_queue, **properties)
        answer = await self.receive_chosen(
            response_queue, chosen(correlation_ids=[message_id]), timeout_s=timeout_s
        )
        return answer[0] if answer else None

    async def reply(self, message: Message, body: Body = b"", **properties: Any) -> str:
        """Answer a message: send to its response queue, with its id as the correlation id.

        Raises ValueError for a message that names no response queue.
        """
        if message.response_queue is None:
            raise ValueError(f"message {message.id} names no response queue to answer to")
        return await self.send(
            message.response_queue, body, correlation_id=message.id, **properties
        )

    def open(self, queue: str, access: Access = "receive", share: Share = "all") -> Queue:
        """Return a queue opened for one kind of use: `async with qm.open("orders") as orders`.

        `access`: "send", "receive" (and peek), "peek", or "admin" (and peek); any other use of it
        is refused in this process.  `share`: "deny_receive" prevents other receivers from using the
        queue while it is open; raises AccessDenied when there already is another receiver.
        """
        return Queue(self, self._caller, queue, access, share)

    async def look(self, queue: str, which: Place, lookup_id: int = 0) -> Message | None:
        """Return the message at a lookup id, beside it, or at an end of the queue, or None.

        `which` is "this", "next" or "previous" of the lookup id, or "first" or "last" of the queue.
        A message that an application has taken is returned too.
        """
        result = await self._caller.ask(frames.Look, queue, which, lookup_id)
        found = frames.stored_messages(result)
        return Message(found[0]) if found else None

    @property
    def unread(self) -> list[Message]:
        """Return messages that were removed from their queue and not handed over yet."""
        return self._receiver.unread()

    async def take(
        self,
        queue: str,
        limit: int = 1,
        *,
        timeout_s: float | None = 0.0,
        choice: Choice | None = None,
        where: str = "",
    ) -> Taken:
        """Take messages without removing them; call `remove` on the result when the work is done.

        `choice`: only messages that match it, at any place in the queue (see `chosen`); `where`:
        only those that match this selector.  Other
        receivers do not see taken messages.  They return to their place with `give_back`, and when
        the connection ends: the same messages may then be taken again.
        """
        refuse_inside(self._caller, "take", "receive by `receive`")
        if where:
            choice = structs.replace(choice or Choice(), where=where)
        return await self._receiver.take(queue, limit, timeout_s, choice)

    async def take_locked(
        self,
        queue: str,
        limit: int = 1,
        *,
        lock_s: float,
        timeout_s: float | None = 0.0,
        choice: Choice | None = None,
        where: str = "",
        lock: bytes = b"",
    ) -> Locked:
        """Take messages as `take` does, for `lock_s` seconds, whatever happens to the connection.

        The result settles them; another client of the same user does so with `locked`, by the id of
        the lock.  The id can be chosen: 16 random bytes.
        """
        locked = Locked(self._caller, queue, lock or os.urandom(16))
        if where:
            choice = structs.replace(choice or Choice(), where=where)
        await locked.take(limit, lock_s=lock_s, timeout_s=timeout_s, choice=choice)
        return locked

    def locked(self, lock: bytes, queue: str) -> Locked:
        """Return a lock that this client or another one of the same user has taken.

        Its `messages` are not known here: settling without messages settles all of the lock.
        """
        return Locked(self._caller, queue, lock)

    async def list_locks(self) -> list[Facts]:
        """Return the locks of this user; of all users for a client with all rights."""
        return await self._list(lock_frames.ListLocks)

    # -- peeking -----------------------------------------------------------------------------

    async def peek(
        self,
        queue: str,
        start: int = 0,
        limit: int = 1,
        *,
        timeout_s: float | None = 0.0,
        where: str = "",
    ) -> list[Message]:
        """Peek at messages in order, from lookup id `start` on; wait only for the first.

        `where`: only those that match this selector.
        """
        wait_s = frames.FOREVER if timeout_s is None else timeout_s
        result = await self._caller.ask(frames.Peek, queue, start, limit, wait_s, where)
        return [Message(stored) for stored in frames.stored_messages(result)]

    async def peek_each(
        self, queue: str, start: int = 0, *, where: str = ""
    ) -> AsyncIterator[Message]:
        """Peek at all messages of a queue, from lookup id `start` on."""
        while messages := await self.peek(queue, start, PEEK_BATCH_MESSAGES, where=where):
            for message in messages:
                yield message
            start = messages[-1].lookup_id + 1

    async def note(self, queue: str, lookup_ids: Sequence[int], text: str) -> int:
        """Record a text in the history of messages, taken ones too; return how many there were.

        `qmd why` shows it, with this client.  The text has at most 1000 characters.
        """
        return int(await self._caller.ask(Note, queue, list(lookup_ids), text))

    # -- internal methods --------------------------------------------------------------------

    def _joined_by_send(self, token: bytes) -> Transaction | None:
        if token:
            refuse_inside(
                self._caller,
                "a send with a token",
                "omit the token: the transaction's id takes its place",
            )
        return joined(self._caller)
