"""Two real sessions over a simulated wire; everything around them comes from a seed.

Bytes are cut anywhere, delayed, and lost with their connection.  Messages go both ways at once, the
disk is slow and stores out of order, timers fire late, and counters begin near the end of their 16
bits.  The world checks every packet that is sent.  After the faults everything must arrive.
`SEED=n pytest tests/simulation/test_sessions.py` replays one world.
"""

from __future__ import annotations

import os
import random
from collections import Counter, deque

import pytest

from protocol import PacketKind, SessionHeader, packet_kind, parse_session_ack, parse_user_message
from protocol.framing import PacketBuffer
from qmd.core.session import (
    Acknowledged,
    Closed,
    Event,
    MessageReceived,
    Session,
    SessionSettings,
    SessionState,
)
from qmd.core.session_acks import SessionAcks
from qmd.core.window import SendWindow
from tests.unit.core.session_wire import message_number, numbered_packet

# The reasons for which a session may end here; any other is an error.
EXPECTED_ENDS = ("cut", "nothing came for", "idle for", "no session after")
EXPECTED_ENDS_WHILE_HEALING = ("idle for",)

happened: Counter[str] = Counter()  # events of all worlds


class End:
    """One queue manager: its session, its messages and its disk."""

    def __init__(self, world: World, id: int) -> None:
        self.random = world.random
        self.id = bytes([id]) * 16
        self.settings = SessionSettings(
            window_size=self.random.choice([1, 2, 3, 5, 64, self.random.randint(1, 300)]),
            ack_at_once=self.random.random() < 0.5,
            recoverable_ack_min_s=self.random.choice([0.5, 3.0]),
        )
        self.kinds: list[str] = []  # of all messages of this end
        self.waiting: deque[int] = deque()
        self.acknowledged: set[int] = set()
        self.received: set[int] = set()  # messages of the other end
        self.stored: set[int] = set()

    def connect(self, session: Session, counts: tuple[int, int, int, int]) -> None:
        """Begin a session; `counts`: sent, recoverable sent, received, recoverable received."""
        self.session = session
        session.outgoing = SendWindow(1, sent_count=counts[0], recoverable_sent_count=counts[1])
        session.incoming = SessionAcks(
            received_count=counts[2], recoverable_received_count=counts[3]
        )
        self.wire = bytearray()  # to the other end
        self.buffer = PacketBuffer()
        self.tap = PacketBuffer()
        self.sent: list[int] = []  # on this session
        self.position: dict[object, int] = {}
        self.sent_count, self.recoverable_sent_count, self.received_count, _ = counts
        self.seen_acknowledged = self.sent_count  # by the received headers
        self.acked_received = self.received_count  # by the sent headers
        self.acked_stored = counts[3]
        self.announced = self.seen_window = 0
        self.recoverable_received: dict[int, int] = {}  # number of the session -> message
        self.to_store: list[int] = []  # numbers of the session

    @property
    def has_work(self) -> bool:
        """Whether it can act before the time advances."""
        return bool(self.wire or self.to_store or (self.waiting and self.session.room()))

    # Sent packets.

    def transmit(self) -> None:
        """Put the session's output on the wire, and check every packet of it."""
        data = self.session.data_to_send()
        if not data:
            return
        self.wire += data
        for packet in self.tap.feed(data):
            kind = packet_kind(packet)
            if kind is PacketKind.USER_MESSAGE:
                self.check_sent(packet)
            elif kind is PacketKind.SESSION_ACK:
                self.check_header(parse_session_ack(packet))
            elif kind is PacketKind.CONNECTION_PARAMETERS:
                self.announced = int.from_bytes(packet[-2:], "little")

    def check_sent(self, packet: bytes) -> None:
        message = parse_user_message(packet)
        assert message_number(packet) == self.sent[self.sent_count - self.first_sent]
        self.sent_count += 1
        self.recoverable_sent_count += message.user.flags.delivery
        in_doubt = self.sent_count - self.seen_acknowledged
        assert in_doubt <= min(self.settings.window_size, max(self.seen_window, 1))
        if message.session is not None:
            happened["carried acknowledgments"] += 1
            assert message.properties.message_class == 0, "order acks carry none"
            self.check_header(message.session)

    def check_header(self, header: SessionHeader) -> None:
        """Check that a header acknowledges only received and stored messages, with exact counts."""
        assert header.ack_number == self.received_count & 0xFFFF
        assert header.sent_number == self.sent_count & 0xFFFF
        assert header.recoverable_sent_number == self.recoverable_sent_count & 0xFFFF
        assert header.recoverable_ack_flags & 1 or not header.recoverable_ack_number
        for bit in range(header.recoverable_ack_flags.bit_length()):
            assert header.recoverable_ack_flags >> bit & 1, "no hole"
            self.acked_stored += 1
            assert header.recoverable_ack_number + bit & 0xFFFF == self.acked_stored & 0xFFFF
            assert self.recoverable_received[self.acked_stored] in self.stored
        if self.acked_received >> 16 != self.received_count >> 16:
            happened["wrapped counts"] += 1
        self.acked_received = self.received_count
        self.announced = header.window_size
        assert 1 <= self.announced <= self.settings.window_size

    # Received packets.

    def watch(self, packet: bytes, other: End) -> None:
        """Record the counts in a packet of the other end before the session gets it."""
        kind = packet_kind(packet)
        header = None
        if kind is PacketKind.SESSION_ACK:
            header = parse_session_ack(packet)
        elif kind is PacketKind.USER_MESSAGE:
            self.received_count += 1
            header = parse_user_message(packet).session
        elif kind is PacketKind.CONNECTION_PARAMETERS:
            self.seen_window = int.from_bytes(packet[-2:], "little")
        if header is not None:
            self.seen_window = header.window_size
            self.seen_acknowledged += header.ack_number - self.seen_acknowledged & 0xFFFF
            assert self.seen_acknowledged <= self.sent_count

    def take(self, events: list[Event], other: End) -> None:
        for event in events:
            if isinstance(event, MessageReceived):
                number = message_number(event.packet)
                assert event.packet == numbered_packet(number, other.kinds[number])
                self.received.add(number)
                if event.recoverable_number:
                    assert other.kinds[number] != "express"
                    self.recoverable_received[event.recoverable_number] = number
                    self.to_store.append(event.recoverable_number)
            elif isinstance(event, Acknowledged):
                self.take_acknowledged(event.tokens, other)

    def take_acknowledged(self, tokens: list[object], other: End) -> None:
        positions = [self.position[token] for token in tokens]
        assert positions == sorted(positions), "in the order of sending"
        for token in tokens:
            assert token not in self.acknowledged, "once"
            express = self.kinds[token] == "express"
            assert token in (other.received if express else other.stored), "too early"
            self.acknowledged.add(token)

    def check(self) -> None:
        """Check that receipt is acknowledged at half of the window, and storage at once if set."""
        if self.session.state is SessionState.OPEN:
            usable = max(1, min(self.announced, max(self.seen_window, 1)) // 2)
            assert self.received_count - self.acked_received < min(usable, 32)
        following = self.acked_stored + 1
        if self.settings.ack_at_once and following in self.recoverable_received:
            assert following in self.to_store, "stored, and not acknowledged"


class World:
    """The two ends, the time and the faults."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.now = self.random.uniform(0, 1e7)
        self.pace_s = self.random.choice([0.001, 0.03, 0.3, 2.0])
        # Each world has its own mixture, so that no fault hides another.
        self.weights = {act: self.random.random() ** 3 for act in self.FAULTS}
        self.weights |= {act: self.random.random() + 0.1 for act in self.ACTS}
        self.weights[World.cut] *= 0.05
        self.weights[World.sleep] *= 0.3
        self.healing = False
        self.ends = End(self, 1), End(self, 2)
        self.connect()

    def connect(self) -> None:
        """Open a new session, which resends the unacknowledged messages of the last one."""
        for end in self.ends:
            again = [number for number in range(len(end.kinds)) if number not in end.acknowledged]
            end.waiting = deque(again)
        near_the_end = [self.random.choice([0, 0xFFF0, 0xFFFF, 0x1FFF8]) for _ in range(4)]
        a, b, c, d = near_the_end
        for end, counts in zip(self.ends, [(a, b, c, d), (c, d, a, b)], strict=True):
            session = Session(
                initiator=end is self.ends[0],
                own_id=end.id,
                settings=end.settings,
                now=self.now,
                expected_remote=self.random.choice([None, self.ends[1].id]),
            )
            end.connect(session, counts)
            end.first_sent = counts[0]
        self.ends[0].session.start(self.now)
        self.ends[0].transmit()

    def handle(self, end: End, events: list[Event]) -> None:
        """Handle the events of a session, and send its output."""
        end.take(events, self.other(end))
        end.transmit()
        end.check()
        if events and isinstance(events[-1], Closed):
            expected = EXPECTED_ENDS_WHILE_HEALING if self.healing else EXPECTED_ENDS
            assert any(text in events[-1].reason for text in expected), events[-1].reason
            happened[events[-1].reason.split(" for ")[0]] += 1
            self.other(end).session.close("cut", self.now)
            self.connect()

    def other(self, end: End) -> End:
        return self.ends[1 - self.ends.index(end)]

    # Actions.

    def step(self) -> None:
        self.now += self.random.expovariate(1) * self.pace_s
        act = self.random.choices(list(self.weights), list(self.weights.values()))[0]
        act(self, self.random.choice(self.ends))

    def produce(self, end: End) -> None:
        if len(end.kinds) < 250:
            kinds = ["express", "recoverable", "transactional", "order ack"]
            kind = self.random.choice(kinds)
            for _ in range(self.random.choice([1, 3, 50])):
                end.waiting.append(len(end.kinds))
                end.kinds.append(kind if self.random.random() < 0.8 else "express")

    def send(self, end: End) -> None:
        for _ in range(self.random.choice([1, 400])):
            if not end.waiting or end.session.room() == 0:
                break
            number = end.waiting.popleft()
            end.position[number] = len(end.sent)
            end.sent.append(number)
            kind = end.kinds[number]
            end.session.send(
                numbered_packet(number, kind),
                recoverable=kind != "express",
                token=number,
                now=self.now,
            )
        self.handle(end, [])

    def deliver(self, end: End) -> None:
        """Deliver some bytes that are on their way to this end."""
        wire = self.other(end).wire
        size = len(wire) if self.healing else self.random.choice([1, 40, 1000, 5000, len(wire)])
        piece = bytes(wire[:size])
        del wire[:size]
        packets = end.buffer.feed(piece)
        if packets:
            for packet in packets:
                end.watch(packet, self.other(end))
            self.handle(end, end.session.receive(packets, self.now))

    def store(self, end: End) -> None:
        """Store some messages, not always the first ones."""
        if not end.to_store:
            return
        some = end.to_store[:]
        if self.healing:
            pass
        elif self.random.random() < 0.7:
            some = some[: self.random.choice([1, 40, 400])]
        else:
            happened["stored out of step"] += 1
            some = self.random.sample(end.to_store, self.random.randint(1, len(end.to_store)))
        for number in some:
            end.to_store.remove(number)
            end.stored.add(end.recoverable_received[number])
        before = end.acked_stored
        end.session.mark_stored(some, self.now)
        self.handle(end, [])
        happened["several acknowledgments at once"] += end.acked_stored - before > 32

    def fire_timer(self, end: End) -> None:
        due = end.session.next_timer()
        if due is not None and due <= self.now:
            happened["timers"] += 1
            self.handle(end, end.session.handle_timer(self.now))

    def sleep(self, end: End) -> None:
        times_s = [0.4, 1.0, 8.0, 12.0, 45.0, 310.0]
        self.now += self.random.choices(times_s, weights=[6, 6, 6, 3, 2, 1])[0]

    def cut(self, end: End) -> None:
        self.handle(end, end.session.close("cut", self.now))

    ACTS = (produce, send, deliver, store, fire_timer)
    FAULTS = (sleep, cut)

    def heal(self) -> None:
        """Run without faults: everything must arrive in bounded time."""
        self.healing = True
        for _ in range(2000):
            if all(len(end.acknowledged) == len(end.kinds) for end in self.ends):
                return
            for end in self.ends:
                self.send(end)
                while end.to_store:
                    self.store(end)
                while self.other(end).wire:
                    self.deliver(end)
            if not any(end.has_work for end in self.ends):
                due = min(end.session.next_timer() or self.now for end in self.ends)
                self.now = max(self.now, due)
                for end in self.ends:
                    self.fire_timer(end)
        pytest.fail("not everything was acknowledged")


SEEDS = [int(os.environ["SEED"])] if "SEED" in os.environ else range(200)


@pytest.mark.parametrize("seed", SEEDS)
def test_acknowledgments_are_true_and_everything_arrives(seed):
    world = World(seed)
    for _ in range(world.random.randrange(20, 300)):
        world.step()
    world.heal()
    happened["worlds"] += 1

    for end in world.ends:
        other = world.other(end)
        assert other.received == set(range(len(end.kinds)))
        recoverable = {at for at, kind in enumerate(end.kinds) if kind != "express"}
        assert other.stored == recoverable
        assert end.session.unacknowledged == 0


def test_every_kind_of_event_happens():
    if happened["worlds"] < 200:
        pytest.skip("few worlds do not have all events")
    for event in (
        "carried acknowledgments",
        "wrapped counts",
        "stored out of step",
        "several acknowledgments at once",
        "timers",
        "idle",
        "acknowledgments are missing and nothing came",
        "cut",
    ):
        assert happened[event] > 0, event
