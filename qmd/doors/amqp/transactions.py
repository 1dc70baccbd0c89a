"""Transactions of a client (AMQP 1.0, part 4): one of AMQP is one of the queue manager.

declare ──► begin      sends with its id ──► part of it      accepted with its id ──► enroll
discharge ──► commit, after the messages before it          discharge (fail) ──► abort
"""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, Any

import proton
from cproton import lib

from qmd.client.errors import ClientError
from qmd.control_protocol import locks as lock_frames
from qmd.control_protocol import transactions as frames
from qmd.doors.amqp import engine
from qmd.doors.amqp import sections as parts
from qmd.doors.amqp.conditions import (
    DECODE,
    LIMIT,
    ROLLED_BACK,
    UNKNOWN_TRANSACTION,
    AmqpFault,
    condition_of,
    is_no_outcome,
)
from qmd.doors.amqp.sections import BadMessage
from qmd.doors.amqp.served import RequestLink

if TYPE_CHECKING:
    from qmd.doors.amqp.context import Context
    from qmd.doors.amqp.receiving import Consumer

DECLARE, DISCHARGE = 0x31, 0x32
NAMES = {"amqp:declare:list": DECLARE, "amqp:discharge:list": DISCHARGE}
NONE, OTHER = 0, 1
ACCEPTED, REJECTED = 0x24, 0x25
OUTCOMES = {"amqp:accepted:list": ACCEPTED, "amqp:rejected:list": REJECTED}
CREDIT, REQUEST_BYTES = 100, 4096
LIVE_MAX = 100  # of one client


class Transactions:
    """The transactions of one client that are not discharged."""

    def __init__(self, conversation: Context) -> None:
        self._conversation = conversation
        self._live: dict[bytes, Exception | None] = {}  # with the first error in each
        self._enrolling: dict[bytes, set[asyncio.Task[None]]] = {}

    async def declare(self) -> bytes:
        """Begin a transaction; return its id.  Raises ClientError, AmqpFault."""
        if len(self._live) >= LIVE_MAX:
            raise AmqpFault(LIMIT, f"a connection may have {LIVE_MAX} transactions under way")
        transaction = os.urandom(16)
        self._live[transaction] = None
        try:
            await self._conversation.control.request(frames.Begin, transaction)
        except ClientError:
            self._live.pop(transaction, None)
            raise
        return transaction

    async def discharge(self, transaction: bytes, *, fail: bool) -> None:
        """Commit a transaction, or abort it.  Raises ClientError, AmqpFault."""
        if transaction not in self._live:
            raise _unknown(transaction)
        await self._conversation.outbox.barrier()
        # A received message that cannot become part of it must make the commit fail.
        while enrolling := self._enrolling.pop(transaction, None):
            await asyncio.wait(enrolling)
        error = self._live.pop(transaction, None)
        control = self._conversation.control
        if fail or error is not None:
            await control.ask(frames.Abort, transaction, "its client rolled it back")
        else:
            await control.ask(frames.Commit, transaction)
        if error is not None and not fail:
            raise AmqpFault(ROLLED_BACK, f"a part of the transaction was refused: {error}")

    def abort_all(self) -> None:
        """Abort all transactions: the link of their coordinator has ended."""
        for transaction in list(self._live):
            self._conversation.spawn(self._abort(transaction))

    async def _abort(self, transaction: bytes) -> None:
        try:
            await self.discharge(transaction, fail=True)
        except (ClientError, AmqpFault):
            return  # it has ended

    # Parts of transactions.

    def of_delivery(self, delivery: Any) -> bytes:
        """Return the transaction of a message that a client sends.  Raises AmqpFault."""
        return self._state(delivery)[0]

    def spoil(self, transaction: bytes, error: Exception) -> None:
        """Note an error in a transaction: it can only be aborted."""
        if self._live.get(transaction, error) is None:
            self._live[transaction] = error

    def accept(self, delivery: Any, transaction: bytes) -> None:
        """Settle a message that a client has sent as part of a transaction."""
        outcome = proton.Described(proton.ulong(ACCEPTED), [])
        engine.update(delivery, engine.TRANSACTIONAL, data=[transaction, outcome])
        engine.settle(delivery)

    def retire(self, consumer: Consumer, delivery: Any, lookup_id: int, *, settled: bool) -> None:
        """Make a message that a client has received part of a transaction."""
        try:
            transaction, outcome = self._state(delivery)
        except AmqpFault as failure:
            consumer.forget(delivery)
            consumer.give_back([lookup_id])
            engine.reject(delivery, condition_of(failure))
            return
        if outcome == NONE and not settled:
            return  # the client has only stated to which transaction it will belong
        consumer.forget(delivery)
        if not settled:
            data = [transaction, proton.Described(proton.ulong(outcome), [])]
            engine.update(delivery, engine.TRANSACTIONAL, data=data)
        engine.settle(delivery)
        if outcome not in (ACCEPTED, REJECTED):
            consumer.give_back([lookup_id])
            return
        work = self._enroll(transaction, consumer.queue, lookup_id, rejected=outcome == REJECTED)
        self._enrolling.setdefault(transaction, set()).add(self._conversation.spawn(work))

    async def _enroll(
        self, transaction: bytes, queue: str, lookup_id: int, *, rejected: bool
    ) -> None:
        control = self._conversation.control
        try:
            answers = [control.ask(lock_frames.Enroll, transaction, queue, [lookup_id])]
            if rejected:
                reason = "rejected by its receiver over AMQP"
                answers.append(
                    control.ask(frames.Settle, transaction, queue, [lookup_id], "", reason)
                )
            for answer in answers:
                await answer
        except ClientError as error:
            self.spoil(transaction, error)
        self._conversation.more_room()

    def _state(self, delivery: Any) -> tuple[bytes, int]:
        """Return the transaction and the outcome in the state of a delivery.  Raises AmqpFault."""
        try:
            fields = proton.Delivery.wrap(delivery).remote.data or [b""]
        except TypeError:  # a map with a key that is a list, a map or a described value
            fields = [b""]
        transaction = _binary(fields[0]) if isinstance(fields, list) and fields else b""
        if transaction not in self._live:
            raise _unknown(transaction)
        outcome: Any = fields[1] if len(fields) > 1 else None
        code: Any = getattr(outcome, "descriptor", NONE)
        return transaction, int(code) if isinstance(code, int) else OUTCOMES.get(str(code), OTHER)


class Coordinator(RequestLink):
    """The link over which a client begins and ends its transactions."""

    def __init__(self, conversation: Context, link: Any) -> None:
        super().__init__(conversation, link, credit=CREDIT, request_bytes=REQUEST_BYTES)

    async def process(self, delivery: Any, data: bytes) -> None:
        declared = b""
        failure: Exception | None = None
        try:
            code, fields = _request(data)
            if code == DECLARE:
                declared = await self._conversation.transactions.declare()
            else:
                fail = bool(fields[1]) if len(fields) > 1 else False
                transaction = _binary(fields[0]) if fields else b""
                await self._conversation.transactions.discharge(transaction, fail=fail)
        except BadMessage as error:
            failure = AmqpFault(DECODE, str(error))
        except (ClientError, AmqpFault) as error:
            failure = error
        if self._conversation.is_over or self.is_freed:
            return
        if failure is not None and is_no_outcome(failure):
            self._conversation.fail(failure)
            return
        self._settle(delivery, declared, failure)
        if lib.pn_link_credit(self._pointer) < CREDIT // 2:
            lib.pn_link_flow(self._pointer, CREDIT // 2)
        self._conversation.flush()

    def _settle(self, delivery: Any, declared: bytes, failure: Exception | None) -> None:
        if failure is not None:
            engine.reject(delivery, condition_of(failure))
        elif declared:
            engine.update(delivery, engine.DECLARED, data=[declared])
            engine.settle(delivery)
        else:
            engine.accept(delivery)

    def close(self) -> None:
        """Abort the transactions that the client has not discharged."""
        if not self._conversation.is_over:
            self._conversation.transactions.abort_all()


def _request(data: bytes) -> tuple[int, list[Any]]:
    """Return the code and the fields of a request.  Raises BadMessage."""
    for section in parts.split(data):
        if section.code == parts.VALUE:
            found = parts.decode(data[section.value : section.end], described=True)
            code: Any = getattr(found, "descriptor", None)
            number = NAMES.get(str(code), code)
            fields = getattr(found, "value", None)
            if number in (DECLARE, DISCHARGE) and isinstance(fields, list):
                return int(number), fields
    raise BadMessage("the request is neither a declare nor a discharge")


def _binary(given: Any) -> bytes:
    return bytes(given) if isinstance(given, bytes | memoryview) else b""


def _unknown(transaction: bytes) -> AmqpFault:
    return AmqpFault(
        UNKNOWN_TRANSACTION, f"there is no transaction {transaction.hex()} on this connection"
    )
