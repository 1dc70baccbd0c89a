"""Headers with the lists of queues of a message: elements, and checks of sizes."""

from __future__ import annotations

import pytest

from protocol import (
    MalformedPacket,
    MqfAddressHeader,
    MqfElement,
    MultiQueueFormatHeader,
    UserMessage,
    build_user_message,
    parse_user_message,
    wide_text,
)
from protocol.names.multi_queue import MQF_ELEMENTS_MAX
from tests.unit.protocol.samples import OTHER, express_message, multi_queue_header, put

AT = 188  # offset of the header: after the properties of the express message


def carrying(header: MultiQueueFormatHeader) -> UserMessage:
    message = express_message()
    flags = message.user.flags.replace(multi_queue_header=1)
    return message._replace(user=message.user._replace(flags=flags), multi_queue=header)


PACKET = build_user_message(carrying(multi_queue_header()))
ADMIN_AT = AT + 12 + 20 + 24 + 16 + 20


def refusal(packet: bytes) -> tuple[str, int]:
    with pytest.raises(MalformedPacket) as refused:
        parse_user_message(packet)
    return refused.value.field, refused.value.offset


def test_elements_of_every_kind_are_read_and_built() -> None:
    assert parse_user_message(PACKET).multi_queue == multi_queue_header()


def test_a_list_has_the_expected_bytes() -> None:
    head = "5C000000 6400 0000 04000000"
    public = "0100 0000" + OTHER.hex()
    private = "0200 0000" + OTHER.hex() + "03000000"
    direct = "0300" + wide_text("OS:a\\b").hex()
    listed = "0600 0000" + OTHER.hex()

    assert PACKET[AT:ADMIN_AT] == bytes.fromhex(head + public + private + direct + listed)
    assert PACKET[-12:] == bytes.fromhex("5E01 0000 03000000 736967 00")


def test_a_size_may_count_the_padding_or_not() -> None:
    named = MqfElement(3, wide_text("OS:a\\bc"))  # ends two bytes after a multiple of four
    empty = multi_queue_header().response
    header = MultiQueueFormatHeader(
        MqfAddressHeader(30, 0x64, 0, 1, (named,)),
        empty._replace(header_id=0xC8),
        empty,
        multi_queue_header().signature,
    )
    packet = build_user_message(carrying(header))

    assert packet[AT : AT + 4] == b"\x1e\0\0\0"
    for wrong in (31, 33):
        assert refusal(put(packet, AT, wrong)) == ("multi_queue.destination.elements", AT + 30)
    padded = parse_user_message(put(packet, AT, 32)).multi_queue
    assert padded == header._replace(destination=header.destination._replace(header_size=32))


@pytest.mark.parametrize(
    ("offset", "value", "size", "field", "at"),
    [
        (0, 11, 4, "destination.header_size", 0),
        (0, 0xFFFFFFFF, 4, "destination.header_size", 0),
        (0, 0x400000, 4, "destination.elements", 12),
        (0, 88, 4, "destination.elements.name", 76),  # the list ends before its last element
        (0, 96, 4, "destination.elements", 92),  # the list is four bytes longer than its elements
        (0, 93, 4, "destination.elements", 92),
        (4, 0xC8, 2, "destination.header_id", 4),
        (8, 5, 4, "destination.elements.format_type", 92),
        (8, 3, 4, "destination.elements", 72),
        (8, 0xFFFFFFFF, 4, "destination.element_count", 8),
        (8, MQF_ELEMENTS_MAX + 1, 4, "destination.element_count", 8),
        (12, 4, 2, "destination.elements.format_type", 12),
        (12, 0, 2, "destination.elements.format_type", 12),
        (92 + 4, 0x64, 2, "admin.header_id", 96),
        (92 + 28 + 4, 0xC8, 2, "response.header_id", 124),
        (92 + 28 + 12, 0x15F, 2, "signature.header_id", 132),
        (92 + 28 + 12 + 4, 0xFFFFFFFF, 4, "signature.signature", 140),
        (92 + 28 + 12 + 4, 5, 4, "signature.signature", 140),
    ],
)
def test_a_list_that_breaks_a_rule_is_refused(
    offset: int, value: int, size: int, field: str, at: int
) -> None:
    packet = put(PACKET, AT + offset, value, size)

    assert refusal(packet) == (f"multi_queue.{field}", AT + at)


def test_a_direct_name_without_an_end_does_not_run_into_the_next_list() -> None:
    name_at = ADMIN_AT + 14
    packet = put(PACKET, name_at, b"a\0" * 7)

    field, offset = refusal(packet)

    assert (field, offset) == ("multi_queue.admin.elements.name", name_at)


def test_the_length_of_a_list_is_limited_also_when_it_is_built() -> None:
    header = multi_queue_header()
    many = (MqfElement(3, b"\0\0"),) * (MQF_ELEMENTS_MAX + 1)

    with pytest.raises(MalformedPacket, match=r"^multi_queue\.response\.element_count"):
        build_user_message(
            carrying(header._replace(response=header.response._replace(elements=many)))
        )


@pytest.mark.parametrize(
    "element",
    [
        MqfElement(1, OTHER[:15]),
        MqfElement(2, OTHER),
        MqfElement(3, b"a\0"),
        MqfElement(3, None),  # type: ignore[arg-type]
        MqfElement(4, OTHER),
    ],
)
def test_an_element_of_an_unknown_type_is_not_built(element: MqfElement) -> None:
    header = multi_queue_header()

    with pytest.raises(MalformedPacket, match=r"^multi_queue\.response\.elements"):
        build_user_message(
            carrying(header._replace(response=header.response._replace(elements=(element,))))
        )
