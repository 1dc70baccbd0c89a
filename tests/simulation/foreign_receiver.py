"""The queues of a foreign queue manager, to which the applications of a world send.

It accepts each message once and in order, and acknowledges it late, out of order, or in a later
session; and it closes sessions at any time.  All of that is allowed ([MS-MQQB] 3.1.5.5, 3.1.5.8,
3.1.7.2.2).  It loses nothing and never dies, so that every message that it accepts is received.
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
from tests.simulation.foreign_session import (
    ForeignManager,
    ForeignSession,
    PacketLink,
    SessionLost,
    accept_session,
    open_session,
    sent_at,
)
from tests.simulation.host_environment import EPOCH_S, PORT
from tests.simulation.loop import sleeping
from tests.simulation.message_records import marked
from tests.simulation.oracle import Oracle
from tests.simulation.world import World

NAME = "foreign-receiver"
ADDRESS = "10.0.0.98"
_FINAL_ACK = 0x2  # a bit of a TransactionHeader: its sender asks for a final ack
DELAY_S = 0.3  # of an acknowledgment, on average
PAUSE_S = 0.05
SESSION_S = 5.0  # the length of a session, on average
SILENCE_S = 20.0  # without an answer; then the session is lost
RECONNECT_S = 1.0  # the interval at which it opens sessions for packets that it has to send


@dataclass(slots=True)
class _Sender:
    """The state of a queue manager that sends here."""

    address: str
    accepted: dict[str, tuple[int, int]] = field(
        default_factory=dict
    )  # queue -> position of its stream
    to_send: list[tuple[float, bytes]] = field(default_factory=list)  # (earliest time, packet)
    sessions: int = 0  # that are open
    is_connecting: bool = False


class ForeignReceiver(ForeignManager):
    """The foreign receiver; `deviation`: the probability that it withholds an acknowledgment."""

    def __init__(self, world: World, oracle: Oracle, deviation: float) -> None:
        super().__init__(
            world, NAME, ADDRESS, random.Random(f"strange queue {world.seed}"), deviation
        )
        self._oracle = oracle
        self._senders: dict[bytes, _Sender] = {}
        self._known: set[tuple[bytes, int]] = set()  # received plain messages
        self._ids = 0

    @property
    def unfinished(self) -> int:
        """The number of packets that it has not sent yet."""
        return sum(len(sender.to_send) for sender in self._senders.values())

    async def _run(self) -> None:
        loop: asyncio.AbstractEventLoop = self._loop
        await loop.create_server(lambda: PacketLink(self._accepted), ADDRESS, PORT)
        while True:
            for guid, sender in list(self._senders.items()):
                if sender.to_send and not sender.sessions and not sender.is_connecting:
                    sender.is_connecting = True
                    self._start_task(self._connect(guid, sender))
            await sleeping(self._loop, RECONNECT_S)

    def _accepted(self, link: PacketLink) -> None:
        self._start_task(self._accept(link))

    def _start_task(self, session: Coroutine[Any, Any, None]) -> None:
        self._loop.create_task(session).add_done_callback(self._ended)

    async def _accept(self, link: PacketLink) -> None:
        with contextlib.suppress(OSError, SessionLost):
            try:
                guid = await accept_session(link, self._guid)
                address = link.transport.get_extra_info("peername")[0]
                await self._run_session(link, self._senders.setdefault(guid, _Sender(address)))
            finally:
                link.transport.abort()

    async def _connect(self, guid: bytes, sender: _Sender) -> None:
        """Open a session to send the packets that are left."""
        loop: asyncio.AbstractEventLoop = self._loop
        with contextlib.suppress(OSError, SessionLost):
            try:
                _, link = await loop.create_connection(PacketLink, sender.address, PORT)
                assert isinstance(link, PacketLink)
                try:
                    if await open_session(link, self._guid) == guid:
                        await self._run_session(link, sender)
                    else:  # another queue manager has this address by now
                        sender.to_send.clear()
                finally:
                    link.transport.abort()
            finally:
                sender.is_connecting = False

    async def _run_session(self, link: PacketLink, sender: _Sender) -> None:
        source, session = self._random, ForeignSession(link, self._world.fail)
        ends_at = self._world.now + source.expovariate(1 / SESSION_S)
        answered_at = self._world.now
        sender.sessions += 1
        try:
            while True:
                packets, link.packets = link.packets, []
                if packets or not session.unstored:
                    answered_at = self._world.now
                for packet in packets:
                    if isinstance(packet, Session):
                        session.take_header(packet)
                    elif isinstance(packet, Message):
                        session.take(packet)
                        self._handle(packet, sender)
                must_end = bool(self._deviation) and self._world.now > ends_at
                if link.is_lost or must_end or self._world.now - answered_at > SILENCE_S:
                    raise SessionLost
                self._send_due(session, sender)
                if (
                    session.owes_ack or session.unacknowledged
                ) and source.random() > self._deviation:
                    session.acknowledge(lambda _: source.random() >= self._deviation)
                    self._world.seen["foreign receiver: withholds acknowledgments"] += bool(
                        session.unacknowledged
                    )
                await link.wait_for_packet(source.expovariate(1 / PAUSE_S))
        finally:
            sender.sessions -= 1
            sender.to_send += [(self._world.now, packet) for packet in session.unstored.values()]

    def _send_due(self, session: ForeignSession, sender: _Sender) -> None:
        """Send the packets that are due."""
        now = self._world.now
        due = [packet for when, packet in sender.to_send if when <= now or not self._deviation]
        sender.to_send = [each for each in sender.to_send if each[1] not in due]
        for packet in due:
            if session.has_room:
                session.write(packet)
            else:
                sender.to_send.append((now, packet))

    # Received messages.

    def _handle(self, message: Message, sender: _Sender) -> None:
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
                self._queue_packet(sender, self._final_ack(message, sender))
        self._queue_packet(sender, self._order_ack(accepted_id, accepted, sender))

    def _receive(self, message: Message, queue: str) -> None:
        number = marked(message.body)
        assert number is not None, "every message of a world has a mark"
        self._world.seen["foreign receiver: receives messages"] += 1
        self._world.note("received", NAME, number)
        self._oracle.received(NAME, f"private$\\{queue}", number, None)

    # Acknowledgments.

    def _queue_packet(self, sender: _Sender, packet: bytes) -> None:
        delay_s = self._random.expovariate(1 / DELAY_S) if self._deviation else 0.0
        now = self._world.now
        sender.to_send.append((now + delay_s, sent_at(packet, EPOCH_S + now)))

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
