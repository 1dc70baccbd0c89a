"""Order acks and final acks: recognising them, and reading their bodies."""

from __future__ import annotations

import pytest

from protocol import (
    BaseFlags,
    FinalAckBody,
    MalformedPacket,
    MessageClass,
    MessageKind,
    OrderAckBody,
    PrivateQueueName,
    SessionHeader,
    UserMessage,
    append_session_header,
    build_final_ack,
    build_order_ack,
    classify,
    final_ack_body,
    order_ack_body,
    order_queue_name,
    parse_user_message,
    properties_offset,
    sequence_id,
    wide_text,
)
from tests.unit.protocol.samples import OTHER, SOURCE, direct, express_message, put

ORDER_BODY = OrderAckBody(sequence_id(1_700_000_000, 3), 5, 4)
FINAL_BODY = FinalAckBody(sequence_id(1_700_000_000, 3), 5, 2, OTHER, 4711)
ORDER_ACK = build_order_ack(
    source_queue_manager=SOURCE,
    destination=order_queue_name("10.0.0.5"),
    message_number=9,
    sent_time=1_700_000_000,
    body=ORDER_BODY,
)
FINAL_ACK = build_final_ack(
    source_queue_manager=SOURCE,
    destination=order_queue_name("10.0.0.5"),
    message_number=9,
    sent_time=1_700_000_000,
    message_class=MessageClass.ACK_RECEIVE,
    body=FINAL_BODY,
)


def order_ack(**properties: object) -> UserMessage:
    message = parse_user_message(ORDER_ACK)
    return message._replace(properties=message.properties._replace(**properties))  # type: ignore[arg-type]


def test_an_order_ack_has_the_last_acknowledged_position() -> None:
    message = parse_user_message(ORDER_ACK)

    assert classify(message, OTHER) is MessageKind.ORDER_ACK
    assert order_ack_body(message) == ORDER_BODY


def test_a_final_ack_identifies_its_message() -> None:
    message = parse_user_message(FINAL_ACK)

    assert classify(message, OTHER) is MessageKind.FINAL_ACK
    assert final_ack_body(message) == FINAL_BODY


def test_every_class_from_0x4000_on_is_a_final_ack() -> None:
    for message_class in (0x4000, 0x8005, 0x8002, 0xC004, 0xFFFF):
        assert classify(order_ack(message_class=message_class), OTHER) is MessageKind.FINAL_ACK
    for message_class in (0, 1, 2, 0xFE, 0x3FFF):
        assert classify(order_ack(message_class=message_class), OTHER) is MessageKind.ORDINARY


def test_an_acknowledgment_may_have_a_session_header() -> None:
    riding = append_session_header(ORDER_ACK, SessionHeader(1, 0, 0, 1, 1, 64, 0))

    assert classify(parse_user_message(riding), OTHER) is MessageKind.ORDER_ACK


@pytest.mark.parametrize(
    "message",
    [
        order_ack(label=wide_text("QM Ordering ack")),
        order_ack(label=b""),
        order_ack(message_size=35, body=bytes(35)),
        parse_user_message(ORDER_ACK)._replace(
            base=parse_user_message(ORDER_ACK).base._replace(flags=BaseFlags.of(priority=3))
        ),
        express_message(),
    ],
)
def test_a_message_with_one_difference_is_an_ordinary_message(message: UserMessage) -> None:
    assert classify(message, OTHER) is MessageKind.ORDINARY


@pytest.mark.parametrize(
    ("name", "ours"),
    [
        ("TCP:10.0.0.5\\PRIVATE$\\order_queue$", True),
        ("TCP:192.0.2.1\\private$\\ORDER_QUEUE$", True),
        ("OS:anybody\\Private$\\Order_Queue$", True),
        ("TCP:fe80::1\\PRIVATE$\\order_queue$", True),
        ("TCP:10.0.0.5\\order_queue$", False),
        ("TCP:10.0.0.5\\PRIVATE$\\order_queue$;journal", False),
        ("TCP:10.0.0.5\\PRIVATE$\\reorder_queue$", False),
    ],
)
def test_the_order_queue_is_recognised_by_its_name_at_any_address(name: str, ours: bool) -> None:
    message = parse_user_message(ORDER_ACK)
    message = message._replace(user=message.user._replace(destination_queue=direct(name)))

    assert (classify(message, OTHER) is MessageKind.ORDER_ACK) is ours


@pytest.mark.parametrize(
    ("queue_manager", "number", "ours"),
    [(OTHER, 4, True), (bytes(16), 4, True), (SOURCE, 4, False), (OTHER, 5, False)],
)
def test_the_order_queue_is_recognised_by_its_number(
    queue_manager: bytes, number: int, ours: bool
) -> None:
    packet = build_order_ack(
        source_queue_manager=SOURCE,
        destination=PrivateQueueName(queue_manager, number),
        message_number=9,
        sent_time=1_700_000_000,
        body=ORDER_BODY,
    )

    assert (classify(parse_user_message(packet), OTHER) is MessageKind.ORDER_ACK) is ours


def test_reserved_bytes_of_an_order_ack_are_ignored() -> None:
    packet = put(ORDER_ACK, len(ORDER_ACK) - 20, b"\xff" * 20)

    assert order_ack_body(parse_user_message(packet)) == ORDER_BODY


def test_a_final_ack_with_an_invalid_body_is_refused() -> None:
    at = properties_offset(FINAL_ACK) + 32
    message = parse_user_message(put(FINAL_ACK, at, 35))

    assert classify(message, OTHER) is MessageKind.FINAL_ACK
    for read in (final_ack_body, order_ack_body):
        with pytest.raises(MalformedPacket) as refused:
            read(message)
        assert (refused.value.field, refused.value.offset) == ("properties.message_size", at)


def test_an_acknowledgment_is_recoverable_and_asks_for_nothing() -> None:
    for packet in (ORDER_ACK, FINAL_ACK):
        message = parse_user_message(packet)

        assert message.base.flags == 0
        assert message.base.time_to_reach_queue == 0xFFFFFFFF
        assert message.user.flags == 0x00201C20
        assert message.properties.flags == 0
        assert message.properties.body_type == 0
