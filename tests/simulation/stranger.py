"""A queue manager of another make: it sends to a queue of a world, by the specification alone.

It shares no code with qmd: its packets are built and parsed by tests/process/wire.py.  It sends one
transactional sequence after the other, keeps what nobody has acknowledged in order, and never dies.
What is allowed and unusual it does as well, and what a receiver has to bear:

    again        messages of the sequence that have come before
    a gap        a message before the one that precedes it
    the middle   a message of a new sequence before its first one
    the past     messages of a sequence that is over

[MS-MQQB] 3.1.5.8: a receiver takes each message once, in its order, whatever comes.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import struct
from dataclasses import dataclass, field

from tests.process import wire
from tests.process.wire import Establish, Message, Parameters, Session
from tests.simulation.loop import Clock, ProcessLoop, sleeping
from tests.simulation.oracle import Fate, Oracle, Sent, mark
from tests.simulation.world import EPOCH_S, PORT, Host, World

NAME = "stranger"
ADDRESS = "10.0.0.99"
WINDOW = 64  # [MS-MQQB] 3.1.3.2
ANSWER_S = 5.0  # to each step of the handshake
PATIENCE_S = (2.0, 8.0)  # without an order ack; then it begins a new pass
SEQUENCE_MESSAGES = (1, 2, 5, 20)
_OUT_OF_PRACTICE = 20  # sequences of that many before are not repeated any more


@dataclass(slots=True, eq=False)
class Sequence:
    id: int
    messages: list[Sent] = field(default_factory=list)  # the first one has number 1
    acknowledged: int = 0  # up to this number
    sent: int = 0  # the highest number that ever left


class _Lost(Exception):
    """The session is over."""


class Wire(asyncio.Protocol):
    """Whole packets, one after the other; and how many were sent and came, in all and recoverable.

    Who opens the connection may set these counts as if there had been others before.
    """

    def __init__(self) -> None:
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
            raise _Lost
        return self.packets.pop(0)

    def _wake(self) -> None:
        if self._wanted is not None and not self._wanted.done():
            self._wanted.set_result(None)


class Stranger:
    """`count` messages for a queue of `target`, in sequences; `stop` ends its odd habits."""

    def __init__(
        self, world: World, oracle: Oracle, target: Host, queue: str, count: int, odd: float
    ) -> None:
        self._world = world
        self._oracle = oracle
        self._target = target
        self._queue = queue
        self._left = count
        self._odd = odd  # so often it does what is unusual
        self._random = source = random.Random(f"stranger {world.seed}")
        self._guid = source.randbytes(16)
        self._past: list[Sequence] = []
        self._now: Sequence | None = None
        self._next: Sequence | None = None  # of which something has left too early
        self._ids = 0
        self._timestamp = EPOCH_S - 1000
        self._loop = ProcessLoop(
            world.scheduler,
            NAME,
            clock=Clock(),
            network=world.network,
            host=world.network.add(NAME, ADDRESS),
        )
        # Of the session.
        self._wire: Wire
        self._counted = [0, 0]  # what was sent: in all, and recoverable
        self._came = [0, 0]
        self._room = 0  # how many were acknowledged
        self._at = 0  # what was sent last in this pass

    def start(self) -> None:
        self._loop.set_exception_handler(
            lambda _, context: self._world.fail(f"{NAME}: {context.get('exception')!r}")
        )
        self._loop.spawn(self._run).add_done_callback(self._ended)

    def _ended(self, run: asyncio.Task[None]) -> None:
        if not run.cancelled() and (error := run.exception()) is not None:
            self._world.fail(f"{NAME}: {error!r}")

    def stop(self) -> None:
        self._odd = 0.0

    @property
    def unfinished(self) -> str:
        sequence = self._now
        if sequence is None:
            return f"{self._left} messages to be sent"
        return f"{sequence.acknowledged + 1} of {len(sequence.messages)} in {sequence.id:#x}"

    @property
    def is_done(self) -> bool:
        return not self._left and self._now is None and self._next is None

    async def _run(self) -> None:
        while not self.is_done:
            with contextlib.suppress(OSError, _Lost):
                await self._session()
            await sleeping(self._loop, self._random.uniform(0.05, 1.0))

    async def _session(self) -> None:
        loop: asyncio.AbstractEventLoop = self._loop
        _, protocol = await loop.create_connection(Wire, self._target.address, PORT)
        assert isinstance(protocol, Wire)
        self._wire = protocol
        try:
            await self._shake_hands()
            await self._talk()
        finally:
            protocol.transport.abort()

    async def _shake_hands(self) -> None:
        link = self._wire
        link.transport.write(wire.establish(client=self._guid))
        answer = await link.packet()
        if not isinstance(answer, Establish) or answer.refused:
            raise _Lost
        link.transport.write(wire.parameters(window=WINDOW))
        if not isinstance(await link.packet(), Parameters):
            raise _Lost

    async def _talk(self) -> None:
        source, link = self._random, self._wire
        self._counted, self._came = list(link.sent), list(link.came)
        self._room = self._counted[0]
        self._begin_pass()
        heard_at = self._world.now
        ends_at = self._world.now + source.expovariate(1 / 5.0)
        while True:
            if self._odd and self._world.now > ends_at:
                self._world.happened("a stranger hangs up")
                return
            if self._hear():
                heard_at = self._world.now
            if link.is_lost:
                raise _Lost
            if self.is_done:
                return
            if self._now is None:
                self._begin_sequence()
            elif self._world.now - heard_at > source.uniform(*PATIENCE_S):
                self._begin_pass()
                heard_at = self._world.now
            if source.random() < self._odd:
                self._do_something_odd()
            else:
                self._go_on()
            await link.something(source.expovariate(1 / 0.05))

    # What it sends.

    def _begin_sequence(self) -> None:
        self._now = self._next or self._new_sequence()
        self._next = None
        self._begin_pass()

    def _new_sequence(self) -> Sequence:
        """Its id is greater than all before it ([MS-MQQB] 3.1.1.5)."""
        source = self._random
        sequence = Sequence(self._timestamp << 32 | len(self._past) + 1)
        size = min(self._left, source.randint(1, source.choice(SEQUENCE_MESSAGES)))
        for _ in range(size):
            number = self._oracle.next_number()
            message = Sent(
                number=number,
                stream=f"{NAME} to {self._queue}",
                source=NAME,
                target=self._target.name,
                queue=f"private$\\{self._queue}",
                delivery="transactional",
                fate=Fate.RECEIVED,
                wants_dead_letter=False,
                wants_journal=False,
                request=self._oracle.next_request(),
                lives=(),
            )
            self._oracle.attempted(message)
            sequence.messages.append(message)
        self._left -= size
        self._past.append(sequence)
        return sequence

    def _begin_pass(self) -> None:
        """What was not acknowledged is sent again; its first message says that it has none before
        it ([MS-MQQB] 3.1.1.6.1)."""
        self._at = self._now.acknowledged if self._now is not None else 0

    def _go_on(self) -> None:
        """Some of what comes next."""
        sequence = self._now
        if sequence is None:
            return
        for _ in range(self._random.randint(1, 5)):
            if self._at < len(sequence.messages) and self._has_room():
                self._at += 1
                self._send(sequence, self._at)

    def _do_something_odd(self) -> None:
        source, sequence = self._random, self._now
        if sequence is None or not self._has_room():
            return
        odd = source.choice(("again", "a gap", "the middle", "the past"))
        if odd == "again" and self._at > 1:
            self._send(sequence, source.randint(1, self._at))
        elif odd == "a gap" and self._at + 2 <= len(sequence.messages):
            self._send(sequence, self._at + 2, previous=self._at + 1)
        elif odd == "the middle" and self._left > 1:
            self._next = self._next or self._new_sequence()
            if len(self._next.messages) < 2:
                return
            self._send(self._next, 2, previous=1)
        elif odd == "the past" and len(self._past) > 1:
            over = [each for each in self._past[-_OUT_OF_PRACTICE:] if self._is_over(each)]
            if not over:
                return
            old = source.choice(over)
            self._send(old, source.randint(1, len(old.messages)), previous=0)
        else:
            return
        self._world.seen[f"a stranger sends {odd}"] += 1

    def _is_over(self, sequence: Sequence) -> bool:
        return sequence.acknowledged == len(sequence.messages)

    def _has_room(self) -> bool:
        return self._counted[0] - self._room < WINDOW

    def _send(self, sequence: Sequence, number: int, previous: int | None = None) -> None:
        if previous is None:
            is_first = number == sequence.acknowledged + 1
            previous = 0 if is_first else number - 1
        sequence.sent = max(sequence.sent, number)
        message = sequence.messages[number - 1]
        self._write(
            wire.message(
                source=self._guid,
                message_id=message.number,
                destination=wire.private(self._queue, f"TCP:{self._target.address}"),
                body=mark(message.number),
                transaction=wire.Transaction(
                    0xC | (message.number & 0xFFFFF) << 4, sequence.id, number, previous
                ),
                sent_time=int(EPOCH_S + self._world.now),
            )
        )
        self._world.note("stranger", message.number, hex(sequence.id), number, previous)

    def _write(self, packet: bytes) -> None:
        self._counted[0] += 1
        (flags,) = struct.unpack_from("<I", packet, 60)
        self._counted[1] += bool(flags & wire.DM)
        self._wire.transport.write(packet)

    # What it hears.

    def _hear(self) -> bool:
        """Whether that brings it further."""
        is_further, has_come = False, False
        while self._wire.packets:
            packet = self._wire.packets.pop(0)
            if isinstance(packet, Session):
                self._take_header(packet)
            elif isinstance(packet, Message):
                has_come = True
                self._came[0] += 1
                self._came[1] += packet.recoverable
                if packet.session is not None:
                    self._take_header(packet.session)
                if packet.is_order_ack:
                    is_further |= self._take_order_ack(packet)
        if has_come and not self._wire.is_lost:
            self._wire.transport.write(
                wire.session_ack(
                    Session(
                        acknowledged=self._came[0],
                        recoverable_acknowledged=self._came[1],
                        recoverable_flags=1 if self._came[1] else 0,
                        sent=self._counted[0],
                        recoverable_sent=self._counted[1],
                        window=WINDOW,
                    )
                )
            )
        return is_further

    def _take_header(self, header: Session) -> None:
        behind = (self._counted[0] - header.acknowledged) & 0xFFFF
        if behind > self._counted[0] - self._wire.sent[0]:
            self._world.fail(f"{NAME} is told that {header.acknowledged} of its packets came")
        self._room = max(self._room, self._counted[0] - behind)

    def _take_order_ack(self, packet: Message) -> bool:
        sequence_id, number, _ = packet.order_body()
        found = [each for each in self._past if each.id == sequence_id]
        if not found or number > found[0].sent:
            self._world.fail(f"{NAME} is told of {number} of {sequence_id:#x}, which never left")
            return False
        (sequence,) = found
        if number <= sequence.acknowledged:
            return False
        for message in sequence.messages[sequence.acknowledged : number]:
            self._oracle.confirmed(message, "")
        sequence.acknowledged = number
        self._at = max(self._at, number)
        self._world.on_told()
        if sequence is self._now and self._is_over(sequence):
            self._now = None
        return True
