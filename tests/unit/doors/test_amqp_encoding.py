"""Encoded and decoded sections: the same values, with the same types, as by proton."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

proton = pytest.importorskip("proton")
from qmd.doors.amqp import sections  # noqa: E402
from qmd.doors.amqp.decoding import value_of  # noqa: E402
from qmd.doors.amqp.encoding import section  # noqa: E402

ASCII = st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=300)
TEXTS = st.text(st.characters(exclude_categories=("Cs",)), max_size=300)
SIMPLE = st.one_of(
    st.none(),
    st.booleans(),
    TEXTS,
    st.binary(max_size=300),
    st.integers(-(1 << 63), (1 << 63) - 1),
    st.floats(allow_nan=False),
    st.uuids(),
    ASCII.map(proton.symbol),
    st.integers(-(1 << 63), (1 << 63) - 1).map(proton.timestamp),
    st.integers(0, 255).map(proton.ubyte),
    st.integers(0, (1 << 32) - 1).map(proton.uint),
    st.integers(0, (1 << 64) - 1).map(proton.ulong),
    st.integers(-(1 << 31), (1 << 31) - 1).map(proton.int32),
    st.integers(0, 65535).map(proton.ushort),  # this and the next one are left to proton
    st.integers(0, (1 << 64) - 1).map(proton.decimal64),
)
VALUES = st.recursive(
    SIMPLE,
    lambda inner: st.lists(inner, max_size=40) | st.dictionaries(ASCII, inner, max_size=10),
    max_leaves=40,
)


def kinds(value: Any) -> Any:
    """Return a value with the types of all its parts."""
    if isinstance(value, dict):
        return {(type(key), key): kinds(each) for key, each in value.items()}
    if isinstance(value, list):
        return [kinds(each) for each in value]
    return type(value), value


@given(st.lists(VALUES, max_size=300) | st.dictionaries(ASCII.map(proton.symbol), VALUES))
def test_proton_reads_the_same_values_with_the_same_types(value: Any) -> None:
    encoded = section(sections.APPLICATION, value)
    [found] = sections.split(encoded)
    assert found.code == sections.APPLICATION
    assert kinds(sections.decode(encoded)) == kinds(value)


def test_long_lists_maps_and_texts_have_the_long_form() -> None:
    for value in (["x" * 254], ["x"] * 256, {"k": "v" * 70_000}, [b"y" * 256], [UUID(int=1)] * 15):
        assert kinds(sections.decode(section(sections.PROPERTIES, value))) == kinds(value)


@settings(max_examples=30)
@given(st.lists(VALUES, max_size=50) | st.dictionaries(ASCII.map(proton.symbol), VALUES))
def test_sections_are_decoded_as_by_proton(value: Any) -> None:
    for encoded in (section(sections.APPLICATION, value), sections.encode(0x74, value)):
        [found] = sections.split(encoded)
        assert kinds(value_of(encoded, found)) == kinds(value)


@settings(max_examples=60)
@given(st.lists(VALUES, min_size=1, max_size=5), st.data())
def test_damaged_sections_are_refused_as_by_proton(value: Any, data: st.DataObject) -> None:
    encoded = bytearray(section(sections.APPLICATION, value))
    at = data.draw(st.integers(4, len(encoded) - 1))
    encoded[at] = data.draw(st.integers(0, 255))
    damaged = bytes(encoded)
    whole = sections.Section(sections.APPLICATION, 0, 3, len(damaged))
    try:
        expected = sections.decode(damaged)
    except sections.BadMessage:
        with pytest.raises(sections.BadMessage):
            value_of(damaged, whole)
    else:
        assert repr(value_of(damaged, whole)) == repr(expected)
