"""Targets: bodies as .NET and COM write them, and their JSON."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from random import Random
from uuid import UUID

from protocol.body_type import BodyType
from qmd.bodies.active_x import is_active_x
from qmd.bodies.bus_headers import (
    format_name,
    parse_headers,
    read_bus_headers,
    write_bus_headers,
)
from qmd.bodies.content import (
    BINARY,
    FORMATS,
    REPEATED_MAX,
    VT_BINARY_OBJECT,
    Content,
    read_content,
)
from qmd.bodies.errors import UnreadableBody
from qmd.bodies.nrbf import HEADER, read_nrbf
from qmd.bodies.nrbf_values import NrbfObject
from qmd.bodies.nrbf_writer import write_nrbf
from qmd.bodies.xml_formatter import read_xml, write_xml
from tests.fuzz.limits import outcome, within_limits
from tests.fuzz.target import Target

READ_S_MAX = 1.0  # of 64 KiB of the shortest records
SHOW_S_MAX = 3.0  # of a value whose parts refer to each other as often as is allowed
_START = HEADER.pack(0, 1, -1, 1, 0)
_GUID = UUID("a3b1c2d4-0102-8304-9506-0708090a0bff")
_BODY_TYPES = (0, *BodyType, VT_BINARY_OBJECT, 0x1011, 99)
# Records of [MS-NRBF] 2.1.2.1 and numbers that a writer never uses.
_RECORDS = (
    b"\x0a",
    b"\x09\1\0\0\0",
    b"\x09\2\0\0\0",
    b"\x0d\xff",
    b"\x0e\xff\xff\0\0",
    b"\x10\3\0\0\0\2\0\0\0",
    b"\x11\4\0\0\0\1\0\0\0",
    b"\x0f\5\0\0\0\4\0\0\0\2",
    b"\x07\6\0\0\0\2\2\0\0\0\2\0\0\0\2\0\0\0\2",
    b"\x01\7\0\0\0\2\0\0\0",
    b"\x0c\x08\0\0\0\1L",
    b"\x06\x09\0\0\0\1t",
)
_ODD = (b"\xff\xff\xff\xff", b"\xff\xff\xff\x7f", bytes(4), b"\1\0\0\0", b"\0\0\0\x80")


def streams() -> Iterable[bytes]:
    order = NrbfObject(
        "Shop.Order",
        {
            "id": 17,
            "lines": ["screw", None, b"\0\1", _GUID],
            "customer": NrbfObject("Shop.Customer", {"since": timedelta(days=3)}, "Shop"),
            "price": Decimal("1.10"),
            "placed": datetime(2026, 1, 2, tzinfo=UTC),
        },
        "Shop",
    )
    for value in ("ten screws", 5, b"\0\xff", order, [1, [2, "a"]], {"a": order, 2: [None]}):
        yield write_nrbf(value)
    yield _forks(150)
    yield _rectangles(4_000, 900)


def _forks(depth: int) -> bytes:
    """Return arrays that each refer twice to the next one."""
    records = (
        struct.pack("<Bii", 16, id, 2) + struct.pack("<Bi", 9, id % depth + 1) * 2
        for id in range(1, depth + 1)
    )
    return _START + b"".join(records) + b"\x0b"


def _rectangles(references: int, count: int) -> bytes:
    """Return an array of references, and rectangular arrays after it."""
    first = struct.pack("<Bii", 16, 1, references) + struct.pack("<Bi", 9, 1) * references
    after = (struct.pack("<BiBiiiBB", 7, 2 + n, 2, 2, 1, 1, 2, 10) for n in range(count))
    return _START + first + b"".join(after) + b"\x0b"


def _show(content: Content) -> int:
    """Write a value as JSON, piece by piece; return the length."""
    return sum(map(len, json.JSONEncoder(allow_nan=False).iterencode(content.to_json())))


def _check_content(content: Content) -> None:
    """Check that a value has JSON of bounded length, or is refused as too large."""
    assert content.format in FORMATS
    length, refused = outcome(UnreadableBody, _show, content, seconds_max=SHOW_S_MAX)
    assert refused is None or str(refused)
    assert length is None or length < 8 * REPEATED_MAX


def check_stream(data: bytes) -> None:
    value, refused = outcome(UnreadableBody, read_nrbf, data, seconds_max=READ_S_MAX)
    if refused is None:
        _check_content(Content(BINARY, value))
    else:
        assert refused.offset <= len(data)
        assert str(refused)


def mutate_stream(data: bytes, size_max: int, random: Random) -> bytes:
    """Change bytes, numbers or whole records behind the header."""
    changed = bytearray(data)
    for _ in range(random.choice((1, 1, 2, 5))):
        at = random.randrange(HEADER.size, max(len(changed), HEADER.size + 1))
        match random.randrange(5):
            case 0:
                changed[at:at] = random.choice(_RECORDS)
            case 1:
                changed[at : at + 4] = random.choice(_ODD)
            case 2:
                del changed[at : at + random.choice((1, 4, 5, 9))]
            case 3:
                changed[at:at] = changed[at : at + random.choice((5, 9, 20, 80))]
            case _:
                changed[at : at + 1] = bytes((random.randrange(256),))
    return bytes(changed)[:size_max]


def documents() -> Iterable[bytes]:
    for value in ("ten <screws>", 5, True, Decimal("1.5"), b"\0", _GUID, [1, "a", _GUID], ["a"]):
        yield write_xml(value)
    order = {"@id": "7", "Article": "screw", "Line": ["1", "2"], "Note": None, "Sub": {"A": "x"}}
    yield write_xml(order, "Order")
    yield b"<duration>P1DT2H3M4.5S</duration>"
    yield '<?xml version="1.0" encoding="utf-16"?><dateTime>2026-01-02T03:04:05</dateTime>'.encode(
        "utf-16"
    )
    yield b'<!DOCTYPE a [<!ENTITY b "cc"><!ENTITY c "&b;&b;">]><string>&c;</string>'


def check_document(data: bytes) -> None:
    value, refused = outcome(UnreadableBody, read_xml, data, seconds_max=READ_S_MAX)
    if refused is None:
        _check_content(Content("xml", value))
    else:
        assert str(refused)


def typed_bodies() -> Iterable[bytes]:
    for number in range(len(_BODY_TYPES)):
        for body in (
            b"",
            b"\0",
            bytes(8),
            "hi".encode("utf-16-le"),
            b'{"a": [1e400]}',
            b"[" * 2000,
        ):
            yield bytes((number,)) + body


def check_body(data: bytes) -> None:
    """Check a body whose first byte chooses the body type; without one every body has a content."""
    if not data:
        return
    body, body_type = data[1:], int(_BODY_TYPES[data[0] % len(_BODY_TYPES)])
    content, refused = outcome(
        UnreadableBody, read_content, body, body_type, seconds_max=READ_S_MAX
    )
    if content is not None:
        _check_content(content)
        return
    assert is_active_x(body_type) or body_type == VT_BINARY_OBJECT
    assert str(refused)
    assert within_limits(read_content, body, body_type, "bytes").value == body


def extensions() -> Iterable[bytes]:
    envelope = b'{"messageId": "1", "messageType": ["urn:message:A:B"], "headers": {"a": "b"}}'
    for extension, body in (
        (write_bus_headers("NServiceBus", {"NServiceBus.Retries": "2", "a": "<&>"}), b""),
        (b"<ArrayOfHeaderInfo><HeaderInfo><Key>&#x1F;</Key></HeaderInfo></ArrayOfHeaderInfo>", b""),
        (write_bus_headers("Rebus", {"rbs2-senttime": "2026-01-02T03:04:05.1234567Z"}), b""),
        (b"+AHsAIg-rbs2-msg-id+ACIAOgAi-1+ACIAfQ-", b""),
        (write_bus_headers("MassTransit", {"Content-Type": "application/vnd.masstransit+json"}),
         envelope),
        (write_bus_headers("MassTransit", {"Content-Type": "application/vnd.masstransit+xml"}),
         write_xml({"messageType": ["urn:message:A:B"], "retryCount": "2"}, "envelope")),
    ):  # fmt: skip
        yield extension + b"\0\0" + body


def check_extension(data: bytes) -> None:
    """Check an extension and the body behind it."""
    extension, _, body = data.partition(b"\0\0")
    _, refused = outcome(UnreadableBody, parse_headers, extension, seconds_max=READ_S_MAX)
    assert refused is None or str(refused)
    found = within_limits(read_bus_headers, extension, body, seconds_max=READ_S_MAX)
    if found is None:
        return
    assert len(json.dumps(found.to_json())) < 200 * (len(data) + 100)
    assert len(found.summary) < 3_000
    for address in (found.return_address, found.failed_queue):
        name = format_name(address)
        assert name is None or name.isascii() or not address.isascii()


TARGETS = (
    Target("bus-headers", check_extension, extensions),
    Target("body-binary", check_stream, streams, mutate_stream),
    Target("body-xml", check_document, documents),
    Target("body", check_body, typed_bodies),
)
