"""A foreign queue manager that sends to a queue of a world.

It is built from the specification alone and shares no code with qmd: its packets are built and
parsed by tests/process/wire.py.  It sends one transactional sequence after the other, keeps every
message until its order ack, and never dies.  It also does unusual things, which a receiver has to
tolerate:

    again        messages of the sequence that it has sent before
    a gap        a message before the one that precedes it
    the middle   a message of a new sequence before its first one
    the past     messages of a sequence that is complete

[MS-MQQB] 3.1.5.8: a receiver accepts each message once and in order.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from dataclasses import dataclass, field

from tests.process import wire
from tests.process.wire import Message, Session
from tests.simulation.foreign_session import (
    ForeignManager,
    ForeignSession,
    PacketLink,
    SessionLost,
    open_session,
)
from tests.simulation.host_environment import EPOCH_S, PORT
from tests.simulation.loop import sleeping
from tests.simulation.message_records import Outcome, Sent, mark
from tests.simulation.oracle import Oracle
from tests.simulation.world import Host, World

NAME = "foreign-sender"
ADDRESS = "10.0.0.99"
RESEND_S = (2.0, 8.0)  # without an order ack; then it begins a new pass
SILENCE_S = 60.0  # without any packet; then it opens another session
SEQUENCE_MESSAGES = (1, 2, 5, 20)
_REPEATED_SEQUENCES = 20  # only the latest sequences are repeated


@dataclass(slots=True, eq=False)
class Sequence:
    """A transactional sequence."""

    id: int
    messages: list[Sent] = field(default_factory=list)  # the first one has number 1
    acknowledged: int = 0  # up to this number
    sent: int = 0  # the highest number that was ever sent


class ForeignSender(ForeignManager):
    """The foreign sender of `count` messages for a queue of `target`."""

    def __init__(
        self, world: World, oracle: Oracle, target: Host, queue: str, count: int, deviation: float
    ) -> None:
        super().__init__(world, NAME, ADDRESS, random.Random(f"stranger {world.seed}"), deviation)
        self._oracle = oracle
        self._target = target
        self._queue = queue
        self._left = count
        self._past: list[Sequence] = []
        self._current: Sequence | None = None
        self._next: Sequence | None = None  # of which a message was sent too early
        self._timestamp = EPOCH_S - 1000
        self._session: ForeignSession
        self._at = 0  # the last number sent in this pass

    @property
    def unfinished(self) -> str:
        sequence = self._current
        if sequence is None:
            return f"{self._left} messages to be sent"
        return f"{sequence.acknowledged + 1} of {len(sequence.messages)} in {sequence.id:#x}"

    @property
    def is_done(self) -> bool:
        return not self._left and self._current is None and self._next is None

    async def _run(self) -> None:
        while not self.is_done:
            with contextlib.suppress(OSError, SessionLost):
                await self._connect()
            await sleeping(self._loop, self._random.uniform(0.05, 1.0))

    async def _connect(self) -> None:
        loop: asyncio.AbstractEventLoop = self._loop
        _, protocol = await loop.create_connection(PacketLink, self._target.address, PORT)
        assert isinstance(protocol, PacketLink)
        try:
            await open_session(protocol, self._guid)
            await self._run_session(protocol)
        finally:
            protocol.transport.abort()

    async def _run_session(self, link: PacketLink) -> None:
        source = self._random
        self._session = ForeignSession(link, self._world.fail)
        self._begin_pass()
        acknowledged_at = received_at = self._world.now
        ends_at = self._world.now + source.expovariate(1 / 5.0)
        while True:
            if self._deviation and self._world.now > ends_at:
                self._world.happened("foreign sender: closes a session")
                return
            if link.packets:
                received_at = self._world.now
            if self._handle_packets():
                acknowledged_at = self._world.now
            if link.is_lost or self._world.now - received_at > SILENCE_S:
                raise SessionLost
            if self.is_done:
                return
            if self._current is None:
                self._begin_sequence()
            elif self._world.now - acknowledged_at > source.uniform(*RESEND_S):
                self._begin_pass()
                acknowledged_at = self._world.now
            if source.random() < self._deviation:
                self._deviate()
            else:
                self._send_next()
            await link.wait_for_packet(source.expovariate(1 / 0.05))

    # Messages.

    def _begin_sequence(self) -> None:
        self._current = self._next or self._new_sequence()
        self._next = None
        self._begin_pass()

    def _new_sequence(self) -> Sequence:
        """Begin a sequence with an id greater than all before it ([MS-MQQB] 3.1.1.5)."""
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
                outcome=Outcome.RECEIVED,
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
        """Begin to resend all unacknowledged messages.

        The first one has previous number 0 ([MS-MQQB] 3.1.1.6.1).
        """
        self._at = self._current.acknowledged if self._current is not None else 0

    def _send_next(self) -> None:
        """Send some of the next messages."""
        sequence = self._current
        if sequence is None:
            return
        for _ in range(self._random.randint(1, 5)):
            if self._at < len(sequence.messages) and self._session.has_room:
                self._at += 1
                self._send(sequence, self._at)

    def _deviate(self) -> None:
        source, sequence = self._random, self._current
        if sequence is None or not self._session.has_room:
            return
        deviation = source.choice(("again", "a gap", "the middle", "the past"))
        if deviation == "again" and self._at > 1:
            self._send(sequence, source.randint(1, self._at))
        elif deviation == "a gap" and self._at + 2 <= len(sequence.messages):
            self._send(sequence, self._at + 2, previous=self._at + 1)
        elif deviation == "the middle" and self._left > 1:
            self._next = self._next or self._new_sequence()
            if len(self._next.messages) < 2:
                return
            self._send(self._next, 2, previous=1)
        elif deviation == "the past" and len(self._past) > 1:
            over = [each for each in self._past[-_REPEATED_SEQUENCES:] if self._is_over(each)]
            if not over:
                return
            old = source.choice(over)
            self._send(old, source.randint(1, len(old.messages)), previous=0)
        else:
            return
        self._world.seen[f"foreign sender: sends {deviation}"] += 1

    def _is_over(self, sequence: Sequence) -> bool:
        return sequence.acknowledged == len(sequence.messages)

    def _send(self, sequence: Sequence, number: int, previous: int | None = None) -> None:
        if previous is None:
            is_first = number == sequence.acknowledged + 1
            previous = 0 if is_first else number - 1
        sequence.sent = max(sequence.sent, number)
        message = sequence.messages[number - 1]
        self._session.write(
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
        self._world.note("foreign-send", message.number, hex(sequence.id), number, previous)

    # Acknowledgments.

    def _handle_packets(self) -> bool:
        """Handle the received packets; return whether an order ack released messages."""
        has_released = False
        packets, self._session.link.packets = self._session.link.packets, []
        for packet in packets:
            if isinstance(packet, Session):
                self._session.take_header(packet)
            elif isinstance(packet, Message):
                self._session.take(packet)
                if packet.is_order_ack:
                    has_released |= self._take_order_ack(packet)
        if self._session.owes_ack:
            self._session.acknowledge()
        return has_released

    def _take_order_ack(self, packet: Message) -> bool:
        sequence_id, number, _ = packet.order_body()
        found = [each for each in self._past if each.id == sequence_id]
        if not found or number > found[0].sent:
            self._world.fail(
                f"{NAME}: an order ack of {number} of {sequence_id:#x}, which was never sent"
            )
            return False
        (sequence,) = found
        if number <= sequence.acknowledged:
            return False
        for message in sequence.messages[sequence.acknowledged : number]:
            self._oracle.confirmed(message, "")
        sequence.acknowledged = number
        self._at = max(self._at, number)
        self._world.on_result()
        if sequence is self._current and self._is_over(sequence):
            self._current = None
        return True
