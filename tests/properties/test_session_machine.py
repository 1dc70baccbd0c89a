"""A session gets any packet at any time, valid or broken, and follows the rules exactly.

The machine plays the peer, the disk, the clock and the owner of one session at once.
`session_oracle` computes the expected events.
"""

from __future__ import annotations

import os
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from protocol import SessionHeader, append_session_header, build_session_ack
from protocol.framing import PacketBuffer
from qmd.core.session import (
    Acknowledged,
    Closed,
    Event,
    MessageReceived,
    Opened,
    Session,
    SessionSettings,
    SessionState,
)
from qmd.core.session_acks import SessionAcks
from qmd.core.window import SendWindow
from tests.process import wire
from tests.properties.packet_strategies import spoilt
from tests.properties.session_oracle import Expected, Oracle
from tests.unit.core.session_wire import (
    NOBODY,
    OWN_ID,
    PEER_ID,
    connection_parameters,
    connection_request,
    connection_response,
    numbered_packet,
)

EXAMPLES = int(os.environ.get("SESSION_EXAMPLES", "100"))  # `make soak` draws more
KINDS = ["express", "recoverable", "transactional", "order ack"]
FOREIGN_ID = b"f" * 16
NEAR_THE_WRAP = [0, 0, 1, 0xFFF0, 0xFFFF, 0x1FFF8]

windows = st.sampled_from([0, 1, 2, 5, 64, 0xFFFF])
rarely = st.sampled_from([False] * 15 + [True])
times_s = st.sampled_from([0.0, 0.001, 0.2, 0.4, 0.6, 9.0, 11.0, 45.0, 310.0])
handshakes = st.one_of(
    st.builds(
        connection_request,
        st.sampled_from([NOBODY, NOBODY, OWN_ID, FOREIGN_ID]),
        refused=st.sampled_from([False, False, False, True]),
    ),
    st.builds(
        connection_response,
        st.sampled_from([OWN_ID, OWN_ID, FOREIGN_ID]),
        server=st.sampled_from([PEER_ID, PEER_ID, FOREIGN_ID]),
        refused=st.sampled_from([False, False, False, True]),
    ),
    st.builds(
        connection_parameters,
        windows,
        recoverable_ack_ms=st.sampled_from([0, 500, 120_000, 0xFFFFFFFF]),
        ack_ms=st.sampled_from([0, 20_000, 0xFFFFFFFF]),
        refused=st.sampled_from([False, False, False, True]),
    ),
)


BEGINNING: dict[str, st.SearchStrategy[Any]] = {
    "is_initiator": st.booleans(),
    "refuse": st.sampled_from([False, False, False, True]),
    "expected_remote": st.sampled_from([None, PEER_ID]),
    "window": st.sampled_from([1, 2, 3, 64, 300]),
    "at_once": st.booleans(),
    "is_open": st.sampled_from([True, True, False]),
    "counts": st.tuples(*[st.sampled_from(NEAR_THE_WRAP)] * 4),
    "peer_window": windows,
}


def _alive(machine: SessionMachine) -> bool:
    return machine.session.state is not SessionState.CLOSED


def _open(machine: SessionMachine) -> bool:
    return machine.session.state is SessionState.OPEN


def own_packet(kind: str, number: int) -> bytes:
    """Build a message of the session's owner."""
    if kind == "order ack":
        return wire.order_ack(source=OWN_ID, message_id=number, sequence_id=1 << 32 | 1, number=1)
    return wire.message(
        source=OWN_ID,
        message_id=number,
        destination=wire.private("q"),
        body=b"abc",
        recoverable=kind == "recoverable",
        transaction=wire.Transaction(0xC, 1 << 32 | 1, 1, 0) if kind == "transactional" else None,
        sent_time=1_700_000_000,
    )


class PeerPackets:
    """The packets of the peer of a session."""

    def __init__(self, session: Session, oracle: Oracle) -> None:
        self._session = session
        self._oracle = oracle
        self._message_number = 0

    def draw_packet(self, data: st.DataObject) -> bytes:
        """Draw a packet, mostly a valid one; packets that end the session are rare."""
        is_open = self._session.state is SessionState.OPEN
        kind = data.draw(st.sampled_from(["message", "ack"] * 12 + ["handshake"]))
        if kind == "handshake" or (not is_open and data.draw(rarely) is False):
            packet = data.draw(handshakes)
        elif kind == "ack":
            packet = build_session_ack(self.draw_header(data))
        else:
            packet = self.next_message(data.draw(st.sampled_from(KINDS)))
            if data.draw(st.booleans()):
                header = self.draw_header(data, carrier=packet)
                packet = append_session_header(packet, header)
        return data.draw(spoilt(packet)) if data.draw(rarely) else packet

    def draw_header(self, data: st.DataObject, carrier: bytes | None = None) -> SessionHeader:
        """Draw an acknowledgment of some packets; sometimes one number in it is wrong."""
        oracle, draw = self._oracle, data.draw
        waiting = sorted(number for number in oracle.outstanding.values() if number)
        first = draw(st.sampled_from([0, *waiting[:3], *waiting[-1:]]))
        room = max(0, min(32, oracle.recoverable_sent - first + 1)) if first else 0
        flags = draw(st.integers(0, (1 << room) - 1) | st.just((1 << room) - 1))
        header = self.true_header(first & 0xFFFF, flags, draw(windows))
        behind = draw(st.sampled_from([0, 0, 1, 5]))
        header = header._replace(ack_number=max(0, oracle.sent - behind) & 0xFFFF)
        if carrier is not None:  # the count includes the packet that carries it
            recoverable = carrier[60] >> 5 & 1
            header = header._replace(
                sent_number=header.sent_number + 1 & 0xFFFF,
                recoverable_sent_number=header.recoverable_sent_number + recoverable & 0xFFFF,
            )
        if draw(rarely):
            name = draw(st.sampled_from(["ack_number", "sent_number", "recoverable_sent_number"]))
            change = draw(st.sampled_from([1, -1, 100, 0x7FFF, 0x8000, -300]))
            header = header._replace(**{name: getattr(header, name) + change & 0xFFFF})
        if draw(rarely):
            header = header._replace(
                recoverable_ack_number=first + draw(st.integers(-2, 40)) & 0xFFFF,
                recoverable_ack_flags=draw(st.integers(0, 0xFFFFFFFF)),
            )
        if first and room < 32 and draw(rarely):  # one more than there are
            header = header._replace(recoverable_ack_flags=flags | 1 << room)
        return header

    def true_header(self, first: int, flags: int, window: int) -> SessionHeader:
        oracle = self._oracle
        return SessionHeader(
            oracle.sent & 0xFFFF,
            first,
            flags,
            oracle.received & 0xFFFF,
            oracle.recoverable_received & 0xFFFF,
            window,
            0,
        )

    def next_message(self, kind: str) -> bytes:
        self._message_number += 1
        return numbered_packet(self._message_number, kind)


class SessionMachine(RuleBasedStateMachine):
    """One session, its oracle, its peer, its disk and its clock."""

    @initialize(**BEGINNING)
    def begin(
        self,
        is_initiator: bool,
        refuse: bool,
        expected_remote: bytes | None,
        window: int,
        at_once: bool,
        is_open: bool,
        counts: tuple[int, int, int, int],
        peer_window: int,
    ) -> None:
        self.now = 1e6
        self.at_once = at_once
        self.window = window
        self.unstored: list[int] = []
        self.buffer = PacketBuffer()
        self.has_received = False  # since the last check of the timers
        refuse = refuse and not is_initiator and not is_open
        self.session = Session(
            initiator=is_initiator,
            own_id=OWN_ID,
            settings=SessionSettings(window_size=window, ack_at_once=at_once),
            now=self.now,
            expected_remote=expected_remote if is_initiator else None,
            refuse=refuse,
        )
        self.oracle = Oracle(
            is_initiator, OWN_ID, refuse, expected_remote if is_initiator else None, window
        )
        self.peer = PeerPackets(self.session, self.oracle)
        if is_initiator:
            self.session.start(self.now)
        self.check_output()
        if is_open:
            self.receive([connection_response() if is_initiator else connection_request()])
            self.receive([connection_parameters(peer_window)])
            self.continue_at(*counts)

    def continue_at(self, sent: int, recoverable: int, received: int, stored: int) -> None:
        """Set the counts as if the session had lasted long."""
        outgoing = SendWindow(
            self.session.outgoing.size,
            usual=self.window,
            sent_count=sent,
            recoverable_sent_count=recoverable,
        )
        self.session.outgoing = outgoing
        self.session.incoming = SessionAcks(
            received_count=received, recoverable_received_count=stored
        )
        self.oracle.start_counting_at(sent, recoverable, received, stored)

    @precondition(lambda self: not _alive(self))
    @rule(**BEGINNING)
    def connect_again(self, **beginning: Any) -> None:
        """Check that a closed session ignores further packets; then begin another session."""
        self.receive([self.peer.next_message("recoverable")])
        self.session.mark_stored(self.unstored, self.now)
        assert self.session.handle_timer(self.now + 1000) == []
        self.check_output()
        self.the_session_is_where_the_oracle_is()
        self.begin(**beginning)

    # The peer.

    @precondition(_alive)
    @rule(data=st.data())
    def peer_sends(self, data: st.DataObject) -> None:
        """Send a few packets in one read; each may depend on the oracle's state after the last."""
        packets: list[bytes] = []
        expected: list[Expected] = []
        for _ in range(data.draw(st.sampled_from([1, 1, 1, 2, 6]))):
            packet = self.peer.draw_packet(data)
            packets.append(packet)
            expected += self.oracle.receive([packet])
        self.compare(self.session.receive(packets, self.now), _in_order(expected))

    @precondition(_open)
    @rule(
        kinds=st.lists(st.sampled_from(KINDS), min_size=1, max_size=3),
        times=st.sampled_from([1, 1, 2, 40]),
    )
    def peer_sends_good_messages(self, kinds: list[str], times: int) -> None:
        self.receive([self.peer.next_message(kind) for kind in kinds * times])

    @precondition(_open)
    @rule(kind=st.sampled_from(KINDS), answer=st.sampled_from(KINDS))
    def owner_answers_just_before_an_acknowledgment_is_due(self, kind: str, answer: str) -> None:
        self.receive([self.peer.next_message(kind)])
        due = self.session.incoming.due
        if _open(self) and due > self.now and due != float("inf"):
            self.now += 0.9 * (due - self.now)
        if _open(self):
            self.send(answer, 1)

    @precondition(_open)
    @rule(window=windows)
    def peer_acknowledges_everything(self, window: int) -> None:
        oracle = self.oracle
        waiting = sorted(number for number in oracle.outstanding.values() if number)
        first = waiting[0] if waiting else 0
        flags = sum(1 << number - first for number in waiting if number - first < 32)
        self.receive([build_session_ack(self.peer.true_header(first & 0xFFFF, flags, window))])

    @precondition(lambda self: _open(self) and self.oracle.outstanding)
    @rule(data=st.data())
    def peer_acknowledges_some(self, data: st.DataObject) -> None:
        self.receive([build_session_ack(self.peer.draw_header(data))])

    # The owner, the disk and the clock.

    @precondition(_alive)
    @rule(kind=st.sampled_from(KINDS), count=st.sampled_from([1, 3, 40, 400]))
    def owner_sends(self, kind: str, count: int) -> None:
        self.send(kind, count)

    def send(self, kind: str, count: int) -> None:
        """Send messages as long as there is room."""
        for _ in range(count):
            if not self.session.room():
                break
            recoverable = kind != "express"
            token = self.oracle.send(recoverable=recoverable)
            packet = own_packet(kind, token & 0xFFFFFFFF)
            self.session.send(packet, recoverable=recoverable, token=token, now=self.now)
        self.check_output()

    @precondition(_alive)
    @rule(data=st.data(), all_of_them=st.booleans())
    def disk_stores(self, data: st.DataObject, all_of_them: bool) -> None:
        numbers = list(self.unstored)
        if numbers and not all_of_them:
            numbers = data.draw(st.lists(st.sampled_from(numbers), unique=True))
        self.unstored = [number for number in self.unstored if number not in numbers]
        self.oracle.stored.update(numbers)
        self.session.mark_stored(numbers, self.now)
        self.check_output()

    @precondition(_alive)
    @rule(seconds=times_s)
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        due = self.session.next_timer()
        before = self.session.state
        self.has_received, has_received = False, self.has_received
        waiting = bool(self.oracle.outstanding) or self.session.unacknowledged > 0
        events = self.session.handle_timer(self.now)
        if due is None or self.now < due:
            assert events == []
        if events:
            (closed,) = events
            assert isinstance(closed, Closed)
            self.oracle.state = "CLOSED"
            reasons = {"no session after": before is not SessionState.OPEN}
            reasons["acknowledgments are missing"] = waiting and not has_received
            reasons["idle for"] = before is SessionState.OPEN
            assert any(closed.reason.startswith(it) for it, holds in reasons.items() if holds)
            assert closed.clean == closed.reason.startswith("idle for")
        elif before is not SessionState.CLOSED:
            following = self.session.next_timer()
            assert following is not None
            assert following > self.now, "a timer that has fired must not stay due"
        self.check_output()

    @rule(really=rarely)
    def owner_closes(self, really: bool) -> None:
        if really:
            was_closed = self.session.state is SessionState.CLOSED
            events = self.session.close("enough", self.now)
            assert events == ([] if was_closed else [Closed("enough", True)])
            self.oracle.state = "CLOSED"
            self.check_output()

    # Comparisons.

    def receive(self, packets: list[bytes]) -> None:
        self.compare(self.session.receive(packets, self.now), self.oracle.receive(packets))

    def compare(self, events: list[Event], expected: list[Expected]) -> None:
        self.has_received = True
        assert [_plainly(event) for event in events] == expected
        for event in events:
            if isinstance(event, MessageReceived) and event.recoverable_number:
                self.unstored.append(event.recoverable_number)
        self.check_output()

    def check_output(self) -> None:
        """Check the output of the session; each byte is sent once."""
        for packet in self.buffer.feed(self.session.data_to_send()):
            self.oracle.check_sent(packet)
        assert self.session.data_to_send() == b""

    @invariant()
    def the_session_is_where_the_oracle_is(self) -> None:
        session, oracle = self.session, self.oracle
        assert session.state.name == oracle.state
        assert not oracle.answers, "every handshake packet is answered at once"
        assert (session.closed_reason is None) == (oracle.state != "CLOSED")
        assert (session.next_timer() is None) == (oracle.state == "CLOSED")
        if oracle.state != "OPEN":
            assert session.room() == 0
            return
        assert session.remote_id == oracle.peer_id
        window = min(self.window, oracle.peer_window)
        assert session.room() == max(0, window - (oracle.sent - oracle.receipt_acknowledged))
        assert oracle.transmitted == oracle.sent
        # Half a window is never left without an acknowledgment of its receipt.
        assert oracle.received - oracle.acked_received < max(1, min(window // 2, 32))
        if self.at_once:
            assert oracle.acked_stored + 1 not in oracle.stored, "stored, and not acknowledged"


def _plainly(event: Event) -> Expected:
    match event:
        case MessageReceived(_, packet, number):
            return "message", (packet, number)
        case Acknowledged(tokens):
            return "acknowledged", tokens
        case Opened(remote_id):
            return "opened", remote_id
        case Closed(reason, whole):
            assert reason
            return "closed", whole
    raise AssertionError(event)


def _in_order(expected: list[Expected]) -> list[Expected]:
    """Order the events of one read: one acknowledgment event first, the end last."""
    released: list[Any] = []
    rest: list[Expected] = []
    for kind, value in expected:
        if kind == "acknowledged":
            assert isinstance(value, list)
            released += value
        else:
            rest.append((kind, value))
    ended = [it for it in rest if it[0] == "closed"]
    acknowledged: list[Expected] = [("acknowledged", sorted(released))] if released else []
    return acknowledged + [it for it in rest if it[0] != "closed"] + ended


SessionMachine.TestCase.settings = settings(max_examples=EXAMPLES, stateful_step_count=50)
SessionMachine.TestCase.pytestmark = [pytest.mark.timeout(900 + 2 * EXAMPLES)]
TestSession = SessionMachine.TestCase
