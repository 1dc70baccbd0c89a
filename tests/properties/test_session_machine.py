"""Any packet at any time, good or broken: a session does what the rules say, and nothing else.

The machine plays the peer, the disk, the clock and the owner of one session at once.  What it
expects is worked out by `session_oracle`.
"""

from __future__ import annotations

from typing import Any

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
    """A message of the session's owner."""
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


class SessionMachine(RuleBasedStateMachine):
    """One session, its oracle, and all that is around them."""

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
        self.message_number = 0
        self.heard = False  # since the timers were last looked at
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
        if is_initiator:
            self.session.start(self.now)
        self.hear()
        if is_open:
            self.tell([connection_response() if is_initiator else connection_request()])
            self.tell([connection_parameters(peer_window)])
            self.continue_at(*counts)

    def continue_at(self, sent: int, recoverable: int, received: int, stored: int) -> None:
        """As if the session had gone on for long."""
        outgoing = SendWindow(
            self.session.outgoing.size, sent_count=sent, recoverable_sent_count=recoverable
        )
        self.session.outgoing = outgoing
        self.session.incoming = SessionAcks(
            received_count=received, recoverable_received_count=stored
        )
        self.oracle.start_counting_at(sent, recoverable, received, stored)

    @precondition(lambda self: not _alive(self))
    @rule(**BEGINNING)
    def connect_again(self, **beginning: Any) -> None:
        """What is over stays over, whatever still comes; then there is another session."""
        self.tell([self.next_message("recoverable")])
        self.session.mark_stored(self.unstored, self.now)
        assert self.session.handle_timer(self.now + 1000) == []
        self.hear()
        self.the_session_is_where_the_oracle_is()
        self.begin(**beginning)

    # The peer.

    @precondition(_alive)
    @rule(data=st.data())
    def peer_sends(self, data: st.DataObject) -> None:
        """A few packets in one read; the oracle has seen the first when the next is made."""
        packets: list[bytes] = []
        expected: list[Expected] = []
        for _ in range(data.draw(st.sampled_from([1, 1, 1, 2, 6]))):
            packet = self.draw_packet(data)
            packets.append(packet)
            expected += self.oracle.receive([packet])
        self.compare(self.session.receive(packets, self.now), _in_order(expected))

    @precondition(_open)
    @rule(
        kinds=st.lists(st.sampled_from(KINDS), min_size=1, max_size=3),
        times=st.sampled_from([1, 1, 2, 40]),
    )
    def peer_sends_good_messages(self, kinds: list[str], times: int) -> None:
        self.tell([self.next_message(kind) for kind in kinds * times])

    @precondition(_open)
    @rule(kind=st.sampled_from(KINDS), answer=st.sampled_from(KINDS))
    def owner_answers_just_before_an_acknowledgment_is_due(self, kind: str, answer: str) -> None:
        self.tell([self.next_message(kind)])
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
        self.tell([build_session_ack(self.true_header(first & 0xFFFF, flags, window))])

    @precondition(lambda self: _open(self) and self.oracle.outstanding)
    @rule(data=st.data())
    def peer_acknowledges_some(self, data: st.DataObject) -> None:
        self.tell([build_session_ack(self.draw_header(data))])

    def draw_packet(self, data: st.DataObject) -> bytes:
        """Mostly what fits; what ends the session is rare, or little else would ever be seen."""
        is_open = self.session.state is SessionState.OPEN
        what = data.draw(st.sampled_from(["message", "ack"] * 12 + ["handshake"]))
        if what == "handshake" or (not is_open and data.draw(rarely) is False):
            packet = data.draw(handshakes)
        elif what == "ack":
            packet = build_session_ack(self.draw_header(data))
        else:
            packet = self.next_message(data.draw(st.sampled_from(KINDS)))
            if data.draw(st.booleans()):
                header = self.draw_header(data, carrier=packet)
                packet = append_session_header(packet, header)
        return data.draw(spoilt(packet)) if data.draw(rarely) else packet

    def draw_header(self, data: st.DataObject, carrier: bytes | None = None) -> SessionHeader:
        """An acknowledgment of some of what was sent; at times one that is wrong in a number."""
        oracle, draw = self.oracle, data.draw
        waiting = sorted(number for number in oracle.outstanding.values() if number)
        first = draw(st.sampled_from([0, *waiting[:3], *waiting[-1:]]))
        room = max(0, min(32, oracle.recoverable_sent - first + 1)) if first else 0
        flags = draw(st.integers(0, (1 << room) - 1) | st.just((1 << room) - 1))
        header = self.true_header(first & 0xFFFF, flags, draw(windows))
        behind = draw(st.sampled_from([0, 0, 1, 5]))
        header = header._replace(ack_number=max(0, oracle.sent - behind) & 0xFFFF)
        if carrier is not None:  # the packet that it rides on is counted
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
        oracle = self.oracle
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
        self.message_number += 1
        return numbered_packet(self.message_number, kind)

    # The owner, the disk and the clock.

    @precondition(_alive)
    @rule(kind=st.sampled_from(KINDS), count=st.sampled_from([1, 3, 40, 400]))
    def owner_sends(self, kind: str, count: int) -> None:
        self.send(kind, count)

    def send(self, kind: str, count: int) -> None:
        """As many messages as there is room for."""
        for _ in range(count):
            if not self.session.room():
                break
            recoverable = kind != "express"
            token = self.oracle.send(recoverable=recoverable)
            packet = own_packet(kind, token & 0xFFFFFFFF)
            self.session.send(packet, recoverable=recoverable, token=token, now=self.now)
        self.hear()

    @precondition(_alive)
    @rule(data=st.data(), all_of_them=st.booleans())
    def disk_stores(self, data: st.DataObject, all_of_them: bool) -> None:
        numbers = list(self.unstored)
        if numbers and not all_of_them:
            numbers = data.draw(st.lists(st.sampled_from(numbers), unique=True))
        self.unstored = [number for number in self.unstored if number not in numbers]
        self.oracle.stored.update(numbers)
        self.session.mark_stored(numbers, self.now)
        self.hear()

    @precondition(_alive)
    @rule(seconds=times_s)
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        due = self.session.next_timer()
        before = self.session.state
        self.heard, heard = False, self.heard
        waiting = bool(self.oracle.outstanding) or self.session.unacknowledged > 0
        events = self.session.handle_timer(self.now)
        if due is None or self.now < due:
            assert events == []
        if events:
            (closed,) = events
            assert isinstance(closed, Closed)
            self.oracle.state = "CLOSED"
            reasons = {"no session after": before is not SessionState.OPEN}
            reasons["acknowledgments are missing"] = waiting and not heard
            reasons["idle for"] = before is SessionState.OPEN
            assert any(closed.reason.startswith(it) for it, holds in reasons.items() if holds)
            assert closed.clean == closed.reason.startswith("idle for")
        elif before is not SessionState.CLOSED:
            following = self.session.next_timer()
            assert following is not None
            assert following > self.now, "no timer rings for ever"
        self.hear()

    @rule(really=rarely)
    def owner_closes(self, really: bool) -> None:
        if really:
            was_closed = self.session.state is SessionState.CLOSED
            events = self.session.close("enough", self.now)
            assert events == ([] if was_closed else [Closed("enough", True)])
            self.oracle.state = "CLOSED"
            self.hear()

    # What is compared.

    def tell(self, packets: list[bytes]) -> None:
        self.compare(self.session.receive(packets, self.now), self.oracle.receive(packets))

    def compare(self, events: list[Event], expected: list[Expected]) -> None:
        self.heard = True
        assert [_plainly(event) for event in events] == expected
        for event in events:
            if isinstance(event, MessageReceived) and event.recoverable_number:
                self.unstored.append(event.recoverable_number)
        self.hear()

    def hear(self) -> None:
        """Everything that the session says, each byte once."""
        for packet in self.buffer.feed(self.session.data_to_send()):
            self.oracle.hear(packet)
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
        assert oracle.received - oracle.said_received < max(1, min(window // 2, 32))
        if self.at_once:
            assert oracle.said_stored + 1 not in oracle.stored, "stored, and nothing was said"


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
    """Of one read: what the peer acknowledged is told once, behind the rest; the end comes last."""
    released: list[Any] = []
    rest: list[Expected] = []
    for kind, what in expected:
        if kind == "acknowledged":
            assert isinstance(what, list)
            released += what
        else:
            rest.append((kind, what))
    ended = [it for it in rest if it[0] == "closed"]
    told: list[Expected] = [("acknowledged", sorted(released))] if released else []
    return [it for it in rest if it[0] != "closed"] + told + ended


SessionMachine.TestCase.settings = settings(max_examples=300, stateful_step_count=50)
TestSession = SessionMachine.TestCase
