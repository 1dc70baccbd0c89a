"""User messages: reading, ignored fields, and the position of each refusal."""

from __future__ import annotations

from typing import Any

import pytest

from protocol import (
    LARGE_PACKET_BYTES_MAX,
    BaseFlags,
    DirectQueueName,
    MalformedPacket,
    PrivateQueueName,
    UserMessage,
    build_user_message,
    parse_user_message,
    properties_offset,
    wide_text,
)
from protocol.flags import DebugFlags, SecurityFlags, TransactionFlags
from tests.unit.protocol.samples import (
    OTHER,
    express_message,
    full_message,
    put,
    security_header,
    transactional_message,
)

EXPRESS = build_user_message(express_message())
TRANSACTIONAL = build_user_message(transactional_message())
FULL = build_user_message(full_message())

DESTINATION = 64
PROPERTIES = 116


def refusal(packet: bytes) -> tuple[str, int]:
    """Return the field and the offset of the error for which the packet is refused."""
    with pytest.raises(MalformedPacket) as refused:
        parse_user_message(packet)
    assert refused.value.rule
    return refused.value.field, refused.value.offset


def with_flags(message: UserMessage, **values: int) -> bytes:
    """Return the packet of the message with flags that were changed after it was built."""
    word = message.user.flags.replace(**values)
    return put(build_user_message(message), 60, word)


def with_security(offset: int, value: int, size: int) -> bytes:
    """Return a packet with a SecurityHeader, in which a number was changed."""
    message = express_message()
    flags = message.user.flags.replace(security_header=1)
    packet = build_user_message(
        message._replace(user=message.user._replace(flags=flags), security=security_header())
    )
    return put(packet, PROPERTIES + offset, value, size)


@pytest.mark.parametrize("message", [express_message(), transactional_message(), full_message()])
def test_a_message_is_read_as_it_was_built(message: UserMessage) -> None:
    packet = build_user_message(message)

    size = len(packet) - (16 if message.session else 0)
    assert parse_user_message(packet) == message._replace(
        base=message.base._replace(packet_size=size)
    )


@pytest.mark.parametrize("packet", [EXPRESS, TRANSACTIONAL, FULL])
def test_a_message_truncated_at_any_byte_is_refused(packet: bytes) -> None:
    for length in range(len(packet)):
        field, offset = refusal(packet[:length])
        assert field
        assert 0 <= offset <= length


@pytest.mark.parametrize("packet", [EXPRESS, TRANSACTIONAL, FULL])
def test_a_packet_size_that_ends_in_the_middle_is_refused(packet: bytes) -> None:
    riding = 16 if packet is FULL else 0
    properties_end = {EXPRESS: 188, TRANSACTIONAL: 208, FULL: len(FULL) - 16}[packet]
    for size in range(properties_end - 4):
        cut = put(packet[: size + riding], 8, size) if size + riding >= 12 else packet[:size]
        refusal(cut)


@pytest.mark.parametrize(
    ("packet", "field", "offset"),
    [
        (put(EXPRESS, 0, 0x11, 1), "base.version", 0),
        (put(EXPRESS, 4, b"LIOS"), "base.signature", 4),
        (put(EXPRESS, 8, 19), "base.packet_size", 8),
        (put(EXPRESS, 8, 0x400001), "base.packet_size", 8),
        (put(EXPRESS, 8, len(EXPRESS) + 1), "base.packet_size", 8),
        (put(EXPRESS, 8, len(EXPRESS) - 1), "properties.body", 185),
        (EXPRESS + b"\0", "base.packet_size", 8),
        (put(EXPRESS, 2, 0x000B, 2), "base.flags.internal", 2),
        (put(EXPRESS, 2, 0x0100, 2), "base.flags.debug_header", 2),
        (put(EXPRESS, 2, 0x0013, 2), "session.ack_number", len(EXPRESS)),
        (put(FULL, 2, 0x0120, 2), "base.packet_size", 8),
    ],
)
def test_a_base_header_that_breaks_a_rule_is_refused(
    packet: bytes, field: str, offset: int
) -> None:
    assert refusal(packet) == (field, offset)


@pytest.mark.parametrize(
    ("packet", "field"),
    [
        (with_flags(express_message(), hops=30), "user.flags.hops"),
        (with_flags(express_message(), hops=31), "user.flags.hops"),
        (with_flags(express_message(), delivery=2), "user.flags.delivery"),
        (with_flags(express_message(), delivery=3), "user.flags.delivery"),
        (with_flags(transactional_message(), delivery=0), "user.flags.delivery"),
        (with_flags(express_message(), properties_header=0), "user.flags.properties_header"),
        (with_flags(express_message(), http_header=1), "user.flags.http_header"),
        *(
            (with_flags(express_message(), destination_type=kind), "user.flags.destination_type")
            for kind in (1, 2, 4, 6)
        ),
        *(
            (with_flags(express_message(), admin_type=kind), "user.flags.admin_type")
            for kind in (1, 4)
        ),
    ],
)
def test_user_flags_that_the_specification_forbids_are_refused(packet: bytes, field: str) -> None:
    assert refusal(packet) == (field, 60)


@pytest.mark.parametrize(
    ("name", "field", "offset"),
    [
        (b"\x00\x00", "user.destination_queue.name", 66),  # no room for the terminator
        (b"\x02\x00a\x00", "user.destination_queue.name", 66),
        (b"\x03\x00a\x00\x00", "user.destination_queue.name", 66),
        (b"\x05\x00a\x00\x00\x00\x00", "user.destination_queue.name", 66),
        (b"\x06\x00a\x00\x00\x00\x00\x00", "user.destination_queue.name", 66),
        (b"\x04\x00\x00\x00a\x00", "user.destination_queue.name", 66),
        (b"\x04\x00a\x00\x00b", "user.destination_queue.name", 66),
        (b"\x04\x00\x00a\x00\x00", None, 0),  # U+6100: the zeros belong to two different characters
        (b"\xff\xff", "user.destination_queue.name", 66),
    ],
)
def test_a_queue_name_ends_with_its_only_null(name: bytes, field: str | None, offset: int) -> None:
    rest = EXPRESS[PROPERTIES:]
    packet = EXPRESS[:DESTINATION] + name
    packet += bytes(-len(packet) % 4) + rest
    packet = put(packet, 8, len(packet))

    if field:
        assert refusal(packet) == (field, offset)
    else:
        assert parse_user_message(packet).user.destination_queue == DirectQueueName(4, name[2:])


@pytest.mark.parametrize(
    ("packet", "field", "offset"),
    [
        (put(EXPRESS, PROPERTIES + 1, 0xFB, 1), "properties.label_length", 1),
        (put(EXPRESS, PROPERTIES + 1, 3, 1), "properties.label", 56),
        (put(EXPRESS, PROPERTIES + 1, 5, 1), "properties.label", 56),
        (put(EXPRESS, PROPERTIES + 1, 0xFA, 1), "properties.label", 56),
        (put(EXPRESS, PROPERTIES + 58, b"\0\0"), "properties.label", 56),
        (put(EXPRESS, PROPERTIES + 32, 0xFFFFFFFF), "properties.body", 69),
        (put(EXPRESS, PROPERTIES + 32, 4), "properties.body", 69),
        (put(EXPRESS, PROPERTIES + 52, 0xFFFFFFFF), "properties.extension", 64),
        (put(EXPRESS, PROPERTIES + 52, 0x80000000), "properties.extension", 64),
    ],
)
def test_properties_with_wrong_sizes_are_refused(packet: bytes, field: str, offset: int) -> None:
    assert refusal(packet) == (field, PROPERTIES + offset)


@pytest.mark.parametrize(
    ("packet", "field", "offset"),
    [
        (with_security(0, 3, 2), "security.flags.sender_type", 0),
        (with_security(0, 0, 2), "security.sender_id_size", 2),
        (with_security(8, 0x10000, 4), "security.certificate_size", 8),
        (with_security(12, 0xFFFFFFFF, 4), "security.provider", 44),
        (with_security(2, 0xFFFF, 2), "security.sender_id", 16),
    ],
)
def test_a_security_header_that_breaks_a_rule_is_refused(
    packet: bytes, field: str, offset: int
) -> None:
    assert refusal(packet) == (field, PROPERTIES + offset)


def test_a_security_header_without_any_data_is_refused() -> None:
    packet = put(with_security(0, 0, 2), PROPERTIES, bytes(16))

    assert refusal(packet) == ("security.provider_size", PROPERTIES + 12)


def test_a_debug_header_has_a_queue_or_none() -> None:
    message = express_message()
    flags = BaseFlags.of(debug_header=1)
    message = message._replace(
        base=message.base._replace(flags=flags),
        debug=full_message().debug._replace(flags=type(full_message().debug.flags)(0), queue=None),
    )
    packet = build_user_message(message)
    at = len(packet) - 4

    assert parse_user_message(packet).debug == message.debug
    for kind in (2, 3):
        assert refusal(put(packet, at, kind, 2)) == ("debug.flags.queue_type", at)
    assert refusal(put(packet, at, 1, 2)) == ("debug.queue", at + 4)


def test_a_soap_header_states_its_sections() -> None:
    at = FULL.index(b"\x20\x03\x00\x00\x03\x00\x00\x00")

    assert refusal(put(FULL, at, 0x321, 2)) == ("soap.header_section", at)
    assert refusal(put(FULL, at + 16, 0x385, 2)) == ("soap.body_section", at + 14)
    for length in (0x80000000, 0xFFFFFFFF, 2):
        assert refusal(put(FULL, at + 4, length)) == ("soap.header", at + 8)


def test_soap_sections_are_read_with_and_without_padding_between() -> None:
    message = express_message()
    flags = message.user.flags.replace(soap_header=1)
    message = message._replace(user=message.user._replace(flags=flags), soap=full_message().soap)
    padded = build_user_message(message)
    at = padded.index(b"\x20\x03\x00\x00\x03\x00\x00\x00") + 14
    bare = put(padded[:at] + padded[at + 2 :] + b"\xaa\xaa", 8, len(padded))

    assert padded[at : at + 4] == b"\0\0\x84\x03"
    assert parse_user_message(bare) == parse_user_message(padded)


@pytest.mark.parametrize(
    ("offset", "value"),
    [
        (1, b"\x5a"),  # the reserved byte
        (2, b"\xc3\xfe"),  # every reserved flag
        (12, b"\x00\x00\x00\x00"),
        (60, b"\x80\x1c\x20\xed"),  # X1 to X4
        (114, b"\xcd\xcd"),  # padding of the queue name
        (PROPERTIES, b"\xff"),  # unknown bits, and acknowledgments without an admin queue
        (PROPERTIES + 2, b"\x34\x12"),  # an undefined class
        (PROPERTIES + 24, b"\xff\xff\xff\xff"),  # body type
        (PROPERTIES + 36, b"\x00\x00\x00\x00"),  # the allocated size is below that of the body
        (PROPERTIES + 40, b"\xff" * 12),  # privacy and algorithms
    ],
)
def test_the_fields_that_the_specification_ignores_are_ignored(offset: int, value: bytes) -> None:
    packet = put(EXPRESS, offset, value)

    message = parse_user_message(packet)

    assert message.properties.body == b"ABC"
    if offset != 114:
        assert build_user_message(message) == packet, "and kept"


def test_unused_bits_and_fields_of_optional_headers_are_ignored() -> None:
    """[MS-MQMQ] 2.2.20.2 to 2.2.20.8"""
    plain: Any = parse_user_message(FULL)
    transaction, security, debug = plain.transaction, plain.security, plain.debug
    lists, soap, session = plain.multi_queue, plain.soap, plain.session
    odd = plain._replace(
        transaction=transaction._replace(flags=TransactionFlags(transaction.flags | 0xFF << 24)),
        security=security._replace(flags=SecurityFlags(security.flags | 0xF << 12)),
        debug=debug._replace(flags=DebugFlags(debug.flags | 0xFFFC), reserved=0xFFFF),
        soap=soap._replace(header_reserved=0xFFFF, body_reserved=0xFFFF),
        session=session._replace(reserved=0xFFFF),
        multi_queue=lists._replace(
            destination=lists.destination._replace(reserved=0xFFFF),
            admin=lists.admin._replace(reserved=0xFFFF),
            response=lists.response._replace(reserved=0xFFFF),
            signature=lists.signature._replace(reserved=0xFFFF),
        ),
    )
    packet = build_user_message(odd)
    assert len(packet) == len(FULL)

    read: Any = parse_user_message(packet)

    assert read == odd, "they are kept"
    assert read.transaction.flags.index == transaction.flags.index
    assert read.security.flags.sender_type == security.flags.sender_type
    assert read.debug.queue == debug.queue
    assert (read.soap.header, read.soap.body) == (soap.header, soap.body)
    assert read.session.window_size == session.window_size
    assert read.properties == plain.properties


def test_bytes_after_the_last_header_are_skipped() -> None:
    extension_header = b"\x0c\0\0\0" + bytes(8)
    packet = put(EXPRESS + extension_header, 8, len(EXPRESS) + 12)
    riding = put(put(packet, 2, 0x13, 2) + bytes(range(16)), 8, len(packet))

    assert parse_user_message(packet).properties == parse_user_message(EXPRESS).properties
    session = parse_user_message(riding).session
    assert session is not None
    assert session.ack_number == 0x0100


def test_headers_do_not_reach_into_the_session_header() -> None:
    """The 16 bytes after PacketSize must not be read as a user header."""
    packet = put(EXPRESS[:66], 2, 0x13, 2)

    assert refusal(put(packet, 8, 50)) == ("user.time_to_be_received", 48)
    for size in range(64, len(EXPRESS)):
        field, offset = refusal(put(put(EXPRESS[:size] + bytes(16), 2, 0x13, 2), 8, size))
        assert field.startswith(("user", "properties"))
        assert offset <= size + 3, "or behind the padding that is missing"


def test_the_padding_of_the_last_header_may_be_missing() -> None:
    packet = EXPRESS[:188]  # 116 + 56 + 8 + 5 + 3

    assert len(packet) % 4 == 0
    for size in (1, 2, 3):
        body = size.to_bytes(4, "little")
        short = put(put(packet[: 185 + size], 8, 185 + size), PROPERTIES + 32, body)
        assert parse_user_message(short).properties.body == b"ABC"[:size]


def test_every_kind_of_queue_name_is_read_by_its_type() -> None:
    private = PrivateQueueName(OTHER, 7)
    names = {
        0: None,
        1: None,
        2: 5,
        3: 6,
        4: 7,
        5: OTHER,
        6: private,
        7: DirectQueueName(2, b"\0\0"),
    }
    for kind, name in names.items():
        message = express_message()
        flags = message.user.flags.replace(response_type=kind)
        message = message._replace(user=message.user._replace(flags=flags, response_queue=name))

        assert parse_user_message(build_user_message(message)).user.response_queue == name


@pytest.mark.parametrize(
    ("header", "flag"),
    [
        ("transaction", "transaction_header"),
        ("security", "security_header"),
        ("soap", "soap_header"),
        ("multi_queue", "multi_queue_header"),
    ],
)
def test_flags_must_match_the_headers(header: str, flag: str) -> None:
    message, full = express_message(), full_message()
    recoverable = message.user._replace(flags=message.user.flags.replace(delivery=1))
    announced = recoverable._replace(flags=recoverable.flags.replace(**{flag: 1}))

    with pytest.raises(MalformedPacket, match=f"^{header} at offset .* flags announce it"):
        build_user_message(message._replace(user=announced))
    with pytest.raises(MalformedPacket, match=f"^{header} at offset .* do not announce it"):
        build_user_message(message._replace(**{header: getattr(full, header)}))


def test_a_session_header_and_a_debug_header_need_their_flags() -> None:
    message, full = express_message(), full_message()

    for header in ("session", "debug"):
        with pytest.raises(MalformedPacket, match=f"^{header} at"):
            build_user_message(message._replace(**{header: getattr(full, header)}))


@pytest.mark.parametrize("wrong", [None, 5, OTHER[:15], PrivateQueueName(OTHER, 1), "TCP:a\\b"])
def test_a_queue_name_of_the_wrong_type_is_not_built(wrong: object) -> None:
    message = express_message()

    with pytest.raises(MalformedPacket, match=r"^user\.destination_queue"):
        build_user_message(
            message._replace(user=message.user._replace(destination_queue=wrong))  # type: ignore[arg-type]
        )


@pytest.mark.parametrize("kind", [0, 1])
def test_no_queue_name_is_built_where_the_flags_announce_none(kind: int) -> None:
    message = express_message()
    flags = message.user.flags.replace(response_type=kind)
    user = message.user._replace(flags=flags, response_queue=OTHER)

    with pytest.raises(MalformedPacket, match=r"^user\.response_queue at offset 116"):
        build_user_message(message._replace(user=user))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("message_number", 2**32),
        ("sent_time", -1),
        ("source_queue_manager", bytes(15)),
        ("destination_queue", 2**32),
    ],
)
def test_a_value_that_does_not_fit_its_field_is_named(field: str, value: object) -> None:
    message = express_message()
    flags = message.user.flags.replace(destination_type=3)
    user = message.user._replace(flags=flags, destination_queue=1)

    with pytest.raises(MalformedPacket, match=f"^user.{field} at offset "):
        build_user_message(message._replace(user=user._replace(**{field: value})))


def test_a_label_has_at_most_249_characters() -> None:
    message = express_message()

    def labelled(count: int) -> UserMessage:
        label = wide_text("x" * count)
        return message._replace(properties=message.properties._replace(label=label))

    packet = build_user_message(labelled(249))
    assert parse_user_message(packet).properties.label_length == 0xFA
    for count in (250, 300):
        with pytest.raises(MalformedPacket, match="label_length"):
            build_user_message(labelled(count))


def test_the_largest_packet_is_built_and_read_but_no_larger_one() -> None:
    message = express_message()
    room = LARGE_PACKET_BYTES_MAX - properties_offset(EXPRESS) - 56 - 8 - 5

    def carrying(size: int) -> UserMessage:
        return message._replace(properties=message.properties._replace(body=bytes(size)))

    packet = build_user_message(carrying(room))
    assert len(packet) == LARGE_PACKET_BYTES_MAX
    assert parse_user_message(packet).properties.message_size == room
    with pytest.raises(MalformedPacket, match=r"^base.packet_size at offset 8"):
        build_user_message(carrying(room + 1))
