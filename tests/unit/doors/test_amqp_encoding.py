"""Encoded sections of messages that leave: proton reads what was encoded, with its types."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

proton = pytest.importorskip("proton")
from qmd.doors.amqp import sections  # noqa: E402
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
