"""Queues of a queue manager of another make, to which a world's applications send.

It takes each message once and in its order, and tells the sender so: late, for some messages before
others, or with the session after next; and it hangs up in the middle.  All of that is allowed
([MS-MQQB] 3.1.5.5, 3.1.5.8, 3.1.7.2.2).  It forgets nothing and never dies, so that what it took
has been received.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any

from tests.process import wire
from tests.process.wire import Message, Session
from tests.simulation.foreign import Foreigner, Lost, Talk, Wire, greet, sent_at, welcome
from tests.simulation.loop import sleeping
from tests.simulation.oracle import Oracle, marked
from tests.simulation.world import EPOCH_S, PORT, World

NAME = "taker"
ADDRESS = "10.0.0.98"
_FINAL_ACK = 0x2  # a bit of a TransactionHeader: its sender wants to hear that it was received
SAYING_S = 0.3  # how long it keeps an acknowledgment to itself, on average
PAUSE_S = 0.05
HANGS_UP_S = 5.0
SILENCE_S = 20.0  # after what it has said; then nobody is there any more
CALLS_S = 1.0  # after so long without a session it opens one, if it has something to say


@dataclass(slots=True)
class _Sender:
    """A queue manager that sends here, as far as it is known."""

    address: str
    accepted: dict[str, tuple[int, int]] = field(default_factory=dict)  # of each queue's stream
    to_say: list[tuple[float, bytes]] = field(default_factory=list)  # (not before, packet)
    sessions: int = 0  # that are open
    is_called: bool = False


class StrangeQueue(Foreigner):
    """All the queues of that name there.  `odd`: how often it holds back what it might say."""

    def __init__(self, world: World, oracle: Oracle, odd: float) -> None:
        super().__init__(world, NAME, ADDRESS, random.Random(f"strange queue {world.seed}"), odd)
        self._oracle = oracle
        self._senders: dict[bytes, _Sender] = {}
        self._known: set[tuple[bytes, int]] = set()  # plain messages that came
        self._ids = 0

    @property
    def unfinished(self) -> int:
        """How much it has not said yet."""
        return sum(len(sender.to_say) for sender in self._senders.values())

    async def _run(self) -> None:
        loop: asyncio.AbstractEventLoop = self._loop
        await loop.create_server(lambda: Wire(self._accepted), ADDRESS, PORT)
        while True:
            for guid, sender in list(self._senders.items()):
                if sender.to_say and not sender.sessions and not sender.is_called:
                    sender.is_called = True
                    self._begin(self._call(guid, sender))
            await sleeping(self._loop, CALLS_S)

    def _accepted(self, link: Wire) -> None:
        self._begin(self._answer(link))

    def _begin(self, talk: Coroutine[Any, Any, None]) -> None:
        self._loop.create_task(talk).add_done_callback(self._ended)

    async def _answer(self, link: Wire) -> None:
        with contextlib.suppress(OSError, Lost):
            try:
                guid = await welcome(link, self._guid)
                address = link.transport.get_extra_info("peername")[0]
                await self._converse(link, self._senders.setdefault(guid, _Sender(address)))
            finally:
                link.transport.abort()

    async def _call(self, guid: bytes, sender: _Sender) -> None:
        """It says the rest by a session of its own."""
        loop: asyncio.AbstractEventLoop = self._loop
        with contextlib.suppress(OSError, Lost):
            try:
                _, link = await loop.create_connection(Wire, sender.address, PORT)
                assert isinstance(link, Wire)
                try:
                    if await greet(link, self._guid) == guid:
                        await self._converse(link, sender)
                    else:  # another one lives there by now, and nobody wants to hear it
                        sender.to_say.clear()
                finally:
                    link.transport.abort()
            finally:
                sender.is_called = False

    async def _converse(self, link: Wire, sender: _Sender) -> None:
        source, talk = self._random, Talk(link, self._world.fail)
        ends_at = self._world.now + source.expovariate(1 / HANGS_UP_S)
        heard_at = self._world.now
        sender.sessions += 1
        try:
            while True:
                packets, link.packets = link.packets, []
                if packets or not talk.unstored:
                    heard_at = self._world.now
                for packet in packets:
                    if isinstance(packet, Session):
                        talk.take_header(packet)
                    elif isinstance(packet, Message):
                        talk.take(packet)
                        self._take(packet, sender)
                has_enough = bool(self._odd) and self._world.now > ends_at
                if link.is_lost or has_enough or self._world.now - heard_at > SILENCE_S:
                    raise Lost
                self._say(talk, sender)
                if (talk.owes or talk.unsaid) and source.random() > self._odd:
                    talk.acknowledge(lambda _: source.random() >= self._odd)
                    self._world.seen["a stranger keeps acknowledgments to itself"] += bool(
                        talk.unsaid
                    )
                await link.something(source.expovariate(1 / PAUSE_S))
        finally:
            sender.sessions -= 1
            sender.to_say += [(self._world.now, packet) for packet in talk.unstored.values()]

    def _say(self, talk: Talk, sender: _Sender) -> None:
        """What is due; and all that came in vain is acknowledged with it."""
        now = self._world.now
        due = [packet for when, packet in sender.to_say if when <= now or not self._odd]
        sender.to_say = [each for each in sender.to_say if each[1] not in due]
        for packet in due:
            if talk.has_room:
                talk.write(packet)
            else:
                sender.to_say.append((now, packet))

    # What it takes.

    def _take(self, message: Message, sender: _Sender) -> None:
        if message.is_order_ack or message.is_final_ack:
            return
        queue = message.destination.text.rpartition("\\")[2].lower()
        if message.transaction is None:
            if (message.source, message.message_id) not in self._known:
                self._known.add((message.source, message.message_id))
                self._receive(message, queue)
            return
        place = message.transaction
        accepted_id, accepted = sender.accepted.get(queue, (0, 0))
        if place.sequence_id > accepted_id and place.previous == 0:
            accepted_id, accepted = place.sequence_id, 0
        is_next = place.sequence_id == accepted_id and place.previous <= accepted < place.number
        if is_next:
            accepted = place.number
            sender.accepted[queue] = accepted_id, accepted
            self._receive(message, queue)
            flags = message.flags & (wire.JN | wire.JP), place.flags & _FINAL_ACK
            if any(flags):
                self._owe(sender, self._final_ack(message, sender))
        self._owe(sender, self._order_ack(accepted_id, accepted, sender))

    def _receive(self, message: Message, queue: str) -> None:
        number = marked(message.body)
        assert number is not None, "whatever is sent in a world bears a mark"
        self._world.seen["a stranger takes messages"] += 1
        self._world.note("received", NAME, number)
        self._oracle.received(NAME, f"private$\\{queue}", number, None)

    # What it says.

    def _owe(self, sender: _Sender, packet: bytes) -> None:
        delay_s = self._random.expovariate(1 / SAYING_S) if self._odd else 0.0
        now = self._world.now
        sender.to_say.append((now + delay_s, sent_at(packet, EPOCH_S + now)))

    def _next_id(self) -> int:
        self._ids += 1
        return self._ids

    def _order_ack(self, sequence_id: int, number: int, sender: _Sender) -> bytes:
        return wire.order_ack(
            source=self._guid,
            message_id=self._next_id(),
            sequence_id=sequence_id,
            number=number,
            host=f"TCP:{sender.address}",
        )

    def _final_ack(self, message: Message, sender: _Sender) -> bytes:
        return wire.final_ack(
            source=self._guid,
            message_id=self._next_id(),
            message_class=wire.ACK_RECEIVE,
            of=message,
            host=f"TCP:{sender.address}",
        )
