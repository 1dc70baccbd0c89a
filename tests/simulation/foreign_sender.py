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
from dataclasses import dataclass, field

from tests.process import wire
from tests.process.wire import Message, Session
from tests.simulation.foreign import Foreigner, Lost, Talk, Wire, greet
from tests.simulation.loop import sleeping
from tests.simulation.oracle import Fate, Oracle, Sent, mark
from tests.simulation.world import EPOCH_S, PORT, Host, World

NAME = "stranger"
ADDRESS = "10.0.0.99"
PATIENCE_S = (2.0, 8.0)  # without an order ack; then it begins a new pass
SILENCE_S = 60.0  # without any packet; then it opens another session
SEQUENCE_MESSAGES = (1, 2, 5, 20)
_OUT_OF_PRACTICE = 20  # sequences of that many before are not repeated any more


@dataclass(slots=True, eq=False)
class Sequence:
    id: int
    messages: list[Sent] = field(default_factory=list)  # the first one has number 1
    acknowledged: int = 0  # up to this number
    sent: int = 0  # the highest number that ever left


class Stranger(Foreigner):
    """`count` messages for a queue of `target`, in sequences; `stop` ends its odd habits."""

    def __init__(
        self, world: World, oracle: Oracle, target: Host, queue: str, count: int, odd: float
    ) -> None:
        super().__init__(world, NAME, ADDRESS, random.Random(f"stranger {world.seed}"), odd)
        self._oracle = oracle
        self._target = target
        self._queue = queue
        self._left = count
        self._past: list[Sequence] = []
        self._now: Sequence | None = None
        self._next: Sequence | None = None  # of which something has left too early
        self._timestamp = EPOCH_S - 1000
        self._talk: Talk  # the session
        self._at = 0  # what was sent last in this pass

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
            with contextlib.suppress(OSError, Lost):
                await self._session()
            await sleeping(self._loop, self._random.uniform(0.05, 1.0))

    async def _session(self) -> None:
        loop: asyncio.AbstractEventLoop = self._loop
        _, protocol = await loop.create_connection(Wire, self._target.address, PORT)
        assert isinstance(protocol, Wire)
        try:
            await greet(protocol, self._guid)
            await self._speak(protocol)
        finally:
            protocol.transport.abort()

    async def _speak(self, link: Wire) -> None:
        source = self._random
        self._talk = Talk(link, self._world.fail)
        self._begin_pass()
        heard_at = lives_at = self._world.now
        ends_at = self._world.now + source.expovariate(1 / 5.0)
        while True:
            if self._odd and self._world.now > ends_at:
                self._world.happened("a stranger hangs up")
                return
            if link.packets:
                lives_at = self._world.now
            if self._hear():
                heard_at = self._world.now
            if link.is_lost or self._world.now - lives_at > SILENCE_S:
                raise Lost
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
            if self._at < len(sequence.messages) and self._talk.has_room:
                self._at += 1
                self._send(sequence, self._at)

    def _do_something_odd(self) -> None:
        source, sequence = self._random, self._now
        if sequence is None or not self._talk.has_room:
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

    def _send(self, sequence: Sequence, number: int, previous: int | None = None) -> None:
        if previous is None:
            is_first = number == sequence.acknowledged + 1
            previous = 0 if is_first else number - 1
        sequence.sent = max(sequence.sent, number)
        message = sequence.messages[number - 1]
        self._talk.write(
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

    # What it hears.

    def _hear(self) -> bool:
        """Whether that brings it further."""
        is_further = False
        packets, self._talk.link.packets = self._talk.link.packets, []
        for packet in packets:
            if isinstance(packet, Session):
                self._talk.take_header(packet)
            elif isinstance(packet, Message):
                self._talk.take(packet)
                if packet.is_order_ack:
                    is_further |= self._take_order_ack(packet)
        if self._talk.owes:
            self._talk.acknowledge()
        return is_further

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
