"""Messages like the one before leave as they would leave alone."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("proton")

from protocol.names.format_name import parse_destination
from qmd.control_protocol.messages import (
    EXPRESS,
    RECOVERABLE,
    TRANSACTIONAL,
    NewMessage,
    StoredMessage,
)
from qmd.doors.amqp.leaving import encoded
from qmd.doors.amqp.same_packets import SamePackets
from qmd.message.addresses import NO_ADDRESS, queue_address
from qmd.message.build import compose
from qmd.properties.block import with_properties
from qmd.properties.values import MessageProperties

QUEUE: Any = parse_destination("DIRECT=OS:host\\private$\\orders", local_host="host")
ANSWERS: Any = parse_destination("DIRECT=OS:host\\private$\\answers", local_host="host")
SENT_S = 1_700_000_000  # so that a short lifetime is over
MODEL = NewMessage("orders", b"body", "label", RECOVERABLE)


def extension(*sections: Any) -> bytes:
    return with_properties(MessageProperties(*sections))


CHANGES: tuple[dict[str, Any], ...] = (
    {},
    {"body": b""},
    {"body": b"x" * 1000},
    {"label": "another label"},
    {"label": ""},
    {"priority": 6},
    {"time_to_be_received_s": 5},
    {"time_to_reach_queue_s": 5},
    {"correlation_id": bytes(range(20))},
    {"application_tag": 7},
    {"journal": True},
    {"body_type": 31, "body": "text".encode("utf-16-le")},
    {"body_type": 31, "body": b"odd"},
    {"extension": b"own"},
    {"extension": b"{}"},
    {"extension": extension({"region": "east"})},
    {"extension": extension({"region": "west"})},
    {"extension": extension({}, {"message-id": "17"})},
    {"extension": extension({}, {}, {}, {"x-sum": 1}, {"amqp-body": "null"}), "body": b""},
    {"extension": extension({}, {}, {}, {}, {"amqp-body": "sections"}), "body": b"\0\x53\x77\x41"},
    {"message_class": 0x8001, "connector_type": bytes(16)},
    {"sender_id": bytes((1, 1, 0, 0, 0, 0, 0, 5, 18, 0, 0, 0))},
)
MARKS: tuple[dict[str, Any], ...] = ({}, {"abort_count": 2}, {"reason": "it failed"})


def stored(
    number: int, change: dict[str, Any], mark: dict[str, Any], delivery: int, *, answers: bool
) -> StoredMessage:
    packet = compose(
        msgspec.structs.replace(MODEL, **change),
        source=bytes(range(16)),
        destination=queue_address(QUEUE),
        admin=NO_ADDRESS,
        response=queue_address(ANSWERS) if answers else NO_ADDRESS,
        message_number=number,
        sent_time_s=SENT_S + number,
        delivery=delivery,
        position=(1, number, number - 1) if delivery == TRANSACTIONAL else None,
    )
    return StoredMessage(number, 0, packet, **mark)


@given(
    st.lists(
        st.tuples(
            st.integers(1, 200),
            st.sampled_from(CHANGES),
            st.sampled_from(MARKS),
            st.sampled_from((EXPRESS, RECOVERABLE, TRANSACTIONAL)),
            st.booleans(),
        ),
        max_size=4,
    )
)
def test_messages_leave_as_they_would_alone(received: list[Any]) -> None:
    packets = SamePackets("another queue manager")
    for number, change, mark, delivery, answers in received:
        for repeated in range(2):  # the second one is like the first
            one = stored(number + repeated, change, mark, delivery, answers=answers)
            assert packets.encoded(one) == encoded(one, "another queue manager")


@pytest.mark.parametrize("delivery", [EXPRESS, RECOVERABLE, TRANSACTIONAL])
@pytest.mark.parametrize("change", [CHANGES[0], CHANGES[11], CHANGES[15], CHANGES[19]])
def test_only_a_message_with_the_same_fields_is_like_the_last_one(
    delivery: int, change: dict[str, Any]
) -> None:
    packets = SamePackets("")
    packets.encoded(stored(1, change, {}, delivery, answers=False))
    assert packets.find(stored(2, change, {}, delivery, answers=False)) is not None
    for other in (*CHANGES[3:11], *CHANGES[13:15]):
        if "priority" in other and delivery == TRANSACTIONAL:
            continue  # such messages have no priority
        assert packets.find(stored(3, {**change, **other}, {}, delivery, answers=False)) is None
    assert packets.find(stored(3, change, {}, delivery, answers=True)) is None
    assert packets.find(stored(3, change, MARKS[1], delivery, answers=False)) is None


def test_a_packet_that_is_cut_off_is_not_like_the_last_one() -> None:
    packets = SamePackets("")
    whole = stored(1, {}, {}, RECOVERABLE, answers=False)
    packets.encoded(whole)
    for end in range(len(whole.packet)):
        cut = msgspec.structs.replace(whole, packet=whole.packet[:end])
        assert packets.find(cut) is None
