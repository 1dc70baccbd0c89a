"""Transactions: sends and receives that commit together, or not at all.

    begin ─► send, take … ─► commit ─► one batch: rows of what is sent, deletions of what was
                │                      received, the outcome by the transaction's id ─► (commit)
                └──► abort: what was taken is back at its old place, its abort count raised

Until its commit, a transaction is in memory only and belongs to the connection that began it.  It
is aborted when its client dies, when it is idle for too long and when the daemon restarts.  Its
messages get their places in their sequences at the commit, so the order of commits is the order of
delivery.

The client chooses the id.  A client that loses its connection during the commit asks for the
outcome of the id.  The question seals the id: a commit that is still in the buffer of the broken
connection is refused from then on.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Hashable
from functools import partial
from typing import TYPE_CHECKING, Any

import structlog

from protocol.errors import InvalidName
from qmd.access.rights import MARK_BYTES, TRANSACTION_ID_BYTES, bad_transaction_id
from qmd.control_protocol.messages import (
    AUTOMATIC,
    TRANSACTIONAL,
    Choice,
    NewMessage,
    StoredMessage,
)
from qmd.directory.resolver import MustAsk
from qmd.errors import Refusal
from qmd.naming.fan_out import Copies
from qmd.operations.sealed_tokens import ALL_CONNECTIONS
from qmd.operations.transaction import (
    NO_ENDS,
    PreparedEnds,
    PreparedMessages,
    Transaction,
    check_settled,
    check_taken,
    doomed,
    kept_bytes,
    seconds,
    too_much,
)
from qmd.operations.transaction_receipts import check_received, settle_received
from qmd.queues.local_queue import LocalQueue, Reader

if TYPE_CHECKING:
    from qmd.access.rights import Rights
    from qmd.core.retry_policy import RetryPolicy
    from qmd.operations.move import Mover
    from qmd.operations.receive import MessageReceiver
    from qmd.operations.receive_selected import SelectiveReceiver
    from qmd.operations.sealed_tokens import SealedTokens
    from qmd.operations.send import MessageSender
    from qmd.operations.send_checks import SendChecks
    from qmd.runtime.services import Services

log = structlog.get_logger()


class Transactions:
    """The open transactions."""

    def __init__(
        self,
        services: Services,
        mover: Mover,
        selective_receiver: SelectiveReceiver,
        message_receiver: MessageReceiver,
        checks: SendChecks,
        message_sender: MessageSender,
        sealed: SealedTokens,
    ) -> None:
        self._services = services
        self._mover = mover
        self._selective_receiver = selective_receiver
        self._message_receiver = message_receiver
        self._checks = checks
        self._message_sender = message_sender
        self._sealed = sealed
        self._live: dict[bytes, Transaction] = {}
        self.committed_count = 0
        self.aborted_count = 0

    @property
    def live(self) -> list[Transaction]:
        """The transactions that have not ended."""
        return list(self._live.values())

    def begin(self, transaction_id: bytes, owner: Hashable, idle_s: float) -> None:
        """Begin a transaction of the connection `owner`; it may be idle for `idle_s` seconds.

        Raises Refusal.
        """
        limits = self._services.settings.transactions
        if len(transaction_id) not in (TRANSACTION_ID_BYTES, TRANSACTION_ID_BYTES + MARK_BYTES):
            raise bad_transaction_id(transaction_id)
        if transaction_id in self._live or self._sealed.reason(transaction_id) is not None:
            raise Refusal(
                "transaction_exists",
                f"transaction {transaction_id.hex()} was begun before",
                "Use 16 new random bytes for each transaction.",
            )
        if len(self._live) >= limits.live_max:
            raise Refusal(
                "too_many_transactions",
                f"{len(self._live)} transactions are under way; {limits.live_max} are allowed"
                " ([transactions] live_max)",
                "Commit or abort some, or allow more.",
            )
        now, limit_s = self._services.loop.time(), limits.idle_s
        idle_s = min(idle_s, limit_s) if idle_s > 0 else limit_s
        transaction = Transaction(transaction_id, owner, idle_s, now, now)
        self._live[transaction_id] = transaction
        self._watch(transaction)

    def send(
        self, transaction_id: bytes, owner: Hashable, messages: list[NewMessage]
    ) -> list[object]:
        """Check messages that the commit will send; return their ids.

        Raises Refusal.  Then the transaction can only be aborted: its messages are sent together or
        not at all, even if its application ignores the error.
        """
        transaction = self._find_sound(transaction_id, owner)
        try:
            return self._send(transaction, messages)
        except MustAsk:
            raise  # the send begins again after the answer of the directory
        except (Refusal, InvalidName) as refusal:
            transaction.doom = refusal.text if isinstance(refusal, Refusal) else str(refusal)
            raise

    def _send(self, transaction: Transaction, messages: list[NewMessage]) -> list[object]:
        owner = transaction.owner
        limit = self._services.settings.transactions.messages_bytes_max
        size = sum(len(new.body) + len(new.extension) for new in messages)
        if transaction.bytes + size > limit:
            raise Refusal(
                "transaction_too_large",
                f"the messages of a transaction may have {limit} bytes in all"
                f" ([transactions] messages_bytes_max); with these they would have"
                f" {transaction.bytes + size}",
                "Commit more often.",
            )
        memory, kept = self._services.memory.transactions, sum(map(kept_bytes, messages))
        if not memory.allows(transaction, owner, kept):
            raise too_much(memory, owner, kept)
        for new in messages:
            if new.delivery not in (AUTOMATIC, TRANSACTIONAL):
                raise Refusal(
                    "not_in_a_transaction",
                    f"the message to {new.destination} requests another delivery, and messages"
                    " that are sent in a transaction are transactional",
                    "Omit its delivery, or send it outside the transaction.",
                )
        messages = self._message_sender.protect(messages, in_transaction=True)
        chosen = self._checks.check(messages, in_transaction=True, is_part=True)
        numbers = self._message_sender.numbers_of(chosen)
        transaction.messages += messages
        transaction.several += [
            each.several if isinstance(each, Copies) else None for each in chosen
        ]
        transaction.numbers += numbers
        transaction.bytes += size
        transaction.kept_bytes += kept
        memory.hold(transaction, owner, transaction.kept_bytes)
        return self._message_sender.ids(numbers)

    def doom(self, transaction_id: bytes, owner: Hashable, reason: str) -> None:
        """Note that a send was refused before it got here; the transaction can only be aborted.

        Transactions of other connections stay as they are.
        """
        transaction = self._live.get(transaction_id)
        if transaction is not None and transaction.owner is owner:
            transaction.doom = transaction.doom or reason

    def with_many(self, transaction_id: bytes, owner: Hashable, count: int) -> Transaction | None:
        """Return a transaction that can commit and sends `count` packets or more, or acknowledges
        many messages; or None."""
        found = self._live.get(transaction_id)
        if found is None or found.owner is not owner or found.doom:
            return None
        acknowledges = self._message_receiver.acknowledges_many
        is_large = found.packets >= count or any(
            [acknowledges(queue, mine) for queue, mine in found.reader.taken.items()]
        )
        return found if is_large else None

    def is_under_way(self, transaction_id: bytes) -> bool:
        """Return whether the transaction may still commit."""
        return transaction_id in self._live

    def check_owner(self, token: bytes, rights: Rights) -> None:
        """Raise Refusal for the id of an open transaction that another client began.

        A client with other rights has other ids for it, so its question for the outcome would get
        the answer that nothing is known.
        """
        wanted = rights.shown_id(token)
        if rights.are_all or wanted is None:
            return
        for each in self._live.values():
            if each.id[:TRANSACTION_ID_BYTES] == wanted and rights.shown_id(each.id) is None:
                raise Refusal(
                    "transaction_of_another",
                    f"transaction {wanted.hex()} was begun by another client",
                    "Ask with the token that began it.",
                )

    def reader(self, transaction_id: bytes, owner: Hashable) -> Reader:
        """Return the reader that takes messages for the transaction.  Raises Refusal."""
        return self._find_sound(transaction_id, owner).reader

    def take(
        self,
        transaction_id: bytes,
        owner: Hashable,
        queue: LocalQueue,
        limit: int,
        wait_s: float,
        answer: Callable[[list[StoredMessage]], None],
    ) -> None:
        """Take messages within the transaction, as `MessageReceiver.take`.  Raises Refusal."""
        transaction = self._find_sound(transaction_id, owner)

        def taken(messages: list[StoredMessage]) -> None:
            transaction.used_at = self._services.loop.time()
            answer(messages)

        self._message_receiver.take(transaction.reader, queue, limit, wait_s, taken)

    def take_chosen(
        self,
        transaction_id: bytes,
        owner: Hashable,
        queue: LocalQueue,
        choice: Choice,
        limit: int,
        wait_s: float,
    ) -> Coroutine[Any, Any, list[StoredMessage]]:
        """Take chosen messages within the transaction.  Raises Refusal."""
        transaction = self._find_sound(transaction_id, owner)

        async def take() -> list[StoredMessage]:
            transaction.choosing += 1
            try:
                return await self._selective_receiver.take(
                    transaction.reader, queue, choice, limit, wait_s
                )
            finally:
                transaction.choosing -= 1
                transaction.used_at = self._services.loop.time()

        return take()

    async def settle(
        self,
        transaction_id: bytes,
        owner: Hashable,
        queue: LocalQueue,
        lookup_ids: list[int],
        *,
        target: str,
        reason: str,
    ) -> int:
        """Let the commit move received messages to `target`, or reject them if it is "".

        Returns the number of messages.  Raises Refusal.
        """
        transaction = self._find_sound(transaction_id, owner)
        lookup_ids = list(dict.fromkeys(lookup_ids))
        check_taken(transaction, queue, lookup_ids)
        mover = self._mover
        place = await mover.target(queue, target) if target else None
        transaction = self._find(transaction_id, owner)  # it may have ended meanwhile
        check_taken(transaction, queue, lookup_ids)
        if place is not None:
            mover.check(queue, place, [queue.taken[lookup_id] for lookup_id in lookup_ids])
        else:
            self._message_receiver.check_rejectable(queue)
        check_settled(transaction, queue, lookup_ids)
        for lookup_id in lookup_ids:
            transaction.moves.pop((queue, lookup_id), None)
            transaction.rejections.pop((queue, lookup_id), None)
            if place is not None:
                transaction.moves[queue, lookup_id] = place, reason
            else:
                transaction.rejections[queue, lookup_id] = reason
        return len(lookup_ids)

    def commit(
        self,
        transaction_id: bytes,
        owner: Hashable,
        done: Callable[[list[object]], None],
        client: str = "",
        prepared: PreparedMessages | None = None,
        ends: PreparedEnds = NO_ENDS,
    ) -> None:
        """Commit the transaction in one batch; `done(ids of its messages)` when it is durable.

        `client` is the name of the client that may cancel its delayed messages; `prepared` are its
        messages if their packets are made already, and `ends` the acknowledgments of messages that
        it has received.  Raises Refusal: then it is aborted.  Raises MustAsk: then it stays
        open.
        """
        transaction = self._find(transaction_id, owner)
        message_receiver, reader = self._message_receiver, transaction.reader
        if transaction.doom:
            self._abort(transaction, f"a message could not be sent in it: {transaction.doom}")
            raise doomed(transaction)
        message_receiver.stop_waiting(reader)
        message_sender = self._message_sender
        try:
            check_received(transaction, self._mover, message_receiver)
            if prepared is not None and not prepared.check():
                prepared = None  # its messages have changed, and are checked and made anew
            chosen = (
                []
                if prepared
                else self._checks.check(
                    transaction.messages, in_transaction=True, several=transaction.several
                )
            )
        except MustAsk:
            raise  # the commit begins again after the answer of the directory
        except Refusal as refusal:
            self._abort(transaction, f"it could not be committed: {refusal.text}")
            raise
        # No step is refused from here on; all changes go into one batch.
        transaction.is_committing = reader.has_left = True
        batch = self._services.storage.batch
        settle_received(transaction, self._mover, message_receiver, ends)
        committed = partial(self._committed, transaction, done)
        if prepared is not None:
            prepared.write(transaction.id, committed)
        else:
            message_sender.take_over(
                transaction.messages,
                chosen,
                transaction.id,
                committed,
                numbers=transaction.numbers,
                in_transaction=True,
                owner=client,
            )
        assert batch is self._services.storage.batch, "a transaction is in one batch"

    def abort(
        self,
        transaction_id: bytes,
        owner: Hashable,
        reason: str,
        *,
        unread: bool = False,
        policy: RetryPolicy | None = None,
    ) -> int:
        """Abort the transaction; return the number of messages that it had received.

        With `unread`, its application has seen none of them, and their abort counts stay.  `policy`
        replaces the retry policies of their queues.  Raises Refusal.
        """
        transaction = self._find(transaction_id, owner)
        transaction.reader.is_unread = unread
        return self._abort(transaction, reason or "its application aborted it", policy)

    def leave(self, owner: Hashable) -> None:
        """Abort the transactions of a connection that has ended."""
        for transaction in self.live:
            if transaction.owner is owner and not transaction.is_committing:
                self._abort(transaction, "the connection of its application ended")

    def seal(self, token: bytes, asker: int) -> None:
        """Abort a transaction that has not committed, and seal its id: connection `asker` asks for
        its outcome."""
        transaction = self._live.get(token)
        if transaction is not None and not transaction.is_committing:
            self._abort(transaction, "another connection asked for its outcome")
        self._sealed.seal(token, asker, "another connection asked for its outcome before it came")

    def _find(self, transaction_id: bytes, owner: Hashable) -> Transaction:
        transaction = self._live.get(transaction_id)
        if transaction is not None and transaction.owner is owner and not transaction.is_committing:
            transaction.used_at = self._services.loop.time()
            return transaction
        reason = self._sealed.reason(transaction_id)
        if reason is not None:
            raise Refusal(
                "transaction_aborted",
                f"transaction {transaction_id.hex()} was aborted, because {reason}",
                "Begin another one, and repeat its work.",
            )
        raise Refusal(
            "no_such_transaction",
            f"there is no transaction {transaction_id.hex()} on this connection",
            "It has ended, or its connection has; ask for its outcome, and begin another.",
        )

    def _find_sound(self, transaction_id: bytes, owner: Hashable) -> Transaction:
        """Return a transaction that can still commit.  Raises Refusal."""
        transaction = self._find(transaction_id, owner)
        if transaction.doom:
            raise doomed(transaction)
        return transaction

    def _committed(
        self, transaction: Transaction, done: Callable[[list[object]], None], ids: list[object]
    ) -> None:
        self._forget(transaction)
        self.committed_count += 1
        done(ids)

    def _forget(self, transaction: Transaction) -> None:
        """Drop a transaction that has ended."""
        del self._live[transaction.id]
        self._services.timers.cancel(transaction)
        self._services.memory.transactions.hold(transaction, transaction.owner, 0)

    def _abort(
        self, transaction: Transaction, reason: str, policy: RetryPolicy | None = None
    ) -> int:
        self._forget(transaction)
        self.aborted_count += 1
        self._sealed.seal(transaction.id, ALL_CONNECTIONS, reason)
        transaction.reader.has_left = True
        count = self._message_receiver.abort(
            transaction.reader, transaction.id.hex(), reason, policy
        )
        log.info(
            "transaction_aborted",
            transaction=transaction.id.hex(),
            reason=reason,
            received=count,
            sent=len(transaction.messages),
        )
        return count

    def _watch(self, transaction: Transaction) -> None:
        due = transaction.used_at + transaction.idle_s
        self._services.timers.at(due, transaction, self._idle)

    def _idle(self, transaction: Transaction) -> None:
        if transaction.is_committing:
            return
        idle_s = self._services.loop.time() - transaction.used_at
        if idle_s + 1e-6 < transaction.idle_s or self._is_waiting(transaction):
            if self._is_waiting(transaction):
                transaction.used_at = self._services.loop.time()  # a receive that waits is no rest
            self._watch(transaction)
            return
        self._abort(
            transaction,
            f"it was idle for {seconds(idle_s)}, longer than its limit of"
            f" {seconds(transaction.idle_s)}"
            " ([transactions] idle)",
        )

    def _is_waiting(self, transaction: Transaction) -> bool:
        return transaction.choosing > 0 or self._message_receiver.is_waiting(transaction.reader)
