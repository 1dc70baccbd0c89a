"""Identifiers: conversion to bytes and text, and back."""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import InvalidName
from protocol.identifiers import (
    NULL_GUID,
    correlation_bytes,
    correlation_text,
    guid_bytes,
    guid_text,
    message_id_text,
    parse_correlation,
    parse_message_id,
    sequence_id,
    sequence_parts,
)

guids = st.binary(min_size=16, max_size=16)
u32 = st.integers(0, 2**32 - 1)
TEXT = "0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0"
RAW = bytes.fromhex("3c2d1e0f 5a4b 7869 8796 a5b4c3d2e1f0")


def test_the_first_three_parts_of_a_guid_are_little_endian() -> None:
    assert guid_text(RAW) == TEXT
    assert guid_bytes(TEXT) == RAW


@given(guids)
def test_a_guid_reads_as_the_standard_library_reads_it(raw: bytes) -> None:
    assert guid_text(raw) == str(UUID(bytes_le=raw))
    assert guid_bytes(guid_text(raw)) == raw


def test_a_guid_may_have_braces_and_capitals() -> None:
    assert guid_bytes("{" + TEXT.upper() + "}") == RAW


@pytest.mark.parametrize(
    "text",
    [
        *("", "{}", "{" + TEXT, TEXT + "}", TEXT[:-1], TEXT + "0", TEXT.replace("-", "")),
        *(TEXT.replace("f", "g"), " " + TEXT, TEXT + "\n", TEXT.replace("-", "_")),
        "\u0661" + TEXT[1:],
    ],
)
def test_an_invalid_guid_is_refused(text: str) -> None:
    with pytest.raises(InvalidName) as refused:
        guid_bytes(text)

    assert refused.value.field == "guid"


@given(guids, u32)
def test_a_message_id_is_a_guid_and_a_number(source: bytes, number: int) -> None:
    text = message_id_text(source, number)

    assert text == f"{guid_text(source)}\\{number}"
    assert parse_message_id(text) == (source, number)
    assert parse_correlation(correlation_text(correlation_bytes(source, number))) == (
        source + number.to_bytes(4, "little")
    )


@pytest.mark.parametrize(
    ("text", "field", "offset"),
    [
        (TEXT, "message_id", 36),
        (TEXT + "\\", "message_id.number", 37),
        (TEXT + "\\-1", "message_id.number", 37),
        (TEXT + "\\4294967296", "message_id.number", 37),
        (TEXT + "\\1\\2", "message_id.number", 37),
        (TEXT + "\\\u0661", "message_id.number", 37),
        ("x\\1", "guid", 0),
    ],
)
def test_an_invalid_message_id_is_refused(text: str, field: str, offset: int) -> None:
    with pytest.raises(InvalidName) as refused:
        parse_message_id(text)

    assert (refused.value.field, refused.value.offset) == (field, offset)


def test_a_later_timestamp_makes_a_greater_sequence_with_any_ordinal() -> None:
    assert sequence_id(2, 1) > sequence_id(1, 0xFFFFFFFF)
    assert sequence_id(2, 2) > sequence_id(2, 1)


@given(u32, u32)
def test_a_sequence_id_is_split_into_its_parts(timestamp: int, ordinal: int) -> None:
    assert sequence_parts(sequence_id(timestamp, ordinal)) == (timestamp, ordinal)


def test_the_null_guid_is_sixteen_zeros() -> None:
    assert guid_text(NULL_GUID) == "00000000-0000-0000-0000-000000000000"
