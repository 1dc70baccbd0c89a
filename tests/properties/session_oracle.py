"""The oracle of a session, from the rules of the specification; it shares no code with the session.

It gets every received packet before the session and predicts the events, and it checks every packet
that the session sends.  It uses the parsers, which have tests of their own, to recognize packets.
[MS-MQQB] 3.1.5
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
HALF = 0x7FFF  # a number that is further behind than this is ahead
SESSION_HEADER_BYTES = 16

# The expected events of `Session.receive`, as plain tuples.
Expected = tuple[str, object]


class _SessionEnds(Exception):
    """The session must end."""


@dataclass
class Oracle:
    """One end of a session; its numbers count from the start, without a wrap."""

    initiator: bool
    own_id: bytes
    refuse: bool
    expected_remote: bytes | None
    own_window: int
    state: str = ""
    peer_id: bytes = b""
    peer_window: int = 1
    # Sent packets, and those that the peer has acknowledged.
    sent: int = 0
    recoverable_sent: int = 0
    receipt_acknowledged: int = 0
    outstanding: dict[int, int] = field(default_factory=dict)  # number -> recoverable number or 0
    # Received packets.
    received: int = 0
    recoverable_received: int = 0
    stored: set[int] = field(default_factory=set)
    # Sent acknowledgments.
    acked_received: int = 0
    acked_stored: int = 0
    transmitted: int = 0
    recoverable_transmitted: int = 0
    answers: list[str] = field(default_factory=list)  # handshake packets that must be sent next

    def __post_init__(self) -> None:
        self.state = "WAITING_ECR" if self.initiator else "WAITING_EC"
        self.answers = ["request"] if self.initiator else []

    def start_counting_at(self, sent: int, recoverable: int, received: int, stored: int) -> None:
        """Begin with counts of earlier packets, all of them acknowledged."""
        self.sent = self.receipt_acknowledged = self.transmitted = sent
        self.recoverable_sent = self.recoverable_transmitted = recoverable
        self.received = self.acked_received = received
        self.recoverable_received = self.acked_stored = stored

    # Received packets.

    def receive(self, packets: list[bytes]) -> list[Expected]:
        """Return the expected events of one call."""
        if self.state == "CLOSED":
            return []
        events: list[Expected] = []
        released: list[int] = []
        try:
            for packet in packets:
                self._take(packet, events, released)
        except (MalformedPacket, _SessionEnds):
            self.state = "CLOSED"
        if released:
            events.insert(0, ("acknowledged", sorted(released)))
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
            raise _SessionEnds  # digest 11.2: close

    def _take_establish(self, packet: bytes) -> None:
        """[MS-MQQB] 3.1.5.3"""
        request = parse_establish_connection(packet)
        if request.internal.flags.connection_refused:
            raise _SessionEnds
        if self.initiator:
            if request.client != self.own_id or self.expected_remote not in (None, request.server):
                raise _SessionEnds
            self.peer_id = request.server
            self.answers.append("parameters")
            self.state = "WAITING_CPR"
            return
        foreign = request.server not in (NULL_GUID, self.own_id)
        self.answers.append("refusal" if foreign or self.refuse else "response")
        if foreign or self.refuse:
            raise _SessionEnds
        self.peer_id = request.client
        self.state = "WAITING_CP"

    def _take_parameters(self, packet: bytes, events: list[Expected]) -> None:
        """[MS-MQQB] 3.1.5.4"""
        request = parse_connection_parameters(packet)
        if request.internal.flags.connection_refused:
            raise _SessionEnds
        self.peer_window = max(1, request.window_size)
        if not self.initiator:
            self.answers.append("parameters")
        self.state = "OPEN"
        events.append(("opened", self.peer_id))

    def _take_header(self, header: SessionHeader, released: list[int]) -> None:
        """[MS-MQQB] 3.1.5.5"""
        acknowledged = _full_count(header.ack_number, self.sent)
        first, flags = header.recoverable_ack_number, header.recoverable_ack_flags
        stored: set[int] = set()
        if first or flags:
            first = _full_count(first, self.recoverable_sent)
            named = {first + bit for bit in range(32) if flags >> bit & 1}
            if named and max(named) > self.recoverable_sent:
                raise _SessionEnds
            # Everything before `first`, and `first` itself unless its own bit is 0.
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
            raise _SessionEnds
        if header.recoverable_sent_number != self.recoverable_received & 0xFFFF:
            raise _SessionEnds

    def send(self, *, recoverable: bool) -> int:
        """Count a message that the owner sends; return its number on the session."""
        self.sent += 1
        self.recoverable_sent += recoverable
        self.outstanding[self.sent] = self.recoverable_sent if recoverable else 0
        return self.sent

    # Sent packets.

    def check_sent(self, packet: bytes) -> None:
        """Check a packet that the session sends; `wire.parse` checks further rules."""
        sent = wire.parse(packet)
        if isinstance(sent, wire.Establish | wire.Parameters):
            self._check_handshake(sent)
        elif isinstance(sent, wire.Session):
            self._check_header(sent)
        else:
            assert self.peer_id, "no message before the handshake"
            self.transmitted += 1
            self.recoverable_transmitted += sent.recoverable
            in_flight = self.transmitted - self.receipt_acknowledged
            assert in_flight <= self.sent - self.receipt_acknowledged
            if sent.session is not None:
                assert not sent.is_order_ack, "an order ack carries no acknowledgments"
                self._check_header(sent.session)

    def _check_handshake(self, sent: wire.Establish | wire.Parameters) -> None:
        assert self.answers, "an unexpected handshake packet"
        expected = self.answers.pop(0)
        if isinstance(sent, wire.Parameters):
            assert expected == "parameters"
            return
        assert expected == ("request" if self.initiator else expected)
        assert sent.refused == (expected == "refusal")
        assert (sent.client if self.initiator else sent.server) == self.own_id

    def _check_header(self, sent: wire.Session) -> None:
        assert sent.acknowledged == self.received & 0xFFFF
        assert sent.sent == self.transmitted & 0xFFFF
        assert sent.recoverable_sent == self.recoverable_transmitted & 0xFFFF
        assert sent.window == self.own_window
        self.acked_received = self.received
        if not sent.recoverable_flags:
            assert sent.recoverable_acknowledged == 0
            return
        count = sent.recoverable_flags.bit_length()
        assert sent.recoverable_flags == (1 << count) - 1, (
            "stored messages are acknowledged without holes"
        )
        assert sent.recoverable_acknowledged == self.acked_stored + 1 & 0xFFFF
        acknowledged = range(self.acked_stored + 1, self.acked_stored + 1 + count)
        assert self.stored.issuperset(acknowledged), "nothing is acknowledged before it is stored"
        self.acked_stored += count


def _full_count(number: int, sent: int) -> int:
    """Return the full count for its low 16 bits: the latest one that is not ahead of `sent`."""
    behind = (sent - number) & 0xFFFF
    if behind > min(HALF, sent):
        raise _SessionEnds
    return sent - behind
