"""Messages with the head of the one before become what they become alone."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

proton = pytest.importorskip("proton")
from proton import Message, symbol  # noqa: E402

from qmd.doors.amqp.arriving import Arrived, arrived  # noqa: E402
from qmd.doors.amqp.same_heads import HEAD_BYTES_MAX, SameHeads  # noqa: E402
from qmd.doors.amqp.sections import BadMessage  # noqa: E402

HEADS: tuple[dict[str, Any], ...] = (
    {},
    {"durable": True, "priority": 6, "ttl": 5.0},
    {"durable": True, "subject": "order", "properties": {"region": "east"}},
    {"durable": True, "annotations": {symbol("x-opt-delivery-delay"): 5}},
    {"durable": True, "annotations": {symbol("x-opt-msmq-once"): "17"}},
    {"durable": True, "expiry_time": 10.0},
)
DATA_8, DATA_32 = b"\x00\x53\x75\xa0", b"\x00\x53\x75\xb0"
BODIES = (
    DATA_8 + b"\x03one",
    DATA_8 + b"\x00",
    DATA_32 + b"\x00\x00\x00\x03two",
    DATA_8 + b"\x01a" + DATA_8 + b"\x01b",  # two sections
    b"\x00\x53\x77\xa1\x04text",
    b"\x00\x53\x77\x40",
    DATA_8 + b"\x05cut",
    DATA_32 + b"\x00\x00\x01\x03cut",
    DATA_8,
    b"",
    DATA_8 + b"\x01x\x00\x53\x78\xc1\x01\x00",  # a footer follows
)


def head_of(fields: dict[str, Any]) -> bytes:
    """Return the sections of a message before its body."""
    encoded = bytes(Message(body=b"mark", inferred=True, **fields).encode())
    return encoded[: encoded.rindex(DATA_8)]


ALL_HEADS = tuple(map(head_of, HEADS))
MESSAGES = st.tuples(st.sampled_from(ALL_HEADS), st.sampled_from(BODIES), st.booleans())


def read(raw: bytes, *, settled: bool, now_ms: int) -> Arrived | None:
    try:
        return arrived(raw, "orders", settled=settled, now_ms=now_ms)
    except BadMessage:
        return None


@given(st.lists(MESSAGES, max_size=12))
def test_a_message_with_the_same_head_becomes_the_same(
    sent: list[tuple[bytes, bytes, bool]],
) -> None:
    heads = SameHeads()
    for now_ms, (head, body, settled) in enumerate(sent):
        raw = head + body
        expected = read(raw, settled=settled, now_ms=9_000 + now_ms)
        found = heads.find(raw, settled=settled)
        if found is not None:
            assert heads.last is not None
            assert heads.last._replace(message=found) == expected
        elif expected is not None:
            heads.keep(raw, expected, settled=settled)


def test_only_heads_that_mean_the_same_each_time_are_kept() -> None:
    for head, fields in zip(ALL_HEADS, HEADS, strict=True):
        heads = SameHeads()
        raw = head + BODIES[0]
        heads.keep(raw, arrived(raw, "orders", settled=False, now_ms=0), settled=False)
        differs = "expiry_time" in fields or symbol("x-opt-msmq-once") in fields.get(
            "annotations", {}
        )
        assert (heads.find(head + BODIES[2], settled=False) is None) is differs
        assert heads.find(head + BODIES[2], settled=True) is None


def test_a_long_head_is_not_kept() -> None:
    head = head_of({"subject": "x" * HEAD_BYTES_MAX})
    heads = SameHeads()
    raw = head + BODIES[0]
    heads.keep(raw, arrived(raw, "orders", settled=False, now_ms=0), settled=False)
    assert heads.find(raw, settled=False) is None
