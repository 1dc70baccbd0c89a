"""A copy equals the packet that would have been composed for its queue."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from protocol import parse_user_message
from protocol.names.format_name import DirectName, PrivateName, PublicName, SingleName, Transport
from qmd.control_protocol.messages import EXPRESS, RECOVERABLE, TRANSACTIONAL, NewMessage
from qmd.message.addresses import NO_ADDRESS, multi_queue_size, queue_address, reply_address
from qmd.message.build import compose
from qmd.message.shared_packet import split
from qmd.naming.fan_out import Heads, list_address, with_multi_queue_header

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
MESSAGES = st.builds(
    NewMessage,
    st.just(""),
    st.binary(max_size=50),
    label=st.text("äbc", max_size=9),
    priority=st.integers(0, 7),
    extension=st.binary(max_size=9),
    correlation_id=st.sampled_from([b"", bytes(range(20))]),
    sender_id=st.sampled_from([b"", bytes(12), bytes(28)]),
    connector_type=st.sampled_from([b"", bytes(range(16))]),
    dead_letter=st.sampled_from([None, True, False]),
)


@given(
    new=MESSAGES,
    names=st.lists(NAMES, min_size=2, max_size=4),
    reply=st.none() | NAMES,
    delivery=st.sampled_from([EXPRESS, RECOVERABLE, TRANSACTIONAL]),
    numbers=st.tuples(*[st.integers(1, 0xFFFFFFFF)] * 2),
    is_first=st.booleans(),
)
def test_a_copy_equals_a_composed_packet(
    new: NewMessage,
    names: list[SingleName],
    reply: SingleName | None,
    delivery: int,
    numbers: tuple[int, int],
    is_first: bool,
) -> None:
    listed = tuple(filter(None, map(list_address, names)))
    answers = NO_ADDRESS if reply is None else reply_address(reply)

    def composed(name: SingleName, number: int, **changes: Any) -> bytes:
        values: dict[str, Any] = {"destinations": listed, **changes}
        return compose(
            new,
            source=bytes(16),
            destination=queue_address(name),
            admin=NO_ADDRESS,
            response=answers,
            message_number=number,
            sent_time_s=1_700_000_000,
            delivery=delivery,
            position=(7 << 32 | 1, number & 0xFFFF or 1, 5) if delivery == TRANSACTIONAL else None,
            is_first=is_first,
            **values,
        )

    first = composed(names[0], numbers[0])
    other = composed(names[1], numbers[1])
    position = (7 << 32 | 1, numbers[1] & 0xFFFF or 1) if delivery == TRANSACTIONAL else None

    head = Heads(first, queue_address(names[0])).head(queue_address(names[1]), numbers[1], position)

    assert head + first[split(first) :] == other
    assert parse_user_message(other).multi_queue is not None
    header = first[-multi_queue_size(listed, NO_ADDRESS, answers) :]
    assert with_multi_queue_header(composed(names[1], numbers[1], destinations=()), header) == other
