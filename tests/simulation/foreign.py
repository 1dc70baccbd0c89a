"""How those talk who are of another make: packets by tests/process/wire.py, sessions by the book.

Nothing here is qmd's.  [MS-MQQB] 3.1.5.2 to 3.1.5.5.
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
_SENT_TIME = 52  # where it is in a message ([MS-MQMQ] 2.2.19.1, 2.2.20.1)


class Lost(Exception):
    """The session is over."""


class Wire(asyncio.Protocol):
    """Whole packets, one after the other; and how many were sent and came, in all and recoverable.

    Who opens the connection may set these counts as if there had been others before.
    """

    def __init__(self, made: Callable[[Wire], None] = lambda wire: None) -> None:
        self._made = made
        self.sent = (0, 0)
        self.came = (0, 0)
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

    async def something(self, seconds: float) -> None:
        """Until something comes, or not any more, or for so long."""
        if self.packets or self.is_lost:
            return
        self._wanted = asyncio.get_running_loop().create_future()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._wanted, seconds)

    async def packet(self) -> wire.Packet:
        if not self.packets:
            await self.something(ANSWER_S)
        if not self.packets:
            raise Lost
        return self.packets.pop(0)

    def _wake(self) -> None:
        if self._wanted is not None and not self._wanted.done():
            self._wanted.set_result(None)


class Foreigner:
    """A queue manager of another make, which never dies.  `odd`: how often it does what is unusual;
    `stop` ends that."""

    def __init__(
        self, world: World, name: str, address: str, source: random.Random, odd: float
    ) -> None:
        self._world = world
        self._name = name
        self._random = source
        self._odd = odd
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
        self._odd = 0.0

    async def _run(self) -> None:
        raise NotImplementedError

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._world.fail(f"{self._name}: {error!r}")


async def greet(link: Wire, guid: bytes) -> bytes:
    """Open a session with whom we have connected to: who it is.  Raises Lost."""
    link.transport.write(wire.establish(client=guid))
    answer = await link.packet()
    if not isinstance(answer, Establish) or answer.refused:
        raise Lost
    link.transport.write(wire.parameters(window=WINDOW))
    if not isinstance(await link.packet(), Parameters):
        raise Lost
    return answer.server


async def welcome(link: Wire, guid: bytes) -> bytes:
    """Open a session with who has connected to us: who it is.  Raises Lost."""
    request = await link.packet()
    if not isinstance(request, Establish):
        raise Lost
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
        raise Lost
    link.transport.write(
        wire.parameters(
            recoverable_ack_timeout_ms=proposal.recoverable_ack_timeout_ms,
            ack_timeout_ms=proposal.ack_timeout_ms,
            window=WINDOW,
        )
    )
    return request.client


def sent_at(packet: bytes, sent_s: float) -> bytes:
    """The same, sent at that time: nothing of a world tells the time of the process."""
    return packet[:_SENT_TIME] + struct.pack("<I", int(sent_s)) + packet[_SENT_TIME + 4 :]


class Talk:
    """An open session: what was sent and came is counted, and acknowledged."""

    def __init__(self, link: Wire, fail: Callable[[str], None]) -> None:
        self.link = link
        self._fail = fail
        self.sent, self.came = list(link.sent), list(link.came)  # in all, and recoverable
        self._acknowledged = self.sent[0]
        self.unsaid: list[int] = []  # of recoverable ones that came, not acknowledged
        self.owes = False  # something came since it last said so
        self.unstored: dict[int, bytes] = {}  # recoverable ones that the other end may not have

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
            self._fail(f"a stranger is told that {header.acknowledged} of its packets came")
        self._acknowledged = max(self._acknowledged, self.sent[0] - behind)
        if header.recoverable_acknowledged or header.recoverable_flags:
            behind = (self.sent[1] - header.recoverable_acknowledged) & 0xFFFF
            first, flags = self.sent[1] - behind, header.recoverable_flags or 1
            for number in list(self.unstored):  # all before the first have been said
                if number < first or flags >> number - first & 1:
                    del self.unstored[number]

    def take(self, message: Message) -> None:
        """It came; its own header, if it has one, counts as well."""
        self.came[0] += 1
        self.owes = True
        if message.recoverable:
            self.came[1] += 1
            self.unsaid.append(self.came[1])
        if message.session is not None:
            self.take_header(message.session)

    def acknowledge(self, stored: Callable[[int], bool] = lambda number: True) -> None:
        """All that came; of recoverable ones, which count as stored ([MS-MQQB] 3.1.7.1.3)."""
        self.owes = False
        first = self.unsaid[0] if self.unsaid else 0
        chosen = [number for number in self.unsaid if number - first < 32 and stored(number)]
        self.unsaid = [number for number in self.unsaid if number not in chosen]
        self.link.transport.write(
            wire.session_ack(
                Session(
                    acknowledged=self.came[0],
                    recoverable_acknowledged=first if chosen else 0,
                    recoverable_flags=sum(1 << number - first for number in chosen),
                    sent=self.sent[0],
                    recoverable_sent=self.sent[1],
                    window=WINDOW,
                )
            )
        )
