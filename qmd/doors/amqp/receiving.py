"""Messages from queues to clients: taken while there is credit, settled by the client.

    credit ──► take ──► transfer ──► accepted ──► remove ──► (commit) ──► settled
                                     rejected ──► dead-letter queue
                                     released, modified, link or connection ends ──► back in place

A link that receives only settled messages gets each one after the commit that removes it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from cproton import lib

from qmd.client.errors import ClientError
from qmd.control_protocol import doors as door_frames
from qmd.control_protocol import messages as frames
from qmd.doors.amqp import engine
from qmd.doors.amqp.conditions import LIMIT, AmqpFault, condition_of
from qmd.doors.amqp.leaving import NOT_ENCODABLE
from qmd.doors.amqp.resumption import settle_resumed
from qmd.doors.amqp.same_packets import HEAD_BYTES, SamePackets, id_of
from qmd.doors.amqp.served import ServedLink

if TYPE_CHECKING:
    from qmd.doors.amqp.attach_frames import Resumed
    from qmd.doors.amqp.context import Context

TAKE_MAX = 128  # messages in one request: consumers of a queue share it
OUTGOING_BYTES_MAX = 4 * 1024 * 1024  # of a session, that its client does not take yet
LEFT_MAX = 50  # messages that a link leaves to others; a selector has 4,096 characters
CHOOSE_S = 15.0  # of one request for messages that match a selector


class Consumer(ServedLink):
    """A link over which a client receives the messages of a queue."""

    def __init__(
        self, conversation: Context, link: Any, queue: str, *, settles: bool, selector: str = ""
    ) -> None:
        """`settles`: messages are sent settled, so that each is delivered at most once."""
        self._conversation = conversation
        self.link = link  # of proton
        self.queue = queue
        self._pointer = link._impl
        self._session = lib.pn_link_session(self._pointer)
        self._settles = settles
        self._selector = selector
        self._choice = frames.Choice(where=selector) if selector else None
        #: Ids of messages that must not come to this link again, by their lookup ids.
        self._left: dict[int, str] = {}
        self._packets = SamePackets(conversation.control.queue_manager)
        self._is_taking = False
        self._is_over = False
        self._removing = 0  # messages that are being removed before they are sent
        #: The lookup ids and sizes of messages that are not settled, and the beginnings of their
        #: packets, by their deliveries.
        self.unsettled: dict[Any, tuple[int, int, bytes]] = {}

    async def begin(self, resumed: Resumed | None) -> None:
        """Act on the outcomes of messages that the client had received before.

        All others are at their places, so that the client gets them again.
        """
        if resumed is not None and not self._settles:
            await settle_resumed(self._conversation.control, self.queue, resumed.unsettled)

    @property
    def is_settled(self) -> bool:
        return not self._conversation.removals.is_busy

    # Credit.

    def flow(self) -> None:
        """Act on new credit, or on a request to use it up."""
        self.take()
        if lib.pn_link_get_drain(self._pointer) and self._credit > 0:
            self._conversation.spawn(self._drain())

    @property
    def _credit(self) -> int:
        return int(lib.pn_link_credit(self._pointer))

    def take(self) -> None:
        """Take messages, if the client has given credit and takes what is sent."""
        room = min(self._credit - self._removing, TAKE_MAX, self._conversation.unsettled_room)
        if self._is_taking or self._is_over or room <= 0 or self._conversation.is_slow:
            return
        if lib.pn_session_outgoing_bytes(self._session) >= OUTGOING_BYTES_MAX:
            self._conversation.is_held = True
            return
        self._is_taking = True
        try:
            answer = self._ask(room)
        except ClientError as error:
            self._failed(error)
            return
        answer.add_done_callback(self._taken)

    def _ask(self, limit: int, *, waits: bool = True) -> asyncio.Future[Any]:
        control = self._conversation.control
        if self._choice is None:
            return control.ask(frames.Take, self.queue, limit, frames.FOREVER)
        wait_s = CHOOSE_S if waits else frames.NO_WAIT
        return control.ask(frames.TakeChosen, self.queue, self._choice, limit, wait_s)

    def _taken(self, answer: asyncio.Future[Any]) -> None:
        self._is_taking = False
        error = None if answer.cancelled() else answer.exception()
        if answer.cancelled() or self._conversation.is_over:
            return
        if error is not None:
            self._failed(error)
            return
        self._arrived(frames.stored_messages(answer.result()))
        self.take()
        self._conversation.flush()

    def _arrived(self, messages: Sequence[frames.StoredMessage]) -> None:
        room = 0 if self._is_over else max(0, self._credit - self._removing)
        if self._left and (left := [each for each in messages if each.lookup_id in self._left]):
            self.give_back([each.lookup_id for each in left])  # asked for before it was left
            messages = [each for each in messages if each.lookup_id not in self._left]
        if len(messages) > room:  # the client has taken its credit back
            self.give_back([each.lookup_id for each in messages[room:]])
            messages = messages[:room]
        if not messages:
            return
        if self._settles:
            self._removing += len(messages)
            self._conversation.spawn(self._remove_and_send(messages))
        else:
            for each in messages:
                self._send(each)

    def _send(self, stored: frames.StoredMessage) -> None:
        try:
            data = self._packets.encoded(stored)
        except NOT_ENCODABLE as error:
            reason = f"it cannot be read: {error}"
            self._conversation.removals.reject(self, stored.lookup_id, None, reason)
            return
        delivery = engine.send(self._pointer, b"%d" % stored.lookup_id, data)
        if self._settles:
            engine.settle(delivery)
        else:
            self.unsettled[delivery] = stored.lookup_id, len(data), stored.packet[:HEAD_BYTES]
            self._conversation.unsettled_count += 1
            self._conversation.unsettled_bytes += len(data)

    async def _remove_and_send(self, messages: Sequence[frames.StoredMessage]) -> None:
        try:
            ids = [each.lookup_id for each in messages]
            await self._conversation.control.ask(frames.Remove, self.queue, ids)
        except ClientError as error:
            self._failed(error)
            return
        finally:
            self._removing -= len(messages)
        if not self._is_over:
            for each in messages:
                self._send(each)
            self._conversation.flush()

    async def _drain(self) -> None:
        """Answer a request to use up the credit: the queue has nothing for it now."""
        if self._is_taking:
            await self._stop_waiting()
        if not self._is_over and lib.pn_link_get_drain(self._pointer) and not self._removing:
            lib.pn_link_drained(self._pointer)
            self._conversation.flush()

    async def _stop_waiting(self) -> None:
        """Have the request for messages answered at once.

        A search by a selector goes on for a while; messages that it finds later are returned.
        """
        try:
            if self._choice is not None:
                if not self._is_over:
                    answer = await self._ask(self._credit, waits=False)
                    self._arrived(frames.stored_messages(answer))
                return
            await self._conversation.control.ask(door_frames.StopWaiting, self.queue)
        except ClientError:
            return  # the connection has ended, or the queue: the request is answered as well
        await asyncio.sleep(0)  # its answer came first, and its callback has run

    def _failed(self, error: BaseException) -> None:
        """End the link: its queue is gone, or the right to it."""
        self._is_taking = False
        if not self._is_over and not self._conversation.is_over and isinstance(error, ClientError):
            self._end(condition_of(error))

    def _end(self, condition: Any) -> None:
        self.close()
        self.link.condition = condition
        self.link.close()
        self._conversation.flush()

    # Settlement.

    def updated(self, delivery: Any) -> None:
        """Act on the state that the client has given a delivery."""
        known = self.unsettled.get(delivery)
        if known is None:
            return
        state, removals = engine.remote_state(delivery), self._conversation.removals
        if state == engine.ACCEPTED:
            removals.remove(self, self.forget(delivery), delivery)
            return
        settled = bool(engine.is_settled(delivery))
        if state == engine.TRANSACTIONAL:
            self._conversation.transactions.retire(self, delivery, known[0], settled=settled)
        elif state == engine.REJECTED:
            removals.reject(self, self.forget(delivery), delivery, _reason(delivery))
        elif state == engine.MODIFIED and engine.has_failed(delivery):
            if engine.is_undeliverable(delivery):
                self._leave(known[0], known[2])
            removals.fail(self, self.forget(delivery), delivery)
        elif settled or state in (engine.RELEASED, engine.MODIFIED):
            self.give_back([self.forget(delivery)])
            if not settled:
                lib.pn_delivery_update(delivery, state)
            engine.settle(delivery)

    def _leave(self, lookup_id: int, head: bytes) -> None:
        """Leave a message to other receivers, as its client wants it (clause 3.4.5)."""
        if len(self._left) >= LEFT_MAX:
            text = f"a link may leave {LEFT_MAX} messages to others; attach another one"
            self._end(condition_of(AmqpFault(LIMIT, text)))
            return
        self._left[lookup_id] = id_of(head)
        ids = ", ".join(f"'{each}'" for each in self._left.values())
        others = f"qmd.id NOT IN ({ids})"
        where = f"({self._selector}) AND {others}" if self._selector else others
        self._choice = frames.Choice(where=where)

    def forget(self, delivery: Any) -> int:
        """Remove a delivery from those that are not settled; return its lookup id."""
        lookup_id, size, _ = self.unsettled.pop(delivery)
        self._conversation.unsettled_count -= 1
        self._conversation.settled_count += 1
        self._conversation.unsettled_bytes -= size
        return lookup_id

    def give_back(self, lookup_ids: list[int]) -> None:
        """Return messages to their places."""
        self._conversation.removals.give_back(self.queue, lookup_ids)

    def close(self) -> None:
        """Return all messages that are not settled: the link, or its connection, has ended."""
        if self._is_over:
            return
        self._is_over = True
        lookup_ids = sorted(lookup_id for lookup_id, _, _ in self.unsettled.values())
        for delivery in list(self.unsettled):
            self.forget(delivery)
        if lookup_ids:
            self.give_back(lookup_ids)
        if self._is_taking:
            self._conversation.spawn(self._stop_waiting())


def _reason(delivery: Any) -> str:
    """Return the reason of a client that rejects a message."""
    import proton

    condition = proton.Delivery.wrap(delivery).remote.condition
    if condition is None:
        return "rejected by its receiver over AMQP"
    return f"{condition.name}: {condition.description or ''}".rstrip(": ")[:200]
