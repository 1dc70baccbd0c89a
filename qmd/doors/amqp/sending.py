"""Links over which clients send messages to queues: each is acknowledged after its commit.

delivery ──► message of MSMQ ──► outbox ──► (commit) ──► accepted
                                    └──────────────────► rejected
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import msgspec
import proton
from cproton import lib

from qmd.control_protocol import messages as frames
from qmd.doors.amqp import engine
from qmd.doors.amqp.arriving import arrived
from qmd.doors.amqp.conditions import (
    DECODE,
    INVALID,
    LIMIT,
    OVER_CREDIT,
    PRECONDITION,
    TOO_LARGE,
    AmqpFault,
    condition_of,
    is_no_outcome,
)
from qmd.doors.amqp.outbox import BATCH_MESSAGES, Item
from qmd.doors.amqp.resumption import LinkRecord, delivery_of, link_id
from qmd.doors.amqp.same_heads import SameHeads
from qmd.doors.amqp.sections import BadMessage
from qmd.doors.amqp.served import ServedLink

if TYPE_CHECKING:
    from qmd.doors.amqp.attach_frames import Resumed
    from qmd.doors.amqp.context import Context


class Producer(ServedLink):
    """A link over which a client sends messages to a queue, or to the queues that they name."""

    def __init__(self, conversation: Context, link: Any, address: str) -> None:
        self._conversation = conversation
        self.link = link  # of proton
        self.address = address
        self._pointer = link._impl
        self._partial = bytearray()
        self._heads = SameHeads()
        self._under_way = 0
        self._window = conversation.limits.credit
        self._is_refused = False
        #: With the receiver settle mode "second": accepted, and to be settled by the client.
        self._accepted: set[Any] = set()
        self._settles_second = link.remote_rcv_settle_mode == proton.Link.RCV_SECOND
        self._is_recorded = link.remote_snd_settle_mode != proton.Link.SND_SETTLED
        self.record = LinkRecord(
            link_id(conversation.container, link.name), 2 * self._window + BATCH_MESSAGES
        )

    async def begin(self, resumed: Resumed | None) -> None:
        if not self._is_recorded:
            return
        if resumed is None:
            await self.record.begin(self._conversation.control)
            return
        await self.record.resume(self._conversation.control, resumed.unsettled)
        if self._settles_second:  # else they are settled here, and the client sends them again
            self.accepted_tags = self.record.committed_tags

    @property
    def is_settled(self) -> bool:
        return not self._under_way

    def start(self) -> None:
        """Give the client its first credit."""
        lib.pn_link_flow(self._pointer, self._window)

    def delivered(self, delivery: Any) -> None:
        """Process bytes of a delivery, or its end."""
        if self._is_refused:
            return
        if not engine.is_readable(delivery):
            # It was processed completely: with frames of other links between its own, it has
            # several events in one read.  Another delivery of the link is the current one by now.
            if delivery in self._accepted and engine.is_settled(delivery):
                self._accepted.discard(delivery)
                engine.settle(delivery)
                self._under_way -= 1
                self.restore_credit()
            return
        if engine.is_aborted(delivery):
            self._drop_partial()
            engine.settle(delivery)
            self.restore_credit()
            return
        data = engine.read(self._pointer, delivery)
        limit = self._conversation.limits.message_bytes
        if len(self._partial) + len(data) > limit:
            text = f"a message may have {limit} bytes"
            self.refuse(AmqpFault(TOO_LARGE, text))
        elif engine.is_partial(delivery):
            self._begin(data)
        else:
            if self._partial:
                data = bytes(self._partial) + data
                self._drop_partial()
            engine.advance(self._pointer)
            self._complete(delivery, data)

    def _begin(self, data: bytes) -> None:
        """Keep the first part of a message; the parts of all links have a limit together."""
        limits = self._conversation.limits
        self._partial += data
        self._conversation.partial_bytes += len(data)
        limit = max(limits.waiting_bytes, limits.message_bytes)
        if self._conversation.partial_bytes > limit:
            text = f"the incomplete messages of a connection may have {limit} bytes together"
            self.refuse(AmqpFault(LIMIT, text))

    def _drop_partial(self) -> None:
        self._conversation.partial_bytes -= len(self._partial)
        self._partial.clear()

    def close(self) -> None:
        """Take no more messages: the link has ended."""
        self._is_refused = True
        self._drop_partial()

    def refuse(self, failure: AmqpFault) -> None:
        """End the link, because its client does not keep the protocol or a limit."""
        self._is_refused = True
        self._drop_partial()
        self.link.condition = condition_of(failure)
        self.link.close()

    def _complete(self, delivery: Any, data: bytes) -> None:
        if self._under_way >= self._window:
            self.refuse(AmqpFault(OVER_CREDIT, f"more than {self._window} messages came at once"))
            return
        settled = bool(engine.is_settled(delivery))
        if self.record.is_resumed and self._is_known(delivery, data, settled=settled):
            return
        self._under_way += 1
        item = Item(self, None if settled else delivery, None, len(data))  # type: ignore[arg-type]
        try:
            self._prepare(item, delivery, data, settled=settled)
        except (BadMessage, AmqpFault) as error:
            item.error = AmqpFault(DECODE, str(error)) if isinstance(error, BadMessage) else error
        if settled:
            engine.settle(delivery)
        if item.error is None and not self._was_committed(item):
            self._conversation.outbox.add(item)
        else:
            self.finished(item)
            self.restore_credit()

    def _is_known(self, delivery: Any, data: bytes, *, settled: bool) -> bool:
        """Answer a delivery that the client resumes, if it needs no commit any more."""
        tag = engine.tag_of(delivery)
        if settled and not data:  # the client settles what was accepted before
            self.record.was_committed(tag, None)
            engine.settle(delivery)
        elif self._settles_second:
            if not self.record.was_committed(tag, None):
                return False
            engine.accept(delivery)
        else:
            return False
        self.restore_credit()
        return True

    def _was_committed(self, item: Item) -> bool:
        """Return whether a message that the client sends again is committed."""
        if not (self.record.is_resumed and item.recorded):
            return False
        return self.record.was_committed(engine.tag_of(item.delivery), item.recorded)

    def _prepare(self, item: Item, delivery: Any, data: bytes, *, settled: bool) -> None:
        """Set the message of an item.  Raises BadMessage, AmqpFault."""
        message, found = self._heads.find(data, settled=settled), self._heads.last
        if message is None or found is None:
            found = arrived(data, self.address, settled=settled, now_ms=int(time.time() * 1000))
            self._heads.keep(data, found, settled=settled)
            message = found.message
        item.message = message
        if not self.address:
            if not found.to:
                raise AmqpFault(INVALID, "neither the link nor the message names a queue")
            item.message = msgspec.structs.replace(message, destination=found.to)
        item.token = found.once
        if self._is_recorded and not settled:
            item.recorded = delivery_of(engine.tag_of(delivery), data, found.bare)
        state = engine.remote_state(delivery)
        if state == engine.TRANSACTIONAL:
            item.transaction = self._conversation.transactions.of_delivery(delivery)
            if item.message.delivery == frames.EXPRESS:
                raise AmqpFault(PRECONDITION, "an express message cannot be part of a transaction")
            if item.token:
                raise AmqpFault(
                    PRECONDITION, "a message with x-opt-msmq-once cannot be part of one"
                )

    def finished(self, item: Item) -> None:
        """Settle a delivery: it was committed, or refused."""
        self._under_way -= 1
        if self._conversation.is_over:
            return
        if item.error is not None and is_no_outcome(item.error):
            self._conversation.fail(item.error)
            return
        delivery = None if self.is_freed else item.delivery
        if self.is_freed and item.delivery is not None and item.transaction and item.error:
            self._conversation.transactions.spoil(item.transaction, item.error)
        if delivery is not None:
            if item.error is not None:
                if item.transaction:
                    self._conversation.transactions.spoil(item.transaction, item.error)
                engine.reject(delivery, condition_of(item.error))
            elif item.transaction:
                self._conversation.transactions.accept(delivery, item.transaction)
            elif self._settles_second:
                lib.pn_delivery_update(delivery, engine.ACCEPTED)
                self._accepted.add(delivery)
                self._under_way += 1
            else:
                engine.accept(delivery)
        elif item.error is not None:
            self._conversation.dropped(item, condition_of(item.error))

    def restore_credit(self) -> None:
        """Give the client credit for further messages, in large steps."""
        if self._conversation.is_over or self.is_freed:
            return
        left = lib.pn_link_credit(self._pointer) + self._under_way
        if left <= self._window // 2 and not self._is_refused:
            lib.pn_link_flow(self._pointer, self._window - left)
