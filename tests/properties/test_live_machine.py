"""A whole queue manager, and peers that send any packet at any time, valid or broken.

The peers are `tests.process.peer`, which shares no code with the queue manager and checks each of
its bytes.  `receiver_oracle` computes how each message must end.  The queue manager is the real
one, in a thread of its own, with its data folder, its sockets and its loop.
"""

from __future__ import annotations

import contextlib
import itertools
from collections import Counter
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.process import wire
from tests.process.peer import Peer
from tests.process.remote import RemoteQueueManager
from tests.properties.live import EXAMPLES, IS_SHORT, PATIENCE_S, STEPS, QueueManager
from tests.properties.packet_strategies import spoilt
from tests.properties.receiver_oracle import (
    Arriving,
    Position,
    Queue,
    Receiver,
)

QUOTA_BYTES = 1500  # a few messages
QUEUES = ["plain", "orders", "narrow", "narrow_orders", "orders", "narrow_orders", "nowhere"]
SEQUENCES = [1 << 32 | 1, 1 << 32 | 2, 7 << 32 | 1]
TIME_TO_BE_RECEIVED = slice(48, 52)  # its bytes in a packet: [MS-MQMQ] 2.2.20.1
rarely = st.sampled_from([False] * 7 + [True])

# The position of a transactional message, relative to the last one that its queue accepted.
RELATIONS = ["next"] * 5 + ["again", "gap", "bridged", "older", "newer", "linked"]


class Source:
    """A peer, the messages that it has sent, and its session if it has one."""

    def __init__(self, guid: bytes) -> None:
        self.remote = RemoteQueueManager(guid)
        self.sent: list[tuple[bytes, Arriving]] = []
        self.session: Peer | None = None

    def final_acks(self) -> Counter[tuple[bytes, int, int]]:
        """Return the final acks that it received in this session."""
        assert self.session is not None
        return Counter((*each.final_body(), each.message_class) for each in self.session.final_acks)


class LiveMachine(RuleBasedStateMachine):
    """One queue manager, two sources and an application that receives."""

    def __init__(self) -> None:
        super().__init__()
        self.bodies = itertools.count(1)

    @initialize()
    def begin(self) -> None:
        self.manager = QueueManager()
        for name, queue in self.queues().items():
            self.manager.create(
                name, transactional=queue.is_transactional, quota_bytes=queue.quota_bytes
            )
        self.untrusted = Source(b"untrusted peer..")
        self.sources = [Source(b"a first source.."), Source(b"a second source.")]
        self.oracle = Receiver(self.queues())

    @staticmethod
    def queues() -> dict[str, Queue]:
        return {
            "plain": Queue(False),
            "markers": Queue(False),
            "orders": Queue(True),
            "narrow": Queue(False, QUOTA_BYTES),
            "narrow_orders": Queue(True, QUOTA_BYTES),
        }

    def teardown(self) -> None:
        if hasattr(self, "manager"):
            for source in (*self.sources, self.untrusted):
                source.remote.close()
            self.manager.stop()

    # Packets of peers.

    @rule(data=st.data(), which=st.integers(0, 1), count=st.sampled_from([1, 4, 8, 12]))
    def source_sends(self, data: st.DataObject, which: int, count: int) -> None:
        """Send messages in one write; each drawn message depends on those before it."""
        source = self.sources[which]
        self.send(source, lambda: self.draw(data, source), count)

    @precondition(lambda self: any(source.sent for source in self.sources))
    @rule(data=st.data())
    def source_sends_again(self, data: st.DataObject) -> None:
        """Repeat earlier packets, as after a crash or without acknowledgment."""
        source = data.draw(st.sampled_from([each for each in self.sources if each.sent]))
        first = data.draw(st.integers(0, len(source.sent) - 1))
        again = iter(source.sent[first : first + 5])
        self.send(source, lambda: next(again), min(5, len(source.sent) - first))

    @rule(data=st.data(), which=st.integers(0, 1))
    def source_disconnects_before_the_answer(self, data: st.DataObject, which: int) -> None:
        source = self.sources[which]
        session = self.session_of(source)
        packet, arriving = self.draw(data, source)
        self.oracle.receive(arriving)
        session.send_now(packet)
        session.connection.half_close()
        session.expect_closed()
        source.session = None
        self.manager.settle(source.remote.guid)

    @rule(data=st.data(), which=st.integers(0, 1))
    def source_acknowledges_unsent_messages(self, data: st.DataObject, which: int) -> None:
        """Send acknowledgments without matching message, which must have no effect."""
        source = self.sources[which]
        session = self.session_of(source)
        sequence_id, number = data.draw(st.sampled_from(SEQUENCES)), data.draw(st.integers(1, 9))
        if data.draw(st.booleans()):
            session.order_ack(sequence_id, number)
        else:
            own = wire.parse(
                source.remote.transactional("orders", sequence_id, number + 1, 0, b"never sent")
            )
            assert isinstance(own, wire.Message)
            session.final_ack(own, data.draw(st.sampled_from([0x8000, 0x8003, 0x4000, 0xC001])))
        session.wait_stored()

    @rule(data=st.data())
    def untrusted_peer_sends_broken_bytes(self, data: st.DataObject) -> None:
        """Send bytes that add one message at most, and change no other message."""
        source = self.untrusted
        session = self.session_of(source)
        packet, _ = self.draw(data, source)
        if data.draw(st.booleans()):
            packet = session.with_session_header(packet, acknowledged=data.draw(st.integers(0, 9)))
        broken = bytearray(data.draw(spoilt(packet)))
        if len(broken) >= TIME_TO_BE_RECEIVED.stop:  # the oracle has no message that expires later
            broken[TIME_TO_BE_RECEIVED] = packet[TIME_TO_BE_RECEIVED]
        session.connection.send(bytes(broken))
        session.connection.half_close()
        with contextlib.suppress(wire.Violation):  # it may count the bytes as a message
            session.expect_closed()
        source.session = None
        session.close()
        self.manager.settle(source.remote.guid)
        self.accept_unknown()

    @rule(which=st.integers(0, 1), really=rarely)
    def source_disconnects(self, which: int, really: bool) -> None:
        source = self.sources[which]
        if source.session is not None and really:
            source.session.close()
            source.session = None

    # The application and the daemon.

    @rule(name=st.sampled_from(["plain", "orders", "narrow", "narrow_orders"]))
    def application_receives(self, name: str) -> None:
        assert self.manager.receive(name, 3) == self.oracle.consume(name, 3)

    @rule(really=st.sampled_from([False, False, True]))
    def daemon_restarts(self, really: bool) -> None:
        if really:
            self.manager.restart()
            for source in self.sources:
                if source.session is not None:
                    source.session.close()
                source.session = None
            self.oracle.lose_memory()

    # Comparisons.

    @invariant()
    def messages_are_in_their_places(self) -> None:
        if not hasattr(self, "manager"):
            return
        for name, queue in self.oracle.queues.items():
            self.manager.wait_for(name, [_contents(each) for each in queue.messages])
        assert self.manager.dead_letters() == self.oracle.dead_letters
        self.manager.check()

    # Helpers.

    def session_of(self, source: Source) -> Peer:
        if source.session is None:
            source.session = source.remote.connect(
                self.manager.host.port, recoverable_ack_timeout_ms=10, ack_timeout_ms=100
            )
        return source.session

    def send(self, source: Source, make: Any, count: int) -> None:
        """Send messages, and a marker that is acknowledged after all of them."""
        session = self.session_of(source)
        before, expected = source.final_acks(), Counter(self.oracle.final_acks)
        packets: list[bytes] = []
        for index in range(count + 1):
            packet, arriving = make() if index < count else self.marker(source)
            packets.append(packet)
            source.sent.append((packet, arriving))
            self.oracle.receive(arriving)
        for packet in packets:
            session.count(packet)
        session.connection.send(b"".join(packets))
        session.wait_stored()
        session.wait_acknowledged()
        due = self.oracle.final_acks - expected
        session.wait(lambda: source.final_acks() - before >= due, PATIENCE_S, f"final acks {due}")
        allowed = self.oracle.final_acks + self.oracle.perhaps
        assert source.final_acks() <= allowed, source.final_acks() - allowed

    def marker(self, source: Source) -> tuple[bytes, Arriving]:
        return self.message(source, "markers", is_recoverable=True)

    def draw(self, data: st.DataObject, source: Source) -> tuple[bytes, Arriving]:
        queue = data.draw(st.sampled_from(QUEUES))
        is_transactional = data.draw(st.booleans())
        if queue in self.oracle.queues and not data.draw(rarely):
            is_transactional = self.oracle.queues[queue].is_transactional
        position = None
        if is_transactional:
            position = self.draw_position(data, source, queue)
        return self.message(
            source,
            queue,
            is_recoverable=is_transactional or data.draw(st.booleans()),
            position=position,
            is_late=data.draw(rarely),
            is_for_another=data.draw(rarely),
            wants_dead_letter=data.draw(st.booleans()),
            size=data.draw(st.sampled_from([0, 40, 400])),
        )

    def draw_position(self, data: st.DataObject, source: Source, queue: str) -> Position:
        first_of_queue = 1 + QUEUES.index(queue) << 32 | 8  # two queues share no sequence
        sequence_id, number = self.oracle.positions.get(
            (source.remote.guid, queue), (first_of_queue, 0)
        )
        match data.draw(st.sampled_from(RELATIONS)):
            case "next":
                return Position(sequence_id, number + 1, number)
            case "again":
                return Position(sequence_id, max(1, number), max(0, number - 1))
            case "gap":
                return Position(sequence_id, number + 3, number + 2)
            case "bridged":
                before = data.draw(st.integers(0, number))
                return Position(sequence_id, number + data.draw(st.integers(1, 4)), before)
            case "older":
                return Position(
                    sequence_id - 1, number + 1, data.draw(st.sampled_from([0, number]))
                )
            case "newer":
                return Position(sequence_id + 1, data.draw(st.sampled_from([1, 5])), 0)
            case _:
                return Position(sequence_id + 1, number + 2, number + 1)

    def message(
        self,
        source: Source,
        queue: str,
        *,
        is_recoverable: bool,
        position: Position | None = None,
        is_late: bool = False,
        is_for_another: bool = False,
        wants_dead_letter: bool = False,
        size: int = 0,
    ) -> tuple[bytes, Arriving]:
        body = b"%d " % next(self.bodies) + bytes(size)
        message_id = source.remote.next_id()
        if position is not None:
            highest = source.remote.highest_sent
            highest[position.sequence_id] = max(
                highest.get(position.sequence_id, 0), position.number
            )
        packet = wire.message(
            source=source.remote.guid,
            message_id=message_id,
            destination=wire.private(queue),
            body=body,
            recoverable=is_recoverable,
            transaction=None if position is None else wire.Transaction(0xC, *position),
            sent_time=wire.now_s() - 1000 if is_late else None,
            time_to_reach_queue=10 if is_late else wire.FOREVER,
            address=b"elsewhere".ljust(16) if is_for_another else wire.NULL_GUID,
            dead_letter=wants_dead_letter,
        )
        arriving = Arriving(
            source.remote.guid,
            message_id,
            queue,
            body,
            len(packet),
            is_recoverable,
            position,
            is_late,
            is_for_another,
            wants_dead_letter,
        )
        return packet, arriving

    def accept_unknown(self) -> None:
        """Add to the oracle the one message that broken bytes may have added."""
        more = 0
        for name, queue in self.oracle.queues.items():
            found = self.manager.contents(name)
            known = {_contents(each): each for each in queue.messages}
            assert [each for each in found if each in known] == list(known)
            more += len(found) - len(known)
            queue.messages = [known.get(each) or _unknown(name, *each) for each in found]
        dead = self.manager.dead_letters()
        assert self.oracle.dead_letters <= dead
        more += dead.total() - self.oracle.dead_letters.total()
        assert more <= 1
        self.oracle.dead_letters = dead


def _contents(arriving: Arriving) -> tuple[bytes, int, bool]:
    return arriving.body, arriving.size, arriving.is_recoverable


def _unknown(queue: str, body: bytes, size: int, is_recoverable: bool) -> Arriving:
    return Arriving(b"", 0, queue, body, size, is_recoverable)


LiveMachine.TestCase.settings = settings(
    max_examples=EXAMPLES,
    stateful_step_count=STEPS,
    deadline=None,
    derandomize=IS_SHORT,
)
LiveMachine.TestCase.pytestmark = [
    pytest.mark.timeout(900 + 60 * EXAMPLES),
]
TestLiveQueueManager = LiveMachine.TestCase
