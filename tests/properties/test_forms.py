"""A packet of a form equals the packet that would have been composed."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from protocol.names.format_name import DirectName, PrivateName, PublicName, SingleName, Transport
from qmd.control_protocol.messages import RECOVERABLE, TRANSACTIONAL, NewMessage
from qmd.message.addresses import NO_ADDRESS, QueueAddress, queue_address, reply_address
from qmd.message.build import compose
from qmd.message.template import Row, Template, shape

GUIDS = st.binary(min_size=16, max_size=16)
NAMES: st.SearchStrategy[SingleName] = st.one_of(
    st.builds(
        lambda host, queue: DirectName(Transport.OS, host, 1801, queue, private=True),
        st.text("abcdefghij", min_size=1, max_size=9),
        st.text("klmnopqrst", min_size=1, max_size=9),
    ),
    st.builds(PrivateName, GUIDS, st.integers(1, 0xFFFFFFFF)),
    st.builds(PublicName, GUIDS),
)
SECONDS = st.none() | st.integers(0, 0xFFFFFFFF)
# The common properties of the messages of one form.
SHAPES = st.builds(
    NewMessage,
    st.just("orders"),
    st.just(b""),
    priority=st.integers(0, 7),
    time_to_reach_queue_s=SECONDS,
    time_to_be_received_s=SECONDS,
    dead_letter=st.sampled_from([None, True, False]),
    journal=st.booleans(),
    acknowledge=st.integers(0, 15),
    sender_id=st.sampled_from([b"", bytes(12), bytes(28)]),
    connector_type=st.sampled_from([b"", bytes(range(16))]),
)
OWN = st.fixed_dictionaries(
    {
        "body": st.binary(max_size=50),
        "label": st.text("äb😀", max_size=9),
        "extension": st.binary(max_size=9),
        "correlation_id": st.sampled_from([b"", bytes(range(20))]),
        "body_type": st.integers(0, 0xFFFFFFFF),
        "application_tag": st.integers(0, 0xFFFFFFFF),
    }
)


#: Whether each message has the properties of the one before it, and a body of the same length.
ALIKE = st.lists(st.booleans(), min_size=5, max_size=5)


def with_alike(own: list[dict[str, Any]], alike: list[bool]) -> list[dict[str, Any]]:
    """Return the properties of messages of which some follow others like them."""
    made = own[:1]
    for each, is_alike in zip(own[1:], alike, strict=False):
        body = bytes(255 - byte for byte in made[-1]["body"])
        made.append({**made[-1], "body": body} if is_alike else each)
    return made


def row_of(new: NewMessage) -> Row:
    """Return a message as a staged row is read."""
    rows: list[Row] = msgspec.msgpack.decode(msgspec.msgpack.encode([new]), type=list[tuple])
    return rows[0]


@given(
    common=SHAPES,
    own=st.builds(with_alike, st.lists(OWN, min_size=2, max_size=6), ALIKE),
    name=NAMES,
    replies=st.tuples(st.none() | NAMES, st.none() | NAMES),
    delivery=st.sampled_from([RECOVERABLE, TRANSACTIONAL]),
    number=st.integers(0, 0xFFFFFF00),
    index=st.integers(0, 0xFFFFF),
)
def test_a_packet_of_a_form_equals_a_composed_packet(
    common: NewMessage,
    own: list[dict[str, object]],
    name: SingleName,
    replies: tuple[SingleName | None, SingleName | None],
    delivery: int,
    number: int,
    index: int,
) -> None:
    admin, response = (NO_ADDRESS if each is None else reply_address(each) for each in replies)
    messages = [msgspec.structs.replace(common, **each) for each in own]
    rows = [row_of(message) for message in messages]
    numbers = [number + 3 * at for at in range(len(rows))]

    def composed(message: NewMessage, number: int, index: int) -> bytes:
        return _composed(message, queue_address(name), admin, response, delivery, number, index)

    form = Template(composed(messages[0], 0, 0))

    assert len({shape(row) for row in rows}) == 1
    assert form.fits
    assert form.packets(rows, numbers, index) == [
        composed(message, numbers[at], index + at & 0xFFFFF) for at, message in enumerate(messages)
    ]


def test_like_messages_of_a_sequence_follow_each_other() -> None:
    model = NewMessage("orders", b"", label="x")
    form = Template(_composed(model, NO_ADDRESS, NO_ADDRESS, NO_ADDRESS, TRANSACTIONAL, 0, 0))
    bodies = [b"abc", b"def", b"ghi", b"longer", b"longes"]
    rows = [row_of(NewMessage("orders", body, label="x")) for body in bodies]
    alone = [
        form.packets([row], [10 + at], 7 + at, place=(5, 3 + at, 2 + at))
        for at, row in enumerate(rows)
    ]

    packets = form.packets(rows, range(10, 15), 7, place=(5, 3, 2), follow=True)

    assert packets is not None
    assert [[packet] for packet in packets] == alone


def test_an_invalid_row_has_no_packet() -> None:
    form = Template(
        _composed(NewMessage("orders", b""), NO_ADDRESS, NO_ADDRESS, NO_ADDRESS, 1, 0, 0)
    )

    for wrong in (
        {"label": 250 * "a"},
        {"label": 125 * "😀"},
        {"correlation_id": b"short"},
        {"application_tag": 1 << 32},
        {"body_type": -1},
    ):
        row = row_of(NewMessage("orders", b"", **wrong))  # type: ignore[arg-type]
        assert form.packets([row], [1], 0) is None, wrong
    assert form.packets([row_of(NewMessage("orders", b"", 249 * "a"))], [1], 0) is not None


def _composed(
    message: NewMessage,
    destination: QueueAddress,
    admin: QueueAddress,
    response: QueueAddress,
    delivery: int,
    number: int,
    index: int,
) -> bytes:
    return compose(
        message,
        source=bytes(range(16)),
        destination=destination,
        admin=admin,
        response=response,
        message_number=number,
        sent_time_s=1_700_000_000,
        delivery=delivery,
        position=(0, 0, index) if delivery == TRANSACTIONAL else None,
    )
