"""Sessions of foreign queue managers, which share no code with qmd.

Packets are built and parsed by tests/process/wire.py, sessions follow [MS-MQQB] 3.1.5.2 to 3.1.5.5.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import struct
from collections.abc import Callable

from tests.process import wire
from tests.process.wire import Establish, Message, Parameters, Session
from tests.simulation.loop import Clock, ProcessLoop
from tests.simulation.world import World

WINDOW = 64  # [MS-MQQB] 3.1.3.2
ANSWER_S = 5.0  # to each step of the handshake
_SENT_TIME = 52  # its offset in a message ([MS-MQMQ] 2.2.19.1, 2.2.20.1)


class SessionLost(Exception):
    """The session is over."""


class PacketLink(asyncio.Protocol):
    """A connection that reads complete packets.

    `sent` and `received` are the counts, in all and recoverable, with which its session begins; the
    opener of the connection may set them as if there had been packets before.
    """

    def __init__(self, made: Callable[[PacketLink], None] = lambda wire: None) -> None:
        self._made = made
        self.sent = (0, 0)
        self.received = (0, 0)
        self.packets: list[wire.Packet] = []
        self.is_lost = False
        self.transport: asyncio.Transport
        self._buffer = bytearray()
        self._wanted: asyncio.Future[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self._made(self)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while len(self._buffer) >= 16:
            size = wire.wire_length(wire.parse_base(bytes(self._buffer[:16])))
            if len(self._buffer) < size:
                break
            self.packets.append(wire.parse(bytes(self._buffer[:size])))
            del self._buffer[:size]
        self._wake()

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, error: Exception | None) -> None:
        self.is_lost = True
        self._wake()

    async def wait_for_packet(self, seconds: float) -> None:
        """Wait until a packet arrives or the connection is lost, `seconds` at most."""
        if self.packets or self.is_lost:
            return
        self._wanted = asyncio.get_running_loop().create_future()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._wanted, seconds)

    async def packet(self) -> wire.Packet:
        if not self.packets:
            await self.wait_for_packet(ANSWER_S)
        if not self.packets:
            raise SessionLost
        return self.packets.pop(0)

    def _wake(self) -> None:
        if self._wanted is not None and not self._wanted.done():
            self._wanted.set_result(None)


class ForeignManager:
    """A queue manager that is not qmd and never dies.

    `deviation`: the probability of unusual behaviour, which `stop` ends.
    """

    def __init__(
        self, world: World, name: str, address: str, source: random.Random, deviation: float
    ) -> None:
        self._world = world
        self._name = name
        self._random = source
        self._deviation = deviation
        self._guid = source.randbytes(16)
        self._loop = ProcessLoop(
            world.scheduler,
            name,
            clock=Clock(),
            network=world.network,
            host=world.network.add(name, address),
        )

    def start(self) -> None:
        self._loop.set_exception_handler(
            lambda _, context: self._world.fail(f"{self._name}: {context.get('exception')!r}")
        )
        self._loop.spawn(self._run).add_done_callback(self._ended)

    def stop(self) -> None:
        self._deviation = 0.0

    async def _run(self) -> None:
        raise NotImplementedError

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._world.fail(f"{self._name}: {error!r}")


async def open_session(link: PacketLink, guid: bytes) -> bytes:
    """Open a session as the initiator; return the GUID of the peer.  Raises SessionLost."""
    link.transport.write(wire.establish(client=guid))
    answer = await link.packet()
    if not isinstance(answer, Establish) or answer.refused:
        raise SessionLost
    link.transport.write(wire.parameters(window=WINDOW))
    if not isinstance(await link.packet(), Parameters):
        raise SessionLost
    return answer.server


async def accept_session(link: PacketLink, guid: bytes) -> bytes:
    """Open a session as the acceptor; return the GUID of the peer.  Raises SessionLost."""
    request = await link.packet()
    if not isinstance(request, Establish):
        raise SessionLost
    link.transport.write(
        wire.establish(
            client=request.client,
            server=guid,
            timestamp=request.timestamp,
            operating_system=request.operating_system & 0x100 | 0x0210,
        )
    )
    proposal = await link.packet()
    if not isinstance(proposal, Parameters):
        raise SessionLost
    link.transport.write(
        wire.parameters(
            recoverable_ack_timeout_ms=proposal.recoverable_ack_timeout_ms,
            ack_timeout_ms=proposal.ack_timeout_ms,
            window=WINDOW,
        )
    )
    return request.client


def sent_at(packet: bytes, sent_s: float) -> bytes:
    """Return a packet with the given time of sending, instead of the time of the process."""
    return packet[:_SENT_TIME] + struct.pack("<I", int(sent_s)) + packet[_SENT_TIME + 4 :]


class ForeignSession:
    """An open session: it counts packets in both directions, and acknowledges received ones."""

    def __init__(self, link: PacketLink, fail: Callable[[str], None]) -> None:
        self.link = link
        self._fail = fail
        self.sent, self.received = list(link.sent), list(link.received)  # in all, and recoverable
        self._acknowledged = self.sent[0]
        self.unacknowledged: list[int] = []  # numbers of received recoverable packets
        self.owes_ack = False  # a packet arrived since the last acknowledgment
        self.unstored: dict[
            int, bytes
        ] = {}  # number -> recoverable packet that the peer may not have

    @property
    def has_room(self) -> bool:
        return self.sent[0] - self._acknowledged < WINDOW

    def write(self, packet: bytes) -> None:
        self.sent[0] += 1
        (flags,) = struct.unpack_from("<I", packet, 60)
        if flags & wire.DM:
            self.sent[1] += 1
            self.unstored[self.sent[1]] = packet
        self.link.transport.write(packet)

    def take_header(self, header: Session) -> None:
        behind = (self.sent[0] - header.acknowledged) & 0xFFFF
        if behind > self.sent[0] - self.link.sent[0]:
            self._fail(f"an acknowledgment of {header.acknowledged} packets, more than were sent")
        self._acknowledged = max(self._acknowledged, self.sent[0] - behind)
        if header.recoverable_acknowledged or header.recoverable_flags:
            behind = (self.sent[1] - header.recoverable_acknowledged) & 0xFFFF
            first, flags = self.sent[1] - behind, header.recoverable_flags or 1
            for number in list(self.unstored):  # those before the first are acknowledged
                if number < first or flags >> number - first & 1:
                    del self.unstored[number]

    def take(self, message: Message) -> None:
        """Count a received message, and apply its session header, if it has one."""
        self.received[0] += 1
        self.owes_ack = True
        if message.recoverable:
            self.received[1] += 1
            self.unacknowledged.append(self.received[1])
        if message.session is not None:
            self.take_header(message.session)

    def acknowledge(self, stored: Callable[[int], bool] = lambda number: True) -> None:
        """Acknowledge all received packets; `stored` selects those that count as stored.

        [MS-MQQB] 3.1.7.1.3
        """
        self.owes_ack = False
        first = self.unacknowledged[0] if self.unacknowledged else 0
        chosen = [
            number for number in self.unacknowledged if number - first < 32 and stored(number)
        ]
        self.unacknowledged = [number for number in self.unacknowledged if number not in chosen]
        self.link.transport.write(
            wire.session_ack(
                Session(
                    acknowledged=self.received[0],
                    recoverable_acknowledged=first if chosen else 0,
                    recoverable_flags=sum(1 << number - first for number in chosen),
                    sent=self.sent[0],
                    recoverable_sent=self.sent[1],
                    window=WINDOW,
                )
            )
        )
