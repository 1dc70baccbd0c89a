"""Targets: streams in pieces of any size, split into packets and given to a session.

The packets of a stream do not depend on its pieces, and memory grows with the received bytes, not
with the announced sizes.  A session accepts any packets at any time, and either continues or closes
with a reason; its own output can always be parsed.
"""

from __future__ import annotations

from collections.abc import Iterable

from protocol import MalformedPacket, PacketKind, packet_kind, parse_user_message
from protocol.framing import BUFFER_BYTES, BrokenStream, PacketBuffer
from protocol.internal_packets import (
    parse_connection_parameters,
    parse_establish_connection,
    parse_session_ack,
)
from qmd.core.session import Closed, Event, MessageReceived, Session, SessionSettings, SessionState
from tests.fuzz import mutation
from tests.fuzz.limits import PROCESSOR_S_MAX, within_limits
from tests.fuzz.packets import OWN_ID, message_packets
from tests.fuzz.target import Target, numbers, pieces, steered
from tests.process import wire

PACKET_BYTES_MAX = 0x400000
STEPS_MAX = 16
READ_S_MAX = 20e-6  # of a read of one byte
PEER_ID = bytes(range(100, 116))


def streams() -> Iterable[bytes]:
    """Return packets in a row, after a byte that announces no steering numbers."""
    packets = list(message_packets())
    yield b"\0" + b"".join(packets)
    yield b"\0" + b"".join(wire.session_ack(wire.Session(n)) for n in range(20))
    yield b"\x03\x01\x07\xff" + packets[0] + packets[3]


def conversations() -> Iterable[bytes]:
    """Return the bytes of a peer from the beginning; the first number selects the role."""
    opening = wire.establish(client=PEER_ID) + wire.parameters()
    answer = wire.establish(client=OWN_ID, server=PEER_ID, padding=b"\x5a" * 512)
    messages = b"".join(message_packets())
    for role, head in ((0, opening), (1, answer + wire.parameters()), (2, b""), (3, b"")):
        steering = bytes((2, role, 0))
        yield steering + head
        yield steering + head + messages
        yield steering + head + wire.session_ack(wire.Session(0, window=1)) + messages
        yield steering + head + wire.session_ack(wire.Session(3, 1, 1))


# Checks.


def check_framing(data: bytes) -> None:
    """Check that pieces of any size give the same packets as the whole stream."""
    sizes, stream = numbers(data, 8)
    within_limits(_check_framing, stream, sizes, seconds_max=_seconds_max(stream))


def _seconds_max(stream: bytes) -> float:
    """Return the time limit of a stream: byte by byte, each read is watched by the fuzzer."""
    return PROCESSOR_S_MAX + READ_S_MAX * len(stream)


def _check_framing(stream: bytes, sizes: list[int]) -> None:
    buffer = PacketBuffer()
    packets: list[bytes] = []
    is_broken = False
    came = 0
    for piece in pieces(stream, sizes):
        came += len(piece)
        try:
            packets += buffer.feed(piece)
        except BrokenStream as broken:
            packets += broken.packets
            is_broken = True
            break
        # The buffer doubles when more than a half is used: up to four times the bytes, less them.
        assert 0 < len(buffer.get_buffer()) <= max(BUFFER_BYTES, 3 * came)
    expected, must_break = _cut(stream[:came] if is_broken else stream)
    assert packets == expected
    assert is_broken == must_break


def _cut(stream: bytes) -> tuple[list[bytes], bool]:
    """Return the complete packets of a stream, and whether the rest begins no packet."""
    packets: list[bytes] = []
    at = 0
    while head := stream[at : at + 12]:
        if head[0] != 0x10 or (len(head) >= 8 and head[4:8] != b"LIOR"):
            return packets, True
        if len(head) < 12:
            break
        size = int.from_bytes(head[8:], "little")
        if not 20 <= size <= PACKET_BYTES_MAX:
            return packets, True
        size += 16 if head[2] & 0x18 == 0x10 else 0
        if at + size > len(stream):
            break
        packets.append(stream[at : at + size])
        at += size
    return packets, False


def check_session(data: bytes) -> None:
    """Check a whole session against a peer that sends anything."""
    steering, stream = numbers(data, STEPS_MAX)
    within_limits(_check_session, stream, steering, seconds_max=_seconds_max(stream))


def _check_session(stream: bytes, steering: list[int]) -> None:
    role, *acts = steering or [0]
    session = _session(role)
    buffer, said, now = PacketBuffer(), PacketBuffer(), 0.0
    received = 0
    for turn, piece in enumerate(pieces(stream, acts[:3])):
        now += 0.1
        try:
            packets = buffer.feed(piece)
        except MalformedPacket as broken:
            packets = broken.packets if isinstance(broken, BrokenStream) else []
            received += len(_messages(session.receive(packets, now)))
            session.close(str(broken), now, clean=False)
            break
        events = session.receive(packets, now)
        assert [event for event in events if isinstance(event, Closed)] == [
            event for event in events[-1:] if session.state is SessionState.CLOSED
        ], "the last event, and only then"
        stored = _messages(events)
        received += len(stored)
        session.mark_stored([it.recoverable_number for it in stored if it.recoverable_number], now)
        _act(session, acts[turn % len(acts)] if acts else 0, now)
        _read_said(said, session)
    assert session.incoming.received_count == received
    if session.state is SessionState.CLOSED:
        assert session.closed_reason
        assert session.receive(_MESSAGES, now) == []


def _messages(events: list[Event]) -> list[MessageReceived]:
    return [event for event in events if isinstance(event, MessageReceived)]


def _session(role: int) -> Session:
    """Return a session: 0 acceptor, 1 initiator, 2 open, 3 with messages under way."""
    settings = SessionSettings(window_size=1 + role // 4)
    session = Session(initiator=role % 4 == 1, own_id=OWN_ID, settings=settings, now=0.0)
    if role % 4 == 1:
        session.start(0.0)
    if role % 4 >= 2:
        session.receive([wire.establish(client=PEER_ID), wire.parameters()], 0.0)
        assert session.state is SessionState.OPEN
    if role % 4 == 3:
        _act(session, 1, 0.0)
    return session


_MESSAGES = list(message_packets())


def _act(session: Session, choice: int, now: float) -> None:
    """Run an action of the session's owner between two reads."""
    match choice % 3:
        case 1:
            while session.room() and session.sent_count < 200:
                packet = _MESSAGES[session.sent_count % 2 + 1]
                session.send(packet, recoverable=bool(session.sent_count % 2), token=0, now=now)
        case 2:
            session.handle_timer((session.next_timer() or now) + 0.01)


_PARSERS = {
    PacketKind.ESTABLISH_CONNECTION: parse_establish_connection,
    PacketKind.CONNECTION_PARAMETERS: parse_connection_parameters,
    PacketKind.SESSION_ACK: parse_session_ack,
    PacketKind.USER_MESSAGE: parse_user_message,
}


def _read_said(said: PacketBuffer, session: Session) -> None:
    for packet in said.feed(session.data_to_send()):
        _PARSERS[packet_kind(packet)](packet)


TARGETS = (
    Target("framing", check_framing, streams, steered(mutation.mutate_stream, 8)),
    Target("session", check_session, conversations, steered(mutation.mutate_stream, STEPS_MAX)),
)
