"""Objects of BinaryMessageFormatter: known streams, values both ways, and hostile streams."""

from __future__ import annotations

import contextlib
import json
import random
import struct
import uuid
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qmd.bodies.content import VT_BINARY_OBJECT, Content, read_content
from qmd.bodies.errors import UnreadableBody
from qmd.bodies.nrbf import ELEMENTS_MAX, read_nrbf
from qmd.bodies.nrbf_values import NrbfObject
from qmd.bodies.nrbf_writer import write_nrbf

HEADER = bytes.fromhex("00 01000000 ffffffff 01000000 00000000")
# As BinaryFormatter writes the number 5.
FIVE = (
    HEADER
    + bytes.fromhex("04 01000000 0c")
    + b"System.Int32"
    + bytes.fromhex("01000000 07")
    + b"m_value"
    + bytes.fromhex("00 08 05000000 0b")
)
LIBRARY = "DOJRemotingMetadata, Version=1.0.2622.31326, Culture=neutral, PublicKeyToken=null"
# The records of [MS-NRBF] 3, without the call of the method around them.
ADDRESS = (
    HEADER
    + bytes.fromhex("10 01000000 01000000 09 02000000 0c 03000000 51")
    + LIBRARY.encode()
    + bytes.fromhex("05 02000000 1b")
    + b"DOJRemotingMetadata.Address"
    + bytes.fromhex("04000000")
    + b"\x06Street\x04City\x05State\x03Zip"
    + bytes.fromhex("01010101 03000000 06 04000000 11")
    + b"One Microsoft Way"
    + bytes.fromhex("06 05000000 07")
    + b"Redmond"
    + bytes.fromhex("06 06000000 02")
    + b"WA"
    + bytes.fromhex("06 07000000 05")
    + b"98054\x0b"
)
GUID = uuid.UUID("a3b1c2d4-0102-8304-9506-0708090a0bff")
VALUES: list[Any] = [
    *("ten screws", "", "ä" * 200, 0, -1, 2**31, -(2**63), True, 1.5, b"", b"\0\xff"),
    *(Decimal("-12.340"), Decimal(0), Decimal("7E+3"), Decimal(2**96 - 1), GUID),
    *(datetime(2026, 1, 2, 3, 4, 5, 678901), datetime(2026, 1, 2, tzinfo=UTC), timedelta(days=-1)),
    *(["a", "b"], [], [1, None, "a", [b"x", GUID]], {"a": 1, 2: [None]}),
    NrbfObject(
        "Shop.Order",
        {
            "id": 17,
            "lines": ["screw", None],
            "customer": NrbfObject(
                "Shop.Customer", {"key": GUID, "since": None}, "Shop, Version=1"
            ),
            "picture": b"\1\2",
            "price": Decimal("1.10"),
            "placed": datetime(2026, 1, 2, tzinfo=UTC),
        },
        "Shop, Version=1",
    ),
]


def test_a_number_as_dotnet_writes_it():
    assert read_nrbf(FIVE) == 5
    assert write_nrbf(5) == FIVE


def test_the_object_in_the_specification():
    address = {
        "Street": "One Microsoft Way",
        "City": "Redmond",
        "State": "WA",
        "Zip": "98054",
    }
    assert read_nrbf(ADDRESS) == [NrbfObject("DOJRemotingMetadata.Address", address, LIBRARY)]


def test_a_call_of_a_method_is_refused():
    body = HEADER + bytes.fromhex("15 14000000 12 01 61 12 01 62 0b")
    with pytest.raises(UnreadableBody, match="call of a remote method"):
        read_nrbf(body)


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_values_come_back(value: Any):
    found = read_nrbf(write_nrbf(value))
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    "value", [None, 2**63, 1j, Decimal("NaN"), Decimal(2**96), "\ud800", {"a": object}], ids=repr
)
def test_a_value_without_a_counterpart_is_refused(value: Any):
    with pytest.raises(UnreadableBody):
        write_nrbf(value)


def test_a_value_that_contains_itself_is_not_written():
    value: list[Any] = []
    value.append(value)
    with pytest.raises(UnreadableBody, match="contains itself"):
        write_nrbf(value)


def _array(*records: bytes, length: int) -> bytes:
    return HEADER + struct.pack("<Bii", 16, 1, length) + b"".join(records) + b"\x0b"


def test_a_cycle_is_read():
    found = read_nrbf(_array(struct.pack("<Bi", 9, 1), length=1))
    assert found[0] is found


def test_a_generic_list_and_a_dictionary_become_pythons():
    items = struct.pack("<Bii", 17, 2, 4) + b"\x06" + struct.pack("<i", 3) + b"\x01a\x0d\x03"
    name = b"System.Collections.Generic.List`1[[System.String]]"
    body = (
        HEADER
        + struct.pack("<Bi", 4, 1)
        + bytes((len(name),))
        + name
        + struct.pack("<i", 3)
        + b"\x06_items\x05_size\x08_version"
        + bytes((6, 0, 0, 8, 8))
        + struct.pack("<Bi", 9, 2)
        + struct.pack("<ii", 2, 7)
        + items
        + b"\x0b"
    )
    assert read_nrbf(body) == ["a", None]


def test_a_rectangular_array_is_a_list_of_rows():
    cells = b"".join(b"\x06" + struct.pack("<i", 10 + n) + bytes((1, 97 + n)) for n in range(6))
    body = HEADER + struct.pack("<BiBiii", 7, 1, 2, 2, 2, 3) + b"\x01" + cells + b"\x0b"
    assert read_nrbf(body) == [["a", "b", "c"], ["d", "e", "f"]]


HOSTILE = {
    "a huge array": struct.pack("<Bii", 16, 1, 2**31 - 1),
    "a huge array of bytes": struct.pack("<BiiB", 15, 1, 2**31 - 1, 2),
    "a huge array of numbers": struct.pack("<BiiB", 15, 1, 2**31 - 1, 8),
    "a huge run of nulls": struct.pack("<BiiBi", 16, 1, 5, 14, 2**31 - 1),
    "a negative length": struct.pack("<Bii", 16, 1, -1),
    "many dimensions": struct.pack("<BiBi", 7, 1, 2, 2**31 - 1),
    "a huge rectangle": struct.pack("<BiBiii", 7, 1, 2, 2, 2**30, 2**30) + b"\x02",
    "many members": struct.pack("<Bi", 2, 1) + b"\x01A" + struct.pack("<i", 2**31 - 1),
    "a missing object": struct.pack("<BiiBi", 16, 1, 1, 9, 7) + b"\x0b",
    "a missing root": struct.pack("<Bii", 16, 2, 0) + b"\x0b",
    "a missing class": struct.pack("<Bii", 1, 1, 9),
    "a missing library": struct.pack("<Bi", 3, 1) + b"\x01A" + struct.pack("<ii", 0, 4),
    "an object twice": struct.pack("<Bii", 16, 1, 0) * 2,
    "an endless text": struct.pack("<Bi", 6, 1) + b"\xff" * 9,
    "a text that is no text": struct.pack("<Bi", 6, 1) + b"\x01\xff",
    "an unknown record": b"\x63",
    "an unknown type": struct.pack("<BiiB", 15, 1, 0, 99) + struct.pack("<BiiB", 15, 2, 1, 99),
    "bytes after the end": struct.pack("<Bii", 16, 1, 0) + b"\x0b\0",
    "no end": struct.pack("<Bii", 16, 1, 0),
    "an array within an object": struct.pack("<BiiBii", 16, 1, 1, 16, 2, 0) + b"\x0b",
    "deep objects": b"".join(
        struct.pack("<Bi", 2, 1 + n) + b"\x01A" + struct.pack("<i", 1) + b"\x01m"
        for n in range(5000)
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_stream_is_refused(name: str):
    with pytest.raises(UnreadableBody):
        read_nrbf(HEADER + HOSTILE[name])


def test_nulls_of_many_arrays_are_limited():
    one = struct.pack("<BiiBi", 16, 1, 300_000, 14, 300_000)
    assert len(read_nrbf(HEADER + one + b"\x0b")) == 300_000
    arrays = [struct.pack("<BiiBi", 16, n, 300_000, 14, 300_000) for n in range(1, 5)]
    with pytest.raises(UnreadableBody, match=str(ELEMENTS_MAX)):
        read_nrbf(HEADER + b"".join(arrays) + b"\x0b")


@given(st.binary(max_size=200))
@settings(max_examples=300, deadline=None)
def test_any_bytes_are_read_or_refused(rest: bytes):
    with contextlib.suppress(UnreadableBody):
        read_nrbf(HEADER + rest)


def test_changed_streams_are_read_or_refused():
    chance = random.Random(1)
    bodies = [write_nrbf(value) for value in VALUES] + [ADDRESS]
    refused = 0
    for _ in range(5_000):
        body = bytearray(chance.choice(bodies))
        for _ in range(chance.randint(1, 3)):
            body[chance.randrange(len(HEADER), len(body))] = chance.randrange(256)
        try:
            read_nrbf(bytes(body))
        except UnreadableBody:
            refused += 1
    assert refused > 1_000


def _forks(depth: int, text: str = "") -> bytes:
    """Return arrays that each refer twice to the next one; the last one holds a text."""
    body = HEADER
    for id in range(1, depth):
        body += struct.pack("<Bii", 16, id, 2) + struct.pack("<Bi", 9, id + 1) * 2
    last = struct.pack("<BiB", 6, depth + 1, len(text)) + text.encode()
    return body + struct.pack("<Bii", 16, depth, 1) + last + b"\x0b"


def test_objects_that_many_paths_lead_to_are_not_written_out():
    small = read_content(_forks(4), VT_BINARY_OBJECT)
    assert small.to_json() == [[[[""]] * 2] * 2] * 2

    large = read_content(_forks(60), VT_BINARY_OBJECT)  # 2 ** 59 ways to one text
    with pytest.raises(UnreadableBody, match="too large"):
        large.to_json()
    with pytest.raises(UnreadableBody, match="too large"):
        _ = large.text


def test_a_long_text_that_is_written_often_is_limited():
    text = struct.pack("<Bi", 6, 2) + b"\xff\xff\x03" + b"x" * 65535
    many = _array(text, struct.pack("<Bi", 9, 2) * 2_000, length=2_001)
    with pytest.raises(UnreadableBody, match="too large"):
        read_content(many, VT_BINARY_OBJECT).to_json()


def test_objects_in_a_circle_are_not_written_along_all_paths():
    count = 12
    body = HEADER
    for id in range(1, count + 1):
        others = b"".join(struct.pack("<Bi", 9, to) for to in range(1, count + 1))
        body += struct.pack("<Bii", 16, id, count) + others
    with pytest.raises(UnreadableBody, match="too large"):
        read_content(body + b"\x0b", VT_BINARY_OBJECT).to_json()


def test_references_in_a_rectangular_array_are_resolved_beside_others():
    rows = struct.pack("<BiBiii", 7, 2, 2, 2, 1, 2) + b"\x02" + struct.pack("<Bi", 9, 3) * 2
    text = struct.pack("<Bi", 6, 3) + b"\x01a"
    first = struct.pack("<Bii", 16, 1, 3) + b"".join(struct.pack("<Bi", 9, n) for n in (3, 2, 3))
    assert read_nrbf(HEADER + first + rows + text + b"\x0b") == ["a", [["a", "a"]], "a"]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("12.30", "12.30"),
        ("-0.5", "-0.5"),
        ("1." + "1" * 40, "1." + "1" * 28),  # rounded to 29 digits, 2.1.1.7
        *((text, None) for text in ("1E9", "NaN", "1_0", "+1", "1.", ".5", "", "9" * 30)),
    ],
)
def test_a_decimal_has_the_form_of_the_specification(text: str, value: str | None):
    body = (
        HEADER + struct.pack("<BiiB", 15, 1, 1, 5) + bytes((len(text),)) + text.encode() + b"\x0b"
    )
    if value is None:
        with pytest.raises(UnreadableBody, match="Decimal"):
            read_nrbf(body)
    else:
        assert read_nrbf(body) == [Decimal(value)]


# The lengths of texts in [MS-NRBF] 2.1.1.6: up to 127, 16383, 2097151 bytes take 1, 2, 3 of them.
@pytest.mark.parametrize("length", [0, 127, 128, 16383, 16384, 2097151, 2097152])
def test_texts_at_the_limits_of_their_lengths_come_back(length: int):
    assert read_nrbf(write_nrbf("x" * length)) == "x" * length


def _times() -> st.SearchStrategy[datetime]:
    return st.datetimes() | st.datetimes(timezones=st.just(UTC))


PLAIN_VALUES = (
    st.text(st.characters(exclude_categories=("Cs",)))
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False)
    | st.binary()
    | st.decimals(
        allow_nan=False, allow_infinity=False, min_value=-(10**9), max_value=10**9, places=6
    )
    | _times()
    | st.timedeltas(timedelta(days=-1_000_000), timedelta(days=1_000_000))
    | st.uuids()
)
NAMES = st.text("abcXYZ_.", min_size=1, max_size=8)


def _within(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return (
        st.lists(values, max_size=4)
        | st.dictionaries(st.text("abc", max_size=4), values, max_size=4)
        | st.builds(
            NrbfObject, NAMES, st.dictionaries(NAMES, values, max_size=4), st.just("") | NAMES
        )
    )


@given(PLAIN_VALUES | _within(st.recursive(PLAIN_VALUES | st.none(), _within, max_leaves=12)))
@settings(max_examples=300, deadline=None)
def test_any_value_comes_back(value: Any):
    found = read_nrbf(write_nrbf(value))
    assert found == value
    assert type(found) is type(value)
    json.dumps(Content("binary", found).to_json())


def characters(length: int, content: bytes) -> bytes:
    """Return the stream of an array of the type Char."""
    return HEADER + b"\x0f" + struct.pack("<iiB", 1, length, 3) + content + b"\x0b"


def test_a_pair_of_surrogates_in_an_array_of_characters_is_one_sequence() -> None:
    """BinaryWriter.Write(char[]) encodes the array as one text."""
    text = "aé\U0001f600b"
    assert read_nrbf(characters(5, text.encode())) == list(text)

    for length in (3, 6):  # half of the pair, and more than there is
        with pytest.raises(UnreadableBody):
            read_nrbf(characters(length, text.encode()))


@pytest.mark.parametrize(
    "text",
    ["79228162514264337593543950335", "-79228162514264337593543950335", "-1." + "0" * 27 + "1"],
)
def test_the_longest_decimal_numbers_are_read(text: str) -> None:
    """Decimal.MaxValue, MinValue, and 29 digits of which most are behind the point."""
    content = bytes([len(text)]) + text.encode()
    stream = HEADER + b"\x0f" + struct.pack("<iiB", 1, 1, 5) + content + b"\x0b"

    assert read_nrbf(stream) == [Decimal(text)]
