"""The block of properties in an extension: what it keeps, and bytes that are no block."""

import math
from datetime import UTC, datetime
from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qmd.properties.block import (
    BLOCK_BYTES_MAX,
    DEPTH_MAX,
    MARK,
    BadProperty,
    read_extension,
    with_properties,
)
from qmd.properties.values import NO_PROPERTIES, MessageProperties, Typed

INTEGERS = st.integers(-(1 << 63), (1 << 64) - 1)
MOMENTS = st.datetimes(timezones=st.just(UTC)).map(
    lambda it: it.replace(microsecond=it.microsecond // 1000 * 1000)
)
PLAIN = st.one_of(
    *(st.none(), st.booleans(), INTEGERS, st.floats(allow_nan=False), st.text(), st.binary()),
    *(st.uuids(), MOMENTS),
)
TYPED = st.builds(Typed, st.sampled_from(["uint", "symbol", "char", "decimal128"]), PLAIN)
KEYS = st.one_of(st.text(), st.integers(0, 1 << 60), st.builds(Typed, st.text(), st.text()))
VALUES = st.recursive(
    st.one_of(PLAIN, TYPED),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(KEYS, inner, max_size=3)),
    max_leaves=8,
)
NAMED = st.dictionaries(st.text(), VALUES, max_size=4)
KEYED = st.dictionaries(KEYS, VALUES, max_size=3)


@given(st.builds(MessageProperties, NAMED, NAMED, KEYED, KEYED, NAMED), st.binary())
def test_all_values_and_the_extension_survive(
    properties: MessageProperties, extension: bytes
) -> None:
    read, own = read_extension(with_properties(properties, extension))
    if any(properties):
        assert read == properties
        assert own == extension
        assert _types(read) == _types(properties)
    else:
        assert with_properties(properties, extension) == extension


def _types(value: object) -> object:
    """Return the types within a value: 1, 1.0 and True are equal, and so are a tuple and a list."""
    if isinstance(value, dict):
        return {key: _types(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [type(value), *map(_types, value)]
    return type(value)


@given(st.binary())
def test_bytes_after_the_mark_that_are_no_block_belong_to_the_application(rest: bytes) -> None:
    for extension in (rest, MARK + rest, MARK + len(rest).to_bytes(4, "little") + rest):
        properties, own = read_extension(extension)
        # Or else the end is a block, though perhaps one without properties.
        again = read_extension(with_properties(properties, own))
        assert own == extension or again == (properties, own)


def test_a_block_with_too_many_levels_is_not_read() -> None:
    data = b"\x81\xa1a" + b"\x91" * 100_000
    extension = MARK + len(data).to_bytes(4, "little") + data
    assert read_extension(extension) == (NO_PROPERTIES, extension)
    nested = msgspec.msgpack.encode(1)
    for _ in range(2_000):
        nested = msgspec.msgpack.encode(msgspec.msgpack.Ext(1, b"\x92\xa1a" + nested))
    data = b"\x81\xa1a" + nested
    extension = MARK + len(data).to_bytes(4, "little") + data
    assert read_extension(extension) == (NO_PROPERTIES, extension)


def test_a_block_that_is_too_long_is_not_read() -> None:
    data = msgspec.msgpack.encode({"a": {"name": b"x" * BLOCK_BYTES_MAX}})
    extension = MARK + len(data).to_bytes(4, "little") + data
    assert read_extension(extension) == (NO_PROPERTIES, extension)


def test_values_without_a_place_are_refused() -> None:
    deep: object = 1
    for _ in range(DEPTH_MAX + 1):
        deep = [deep]
    for bad in (object(), 1 << 64, deep, datetime(2026, 1, 1), "\udc80", {1: {2: {3j}}}):
        with pytest.raises(BadProperty):
            with_properties(MessageProperties({"name": bad}))  # type: ignore[dict-item]
    with pytest.raises(BadProperty, match="the name of a property"):
        with_properties(MessageProperties({5: "x"}))  # type: ignore[dict-item]
    with pytest.raises(BadProperty, match="are allowed"):
        with_properties(MessageProperties({"name": b"x" * BLOCK_BYTES_MAX}))


def test_a_time_after_the_year_9999_keeps_its_milliseconds() -> None:
    late = msgspec.msgpack.Ext(3, msgspec.msgpack.encode(1 << 62))
    data = msgspec.msgpack.encode({"a": {"late": late}})
    properties, _ = read_extension(MARK + len(data).to_bytes(4, "little") + data)
    assert properties.application["late"] == Typed("timestamp", 1 << 62)


def test_the_bytes_stay_as_they_are() -> None:
    """Later versions must read these bytes: they are on disks, and on their way."""
    properties = MessageProperties(
        {"weight": Typed("uint", 3), "id": UUID(int=1), "at": datetime(2026, 1, 1, tzinfo=UTC)},
        {"group-id": "g"},
        {Typed("symbol", "x"): math.inf},
    )
    extension = with_properties(properties, b"own")
    assert extension.hex() == (
        "716d642d70726f7065727469657320310a6400000083a16183a6776569676874c7070192a475696e7403a26964"
        "d80200000000000000000000000000000001a26174c70903cf0000019b76daa800a17381a867726f75702d6964"
        "a167a16ec718049192c70a0192a673796d626f6ca178cb7ff00000000000006f776e"
    )
    assert read_extension(extension) == (properties, b"own")
