"""The eight packets that MS-MQQB section 4 prints, read and built byte for byte.

Where the dump and the text of the specification disagree, the dump is right; README.md lists it.
"""

from __future__ import annotations

import pytest

from protocol import (
    INFINITE,
    SIGNATURE,
    VERSION,
    BaseFlags,
    BaseHeader,
    ConnectionParameters,
    DirectQueueName,
    EstablishConnection,
    InternalFlags,
    InternalHeader,
    MalformedPacket,
    MessagePropertiesHeader,
    OperatingSystem,
    PacketBuffer,
    PacketKind,
    Ping,
    PropertyFlags,
    SecurityFlags,
    SecurityHeader,
    SessionAck,
    SessionHeader,
    UserFlags,
    UserHeader,
    UserMessage,
    build_connection_parameters,
    build_establish_connection,
    build_ping,
    build_session_ack,
    build_user_message,
    establish_connection,
    packet_kind,
    parse_connection_parameters,
    parse_establish_connection,
    parse_ping,
    parse_session_ack,
    parse_user_message,
    ping_response,
    wide_text,
)
from protocol.codec.reference import build_plainly, parse_plainly
from protocol.flags import PingFlags
from tests.conformance import published_frames as published

CLIENT = bytes.fromhex("D1587355509195954997B6E611EA26C6")
SERVER = bytes.fromhex("0789CD434C39118F44459078909EA0FC")
INTERNAL = BaseFlags.of(priority=3, internal=1)


def base(size: int, *, reserved: int = 0xC0, flags: BaseFlags = INTERNAL) -> BaseHeader:
    return BaseHeader(VERSION, reserved, flags, SIGNATURE, size, INFINITE)


def internal(packet_type: int) -> InternalHeader:
    return InternalHeader(0, InternalFlags.of(packet_type=packet_type))


def test_frame_1_is_a_ping_request() -> None:
    ping = Ping(PingFlags(0x7D01), 0x5548, 4, CLIENT)

    assert parse_ping(published.PING_REQUEST) == ping
    assert build_ping(ping) == published.PING_REQUEST
    assert ping.flags.not_server
    assert not ping.flags.refused


def test_frame_2_is_the_ping_response() -> None:
    ping = Ping(PingFlags(0xB295), 0x5548, 4, SERVER)

    assert parse_ping(published.PING_RESPONSE) == ping
    assert build_ping(ping) == published.PING_RESPONSE


def test_the_answer_to_frame_1_is_frame_2_except_for_undefined_flags() -> None:
    answer = ping_response(parse_ping(published.PING_REQUEST), queue_manager=SERVER, refused=False)

    assert answer == b"\x01\x00" + published.PING_RESPONSE[2:]


def test_frame_3_is_a_request_to_establish_a_connection() -> None:
    packet = EstablishConnection(
        base(572),
        internal(2),
        CLIENT,
        SERVER,
        501_140_046,
        OperatingSystem.of(constant=0x10, no_ping=1, server=1),
        0,
        b"\x5a" * 512,
    )

    assert parse_establish_connection(published.ESTABLISH_REQUEST) == packet
    assert build_establish_connection(packet) == published.ESTABLISH_REQUEST


def test_frame_4_is_the_answer_to_such_a_request() -> None:
    client = bytes.fromhex("0523741F5EBE7741BC77C4DD7719E474")
    server = bytes.fromhex("EB6A3A3C67F5434187D385CF4D68CEB4")
    packet = establish_connection(
        client=client,
        server=server,
        timestamp=501_140_046,
        operating_system=OperatingSystem.of(constant=0x10, no_ping=1, server=1),
    )

    assert parse_establish_connection(published.ESTABLISH_RESPONSE) == packet
    assert build_establish_connection(packet) == published.ESTABLISH_RESPONSE


@pytest.mark.parametrize(
    "frame", [published.PARAMETERS_REQUEST, published.PARAMETERS_RESPONSE], ids=["5", "6"]
)
def test_frames_5_and_6_are_connection_parameters(frame: bytes) -> None:
    packet = ConnectionParameters(base(32), internal(3), 1496, 120_000, 0, 64)

    assert parse_connection_parameters(frame) == packet
    assert build_connection_parameters(packet) == frame


def frame_7() -> UserMessage:
    """Return the message of frame 7; its body is continued as the dump begins it."""
    name, label = wide_text("OS:a04bm02\\q"), wide_text("mqsender label")
    sid = bytes.fromhex("010500000000000515000000AD4A9EBD36D9FA3D63A656DAE8030000")
    body = b"a\0" * 1000
    return UserMessage(
        base(2224, reserved=0, flags=BaseFlags.of(priority=3))._replace(
            time_to_reach_queue=345_600
        ),
        UserHeader(
            CLIENT,
            bytes(16),
            INFINITE,
            0x524F494C,
            2286,
            UserFlags.of(destination_type=7, security_header=1, properties_header=1),
            DirectQueueName(26, name),
            None,
            None,
            None,
        ),
        None,
        SecurityHeader(SecurityFlags.of(sender_type=1), 28, 0, 0, 0, 0, sid, b"", b"", b"", b""),
        MessagePropertiesHeader(
            PropertyFlags(0x0F),
            *(15, 0, bytes(20), 8, 0, 2000, 2000, 0, 0x8004, 0x6801, 0),
            label,
            b"",
            body,
        ),
        None,
        None,
        None,
        None,
    )


def test_frame_7_is_a_user_message_as_far_as_it_is_printed() -> None:
    packet = build_user_message(frame_7())

    assert len(packet) == 2224
    assert packet[: len(published.USER_MESSAGE_AS_FAR_AS_PRINTED)] == (
        published.USER_MESSAGE_AS_FAR_AS_PRINTED
    )
    assert parse_user_message(packet) == frame_7()


def test_frame_7_is_refused_where_its_dump_stops() -> None:
    with pytest.raises(MalformedPacket) as refused:
        parse_user_message(published.USER_MESSAGE_AS_FAR_AS_PRINTED)

    assert (refused.value.field, refused.value.offset) == ("base.packet_size", 8)


def test_every_header_of_frame_7_can_be_read_from_the_dump_alone() -> None:
    """Set the three sizes that count the missing bytes to the present number."""
    dump = bytearray(published.USER_MESSAGE_AS_FAR_AS_PRINTED) + bytes(2)
    body = len(published.USER_MESSAGE_AS_FAR_AS_PRINTED) - 222
    dump[8:12] = len(dump).to_bytes(4, "little")
    dump[168:172] = body.to_bytes(4, "little")

    message = parse_user_message(bytes(dump))

    whole = frame_7()
    assert message.user == whole.user
    assert message.security == whole.security
    assert message.properties == whole.properties._replace(
        message_size=body, body=whole.properties.body[:body]
    )


def test_frame_8_is_a_session_acknowledgment() -> None:
    header = SessionHeader(1, 0, 0, 0, 0, 64, 0)
    flags = BaseFlags.of(priority=3, internal=1, session_header=1)
    packet = SessionAck(base(36, reserved=0xCD, flags=flags), internal(1), header)

    assert parse_session_ack(published.SESSION_ACK) == header
    assert parse_plainly(SessionAck, published.SESSION_ACK) == packet
    assert build_plainly(packet) == published.SESSION_ACK
    # The reserved byte is arbitrary; all other bytes of the built packet are equal.
    ours = build_session_ack(header)
    assert ours[:1] + b"\xcd" + ours[2:] == published.SESSION_ACK


def test_the_frames_of_tcp_are_divided_from_one_stream() -> None:
    frames = [
        published.ESTABLISH_REQUEST,
        published.PARAMETERS_REQUEST,
        build_user_message(frame_7()),
        published.SESSION_ACK,
    ]

    received = PacketBuffer().feed(b"".join(frames))

    assert received == frames
    assert [packet_kind(packet) for packet in received] == [
        PacketKind.ESTABLISH_CONNECTION,
        PacketKind.CONNECTION_PARAMETERS,
        PacketKind.USER_MESSAGE,
        PacketKind.SESSION_ACK,
    ]
