"""Body types, by name and number."""

import pytest

from protocol.body_type import BodyType, body_type_name, parse_body_type
from protocol.errors import InvalidName


@pytest.mark.parametrize("each", list(BodyType), ids=lambda each: each.name)
def test_a_printed_name_is_read_back(each):
    assert parse_body_type(body_type_name(each)) == each
    assert parse_body_type(each.name.removeprefix("VT_").lower()) == each


@pytest.mark.parametrize(
    ("text", "value"),
    [("8", 8), ("0x1011", 0x1011), ("VT_VECTOR|VT_UI1", 0x1011), ("ui4 | vector", 0x1013)],
)
def test_numbers_and_vectors_are_read(text, value):
    assert parse_body_type(text) == value


@pytest.mark.parametrize(
    ("value", "name"),
    [
        (0, "VT_EMPTY"),
        (0x1011, "VT_VECTOR|VT_UI1"),
        (99, "0x00000063"),
        (0x1000, "VT_VECTOR|VT_EMPTY"),
    ],
)
def test_a_type_without_a_name_is_shown_as_a_number(value, name):
    assert body_type_name(value) == name


@pytest.mark.parametrize("text", ["", "VT_", "VT_NOTHING", "-1", "4294967296", "|", "ui1|"])
def test_anything_else_is_refused(text):
    with pytest.raises(InvalidName, match="no type of a body"):
        parse_body_type(text)
