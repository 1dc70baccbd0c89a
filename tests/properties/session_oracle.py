"""What a session may do: an oracle from the specification's rules, that shares no code with it.

It sees every packet that goes in before the session does, and foretells the events; it sees every
byte that comes out, and knows what may be said.  Only which bytes are a packet it takes from the
parsers, which have tests of their own.  [MS-MQQB] 3.1.5
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

from protocol import (
    MalformedPacket,
    PacketKind,
    SessionHeader,
    packet_kind,
    parse_connection_parameters,
    parse_establish_connection,
    parse_session_ack,
    parse_user_message,
)
from tests.process import wire

NULL_GUID = bytes(16)
HALF = 0x7FFF  # what lies further back than this lies ahead
SESSION_HEADER_BYTES = 16

# What is expected of `Session.receive`: events as plain tuples.
Expected = tuple[str, object]


class _Over(Exception):
    """The session has to end."""


@dataclass
class Oracle:
    """One end of a session, as the rules have it; numbers count from the start, without a wrap."""

    initiator: bool
    own_id: bytes
    refuse: bool
    expected_remote: bytes | None
    own_window: int
    state: str = ""
    peer_id: bytes = b""
    peer_window: int = 1
    # What we sent: the kinds of all messages, and which the peer has.
    sent: int = 0
    recoverable_sent: int = 0
    receipt_acknowledged: int = 0
    outstanding: dict[int, int] = field(default_factory=dict)  # number -> recoverable number or 0
    # What came.
    received: int = 0
    recoverable_received: int = 0
    stored: set[int] = field(default_factory=set)
    # What we said.
    said_received: int = 0
    said_stored: int = 0
    transmitted: int = 0
    recoverable_transmitted: int = 0
    answers: list[str] = field(default_factory=list)  # handshake packets that must come out next

    def __post_init__(self) -> None:
        self.state = "WAITING_ECR" if self.initiator else "WAITING_EC"
        self.answers = ["request"] if self.initiator else []

    def start_counting_at(self, sent: int, recoverable: int, received: int, stored: int) -> None:
        """As if so much had happened, and had been acknowledged, before."""
        self.sent = self.receipt_acknowledged = self.transmitted = sent
        self.recoverable_sent = self.recoverable_transmitted = recoverable
        self.received = self.said_received = received
        self.recoverable_received = self.said_stored = stored

    # What goes in.

    def receive(self, packets: list[bytes]) -> list[Expected]:
        """The events of one call."""
        if self.state == "CLOSED":
            return []
        events: list[Expected] = []
        released: list[int] = []
        try:
            for packet in packets:
                self._take(packet, events, released)
        except (MalformedPacket, _Over):
            self.state = "CLOSED"
        if released:
            events.append(("acknowledged", sorted(released)))
        return events + ([("closed", False)] if self.state == "CLOSED" else [])

    def _take(self, packet: bytes, events: list[Expected], released: list[int]) -> None:
        kind = packet_kind(packet)
        if self.state == "OPEN" and kind is PacketKind.USER_MESSAGE:
            message = parse_user_message(packet)
            self.received += 1
            number = 0
            if message.user.flags.delivery:
                number = self.recoverable_received = self.recoverable_received + 1
            stored = packet
            if message.session is not None:
                flags = struct.unpack_from("<H", packet, 2)[0] & ~wire.SH
                stored = packet[:2] + struct.pack("<H", flags) + packet[4:-SESSION_HEADER_BYTES]
            events.append(("message", (stored, number)))
            if message.session is not None:
                self._take_header(message.session, released)
        elif self.state == "OPEN" and kind is PacketKind.SESSION_ACK:
            self._take_header(parse_session_ack(packet), released)
        elif kind is PacketKind.ESTABLISH_CONNECTION and self.state.startswith("WAITING_EC"):
            self._take_establish(packet)
        elif kind is PacketKind.CONNECTION_PARAMETERS and self.state.startswith("WAITING_CP"):
            self._take_parameters(packet, events)
        else:
            raise _Over  # digest 11.2: close

    def _take_establish(self, packet: bytes) -> None:
        """[MS-MQQB] 3.1.5.3"""
        asked = parse_establish_connection(packet)
        if asked.internal.flags.connection_refused:
            raise _Over
        if self.initiator:
            if asked.client != self.own_id or self.expected_remote not in (None, asked.server):
                raise _Over
            self.peer_id = asked.server
            self.answers.append("parameters")
            self.state = "WAITING_CPR"
            return
        foreign = asked.server not in (NULL_GUID, self.own_id)
        self.answers.append("refusal" if foreign or self.refuse else "response")
        if foreign or self.refuse:
            raise _Over
        self.peer_id = asked.client
        self.state = "WAITING_CP"

    def _take_parameters(self, packet: bytes, events: list[Expected]) -> None:
        """[MS-MQQB] 3.1.5.4"""
        asked = parse_connection_parameters(packet)
        if asked.internal.flags.connection_refused:
            raise _Over
        self.peer_window = max(1, asked.window_size)
        if not self.initiator:
            self.answers.append("parameters")
        self.state = "OPEN"
        events.append(("opened", self.peer_id))

    def _take_header(self, header: SessionHeader, released: list[int]) -> None:
        """[MS-MQQB] 3.1.5.5"""
        acknowledged = _count_meant(header.ack_number, self.sent)
        first, flags = header.recoverable_ack_number, header.recoverable_ack_flags
        stored: set[int] = set()
        if first or flags:
            first = _count_meant(first, self.recoverable_sent)
            named = {first + bit for bit in range(32) if flags >> bit & 1}
            if named and max(named) > self.recoverable_sent:
                raise _Over
            # Everything before `first`, and `first` itself unless its own bit says no.
            through = first if not flags or flags & 1 else first - 1
            stored = named | {it for it in self.outstanding.values() if it and it <= through}
        self.receipt_acknowledged = max(self.receipt_acknowledged, acknowledged)
        for number, recoverable_number in list(self.outstanding.items()):
            is_done = recoverable_number in stored
            if not recoverable_number:
                is_done = number <= self.receipt_acknowledged
            if is_done:
                del self.outstanding[number]
                released.append(number)
        self.peer_window = max(1, header.window_size)
        if header.sent_number != self.received & 0xFFFF:
            raise _Over
        if header.recoverable_sent_number != self.recoverable_received & 0xFFFF:
            raise _Over

    def send(self, *, recoverable: bool) -> int:
        """One of ours goes: its number on the session."""
        self.sent += 1
        self.recoverable_sent += recoverable
        self.outstanding[self.sent] = self.recoverable_sent if recoverable else 0
        return self.sent

    # What comes out.

    def hear(self, packet: bytes) -> None:
        """Check a packet that the session says; `wire.parse` has its own rules beside these."""
        said = wire.parse(packet)
        if isinstance(said, wire.Establish | wire.Parameters):
            self._hear_handshake(said)
        elif isinstance(said, wire.Session):
            self._hear_header(said)
        else:
            assert self.peer_id, "no message before the handshake"
            self.transmitted += 1
            self.recoverable_transmitted += said.recoverable
            in_flight = self.transmitted - self.receipt_acknowledged
            assert in_flight <= self.sent - self.receipt_acknowledged
            if said.session is not None:
                assert not said.is_order_ack, "known by having no flag at all"
                self._hear_header(said.session)

    def _hear_handshake(self, said: wire.Establish | wire.Parameters) -> None:
        assert self.answers, "nobody asked"
        expected = self.answers.pop(0)
        if isinstance(said, wire.Parameters):
            assert expected == "parameters"
            return
        assert expected == ("request" if self.initiator else expected)
        assert said.refused == (expected == "refusal")
        assert (said.client if self.initiator else said.server) == self.own_id

    def _hear_header(self, said: wire.Session) -> None:
        assert said.acknowledged == self.received & 0xFFFF
        assert said.sent == self.transmitted & 0xFFFF
        assert said.recoverable_sent == self.recoverable_transmitted & 0xFFFF
        assert said.window == self.own_window
        self.said_received = self.received
        if not said.recoverable_flags:
            assert said.recoverable_acknowledged == 0
            return
        count = said.recoverable_flags.bit_length()
        assert said.recoverable_flags == (1 << count) - 1, "what is stored is told without holes"
        assert said.recoverable_acknowledged == self.said_stored + 1 & 0xFFFF
        told = range(self.said_stored + 1, self.said_stored + 1 + count)
        assert self.stored.issuperset(told), "nothing is acknowledged before it is stored"
        self.said_stored += count


def _count_meant(number: int, sent: int) -> int:
    """The count that 16 bits stand for: the latest that is not ahead of what was sent."""
    behind = (sent - number) & 0xFFFF
    if behind > min(HALF, sent):
        raise _Over
    return sent - behind
