"""Changes to stored packets: each equals reading, changing and rebuilding the packet."""

from __future__ import annotations

import pytest

from protocol import (
    MalformedPacket,
    SessionHeader,
    UserMessage,
    append_session_header,
    build_user_message,
    parse_user_message,
    patch_class,
    patch_hops,
    patch_sent,
    patch_sequence,
    properties_offset,
    transaction_offset,
    without_session_header,
)
from protocol.patching import body_of
from tests.unit.protocol.samples import (
    OTHER,
    direct,
    express_message,
    full_message,
    put,
    security_header,
    transactional_message,
)

SESSION = SessionHeader(12, 6, 0b111, 3, 1, 64, 0)


def stored(message: UserMessage) -> bytes:
    return without_session_header(build_user_message(message))


def test_a_session_header_is_added_and_removed() -> None:
    packet = stored(transactional_message())

    riding = append_session_header(packet, SESSION)

    message = parse_user_message(riding)
    assert message.session == SESSION
    assert message.base.packet_size == len(packet)
    assert len(riding) == len(packet) + 16
    assert without_session_header(riding) == packet


def test_a_packet_without_a_session_header_is_left_as_it_is() -> None:
    packet = stored(express_message())

    assert without_session_header(packet) is packet


@pytest.mark.parametrize("message", [transactional_message(), full_message()])
def test_a_sequence_is_written_into_the_transaction_header(message: UserMessage) -> None:
    packet = bytearray(stored(message))
    offset = transaction_offset(packet)
    assert offset is not None

    patch_sequence(packet, offset, 0x0102030405060708, 9, 7)

    before, after = parse_user_message(stored(message)), parse_user_message(bytes(packet))
    assert before.transaction is not None
    assert after == before._replace(
        transaction=before.transaction._replace(
            sequence_id=0x0102030405060708, sequence_number=9, previous_number=7
        )
    )


def test_a_message_that_is_not_transactional_has_no_transaction_header() -> None:
    assert transaction_offset(stored(express_message())) is None


@pytest.mark.parametrize("message", [express_message(), transactional_message(), full_message()])
def test_a_sent_message_gets_its_source_time_and_number(message: UserMessage) -> None:
    packet = bytearray(stored(message))

    patch_sent(packet)
    assert packet == stored(message)
    patch_sent(packet, source_queue_manager=OTHER, sent_time=77, message_number=88)

    before, after = parse_user_message(stored(message)), parse_user_message(bytes(packet))
    assert after == before._replace(
        user=before.user._replace(source_queue_manager=OTHER, sent_time=77, message_number=88)
    )


@pytest.mark.parametrize("message", [express_message(), transactional_message(), full_message()])
def test_the_class_is_replaced_after_all_optional_headers(message: UserMessage) -> None:
    packet = stored(message)

    before, after = parse_user_message(packet), parse_user_message(patch_class(packet, 0x8009))

    assert after == before._replace(properties=before.properties._replace(message_class=0x8009))


def test_hops_are_counted_in_the_packet() -> None:
    packet = bytearray(stored(full_message()))

    patch_hops(packet, 29)

    before, after = parse_user_message(stored(full_message())), parse_user_message(bytes(packet))
    assert after.user.flags.hops == 29
    assert after.user.flags == before.user.flags.replace(hops=29)


@pytest.mark.parametrize("kind", range(8))
def test_the_headers_are_found_after_every_kind_of_queue_name(kind: int) -> None:
    name = {5: OTHER, 7: direct("OS:a\\b")}.get(kind, 3 if kind in (2, 3, 4) else None)
    if kind == 6:
        name = parse_user_message(stored(full_message())).user.admin_queue
    message = transactional_message()
    flags = message.user.flags.replace(response_type=kind, security_header=1)
    message = message._replace(
        user=message.user._replace(flags=flags, response_queue=name), security=security_header()
    )
    packet = stored(message)

    offset = transaction_offset(packet)
    assert offset is not None
    assert packet[offset : offset + 20] == stored(transactional_message())[116:136]
    changed = parse_user_message(patch_class(packet, 0x1234))
    assert changed.properties.message_class == 0x1234
    assert changed.security == security_header()


@pytest.mark.parametrize("message", [express_message(), transactional_message(), full_message()])
def test_a_truncated_packet_is_refused(message: UserMessage) -> None:
    packet = stored(message)
    end = properties_offset(packet) + 56
    transaction_end = (transaction_offset(packet) or 44) + 20

    for length in range(end):
        with pytest.raises(MalformedPacket):
            properties_offset(packet[:length])
    for length in range(transaction_end):
        with pytest.raises(MalformedPacket):
            transaction_offset(packet[:length])


def test_a_wrong_size_is_refused() -> None:
    packet = put(stored(transactional_message()), 64, 0xFFFF, 2)

    with pytest.raises(MalformedPacket, match=r"^transaction at offset 65624"):
        transaction_offset(packet)


def test_the_body_is_that_of_the_parsed_packet() -> None:
    for message in (full_message(), transactional_message(), express_message()):
        packet = stored(message)
        assert message.properties.body
        assert body_of(packet) == parse_user_message(packet).properties.body
        assert body_of(packet + bytes(16)) == body_of(packet), "what follows is not part of it"


def test_a_body_beyond_the_end_of_the_packet_is_refused() -> None:
    packet = stored(express_message())
    end = packet.index(body_of(packet)) + len(body_of(packet))
    assert body_of(packet[:end]) == body_of(packet)
    for size in range(end):
        with pytest.raises(MalformedPacket):
            body_of(packet[:size])
