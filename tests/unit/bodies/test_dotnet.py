"""Bodies that a .NET runtime has written, and bodies of qmd that it has read."""

from __future__ import annotations

import json
import uuid
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from qmd.bodies.bus_headers import parse_headers
from qmd.bodies.content import VT_BINARY_OBJECT, read_content, write_content
from qmd.bodies.nrbf_values import NrbfObject

DATA = Path(__file__).parents[2] / "data" / "bodies"
GUID = uuid.UUID("a3b1c2d4-0102-8304-9506-0708090a0bff")
LIBRARY = "w, Version=0.0.0.0, Culture=neutral, PublicKeyToken=null"
CUSTOMER = NrbfObject("Customer", {"Name": "A", "Key": GUID, "Self": None}, LIBRARY)
SENT = datetime(2026, 1, 2)
# What Mono printed after it had read the bodies, as the values that Python has for them.
BINARY: dict[str, Any] = {
    "string": "ten screws",
    "empty": "",
    "long": "ä" * 200,
    "i": 5,
    "l": 2**40,
    "b": True,
    "d": 1.5,
    "bytes": b"\0\xff",
    "dec": Decimal("-12.340"),
    "guid": GUID,
    "dt": datetime(2026, 1, 2, 3, 4, 5, 678901),
    "utc": SENT.replace(tzinfo=UTC),
    "span": timedelta(minutes=-90),
    "strings": ["a", "b"],
    "ints": [1, 2],
    "mixed": [
        *(1, None, "a", b"x", GUID, True, 1.5, Decimal("1.5"), SENT, timedelta(hours=1)),
    ],
    "empty_list": [],
    "dic": {"a": 1, 2: "x"},
    "emptydic": {},
    "nested": [["a"], [1, [None]]],
    "dicdic": {"a": {"b": [1]}},
    "cust": NrbfObject("Customer", {"Name": "Grün", "Key": GUID, "Self": None}, LIBRARY),
    "custs": [CUSTOMER, CUSTOMER],
}
XML: dict[str, Any] = {
    "s": "a<&>\r\n ä",
    "i": -5,
    "l": 2**40,
    "b": True,
    "d": 1e300,
    "inf": float("-inf"),
    "nan": float("nan"),
    "dec": Decimal("-12.340"),
    "g": GUID,
    "dt": datetime(2026, 1, 2, 3, 4, 5, 678901),
    "utc": SENT.replace(tzinfo=UTC),
    "off": SENT.replace(tzinfo=timezone(timedelta(hours=2))),
    "by": b"\0\xff",
    "strs": ["a", "b"],
    "ints": [1, 2],
    "any": [1, "a", GUID, True, 1.5, Decimal("1.5"), SENT, b"x"],
    "guids": [GUID],
    "empty": [],
    "bools": [True],
    "bytess": [b"a"],
    "order": {
        "Article": "x",
        "Count": 3,
        "Line": {"string": ["a", "b"]},
        "Flag": True,
        "At": SENT,
        "Pic": b"\0",
        "Key": GUID,
        "Price": Decimal("1.1"),
        "Maybe": None,
    },
}
VALUES = {("binary", name): value for name, value in BINARY.items()} | {
    ("xml", name): value for name, value in XML.items()
}


def _rows(name: str) -> dict[tuple[str, str], list[str]]:
    lines = (DATA / name).read_text().splitlines()
    rows = [line.split(" ", 3) for line in lines if not line.startswith("#")]
    return {(format, name): rest for format, name, *rest in rows}


WRITTEN = _rows("written_by_mono.txt")
READ = _rows("read_by_mono.txt")


@pytest.mark.parametrize("row", WRITTEN, ids="-".join)
def test_a_body_of_dotnet_is_read(row: tuple[str, str]):
    data, value = WRITTEN[row]
    body_type = VT_BINARY_OBJECT if row[0] == "binary" else 0
    content = read_content(bytes.fromhex(data), body_type)
    assert content.format == row[0]
    assert content.to_json() == json.loads(value)


def test_headers_of_dotnet_are_read():
    body = bytes.fromhex(WRITTEN["xml", "headers"][0])
    assert parse_headers(body) == {"NServiceBus.FailedQ": "a@b", "x": "", "y": "<&>\n"}


def test_an_object_of_dotnet_keeps_its_references():
    order = read_content(bytes.fromhex(WRITTEN["binary", "order"][0]), VT_BINARY_OBJECT).value
    customer = order.members["Customer"]
    assert customer.members["Self"] is customer
    assert order.library == LIBRARY


@pytest.mark.parametrize("row", READ, ids="-".join)
def test_a_body_is_written_as_dotnet_has_read_it(row: tuple[str, str]):
    root = "Order" if row == ("xml", "order") else ""
    body, _ = write_content(VALUES[row], row[0], root=root)
    assert body.hex() == READ[row][0]


def test_each_value_has_its_body():
    assert VALUES.keys() == READ.keys()
