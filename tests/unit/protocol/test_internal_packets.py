"""The handshake packets and the session ack: sizes and flags are checked, the rest is ignored."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from protocol import (
    MalformedPacket,
    OperatingSystem,
    PacketKind,
    SessionHeader,
    build_connection_parameters,
    build_establish_connection,
    build_session_ack,
    connection_parameters,
    establish_connection,
    packet_kind,
    parse_connection_parameters,
    parse_establish_connection,
    parse_session_ack,
)
from tests.unit.protocol.samples import OTHER, SOURCE, put

ESTABLISH = build_establish_connection(
    establish_connection(
        client=SOURCE,
        server=OTHER,
        timestamp=0x01020304,
        operating_system=OperatingSystem.of(constant=0x10, no_ping=1),
    )
)
PARAMETERS = build_connection_parameters(
    connection_parameters(recoverable_ack_timeout_ms=500, ack_timeout_ms=20_000, window_size=64)
)
ACK = build_session_ack(SessionHeader(12, 6, 0b111, 3, 1, 64, 0))

PACKETS: list[tuple[bytes, Callable[[bytes], Any], PacketKind]] = [
    (ESTABLISH, parse_establish_connection, PacketKind.ESTABLISH_CONNECTION),
    (PARAMETERS, parse_connection_parameters, PacketKind.CONNECTION_PARAMETERS),
    (ACK, parse_session_ack, PacketKind.SESSION_ACK),
]


def test_a_connection_request_names_both_queue_managers_and_the_time() -> None:
    packet = parse_establish_connection(ESTABLISH)

    assert (packet.client, packet.server, packet.timestamp) == (SOURCE, OTHER, 0x01020304)
    assert packet.operating_system.no_ping
    assert not packet.operating_system.server
    assert not packet.internal.flags.connection_refused


def test_a_refusal_is_the_same_packet_with_one_more_bit() -> None:
    refused = build_establish_connection(
        establish_connection(
            client=SOURCE,
            server=OTHER,
            timestamp=0x01020304,
            operating_system=OperatingSystem.of(constant=0x10, no_ping=1),
            refused=True,
        )
    )

    assert refused == put(ESTABLISH, 18, 0x12, 1)
    assert parse_establish_connection(refused).internal.flags.connection_refused


def test_connection_parameters_are_in_milliseconds_and_messages() -> None:
    packet = parse_connection_parameters(PARAMETERS)

    assert (packet.recoverable_ack_timeout, packet.ack_timeout) == (500, 20_000)
    assert packet.window_size == 64


def test_values_out_of_range_are_left_to_the_session() -> None:
    packet = parse_connection_parameters(put(PARAMETERS, 20, bytes(8) + b"\0\0\0\0"))

    assert (packet.recoverable_ack_timeout, packet.ack_timeout, packet.window_size) == (0, 0, 0)


def test_a_session_ack_gives_its_header() -> None:
    assert parse_session_ack(ACK) == SessionHeader(12, 6, 0b111, 3, 1, 64, 0)


@pytest.mark.parametrize(("packet", "parse", "kind"), PACKETS)
def test_each_packet_is_recognised_by_its_first_bytes(
    packet: bytes, parse: Callable[[bytes], Any], kind: PacketKind
) -> None:
    assert packet_kind(packet) is kind


def test_a_packet_that_is_not_internal_is_a_user_message() -> None:
    assert packet_kind(put(ACK, 2, 0x10, 2)) is PacketKind.USER_MESSAGE


@pytest.mark.parametrize("packet_type", [0, *range(4, 16)])
def test_an_unknown_internal_packet_is_refused(packet_type: int) -> None:
    with pytest.raises(MalformedPacket) as refused:
        packet_kind(put(ACK, 18, packet_type, 1))

    assert (refused.value.field, refused.value.offset) == ("internal.flags.packet_type", 18)


def test_the_kind_of_a_packet_is_known_from_twenty_bytes_on() -> None:
    for length in range(20):
        with pytest.raises(MalformedPacket):
            packet_kind(ACK[:length])


@pytest.mark.parametrize(("packet", "parse", "kind"), PACKETS)
def test_the_size_of_each_packet_is_exact(
    packet: bytes, parse: Callable[[bytes], Any], kind: PacketKind
) -> None:
    size = len(packet)
    for wrong in (size - 4, size - 1, size + 1, size + 4, 0, 0xFFFFFFFF):
        with pytest.raises(MalformedPacket):
            parse(put(packet, 8, wrong))
    longer = put(packet + bytes(4), 8, size + 4)
    with pytest.raises(MalformedPacket) as refused:
        parse(longer)
    assert (refused.value.field, refused.value.offset) == ("base.packet_size", 8)
    with pytest.raises(MalformedPacket, match=r"^base\.packet_size"):
        parse(packet + bytes(16))
    for length in range(size):
        with pytest.raises(MalformedPacket):
            parse(packet[:length])


@pytest.mark.parametrize(("packet", "parse", "kind"), PACKETS)
def test_the_flags_must_match_the_kind(
    packet: bytes, parse: Callable[[bytes], Any], kind: PacketKind
) -> None:
    session = 0x10 if kind is PacketKind.SESSION_ACK else 0
    wrong = {
        0x03 | session: "base.flags.internal",
        0x0B | session ^ 0x10: "base.flags.session_header",
        0x2B | session: "base.flags.debug_header",
    }
    for flags, field in wrong.items():
        with pytest.raises(MalformedPacket) as refused:
            parse(put(packet, 2, flags, 2))
        assert (refused.value.field, refused.value.offset) == (field, 2)
    for packet_type in {1, 2, 3} - {packet[18]}:
        with pytest.raises(MalformedPacket) as refused:
            parse(put(packet, 18, packet_type, 1))
        assert (refused.value.field, refused.value.offset) == ("internal.flags.packet_type", 18)


def test_a_session_ack_does_not_refuse_a_connection() -> None:
    with pytest.raises(MalformedPacket, match=r"^internal\.flags\.connection_refused"):
        parse_session_ack(put(ACK, 18, 0x11, 1))


@pytest.mark.parametrize(("packet", "parse", "kind"), PACKETS)
def test_reserved_bits_priority_and_time_are_ignored(
    packet: bytes, parse: Callable[[bytes], Any], kind: PacketKind
) -> None:
    odd = put(packet, 1, 0xC0, 1)
    odd = put(odd, 2, odd[2] & ~7 | 0xC0, 1)
    odd = put(odd, 3, 0xFE, 1)
    odd = put(odd, 12, 5)
    odd = put(odd, 16, b"\xff\xff")
    odd = put(odd, 18, bytes([odd[18] | 0xE0, 0xFF]))

    parse(odd)


def test_the_operating_system_and_the_padding_are_ignored() -> None:
    packet = put(ESTABLISH, 56, b"\0\xf8\xff\xff" + bytes(512))

    assert parse_establish_connection(packet).client == SOURCE


def test_a_guid_of_the_wrong_size_is_not_built() -> None:
    packet = parse_establish_connection(ESTABLISH)._replace(client=bytes(17))

    with pytest.raises(MalformedPacket) as refused:
        build_establish_connection(packet)

    assert (refused.value.field, refused.value.offset) == ("client", 20)
