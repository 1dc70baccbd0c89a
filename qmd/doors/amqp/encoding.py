"""Encoding of sections with simple values, which nearly all messages have; proton encodes others.

Each value of proton's classes costs several calls of its C functions, and each message leaves with
three or four sections.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any
from uuid import UUID

import proton

from qmd.doors.amqp import sections as parts

NULL = b"\x40"
STRING8 = 0xA1  # a text of less than 256 bytes
_U32 = struct.Struct(">I")
_SIZES = struct.Struct(">II")


def section(code: int, value: list[Any] | dict[Any, Any]) -> bytes:
    """Return a section, as `sections.encode`."""
    try:
        return b"\x00\x53" + bytes((code,)) + _ENCODERS[type(value)](value)
    except (KeyError, struct.error):  # a type that is not in the table, or a number out of range
        return parts.encode(code, value)


def _variable(short: int, long: int, data: bytes) -> bytes:
    if len(data) < 256:
        return bytes((short, len(data))) + data
    return bytes((long,)) + _U32.pack(len(data)) + data


def text(value: str) -> bytes:
    """Return a text."""
    return _variable(0xA1, 0xB1, value.encode())


def _symbol(value: str) -> bytes:
    return _variable(0xA3, 0xB3, value.encode("ascii"))


def encoded_list(code: int, values: bytes, count: int) -> bytes:
    """Return a section that is a list of `count` encoded values."""
    if len(values) < 255:
        return b"\0\x53%c\xc0%c%c%s" % (code, len(values) + 1, count, values)
    return b"\0\x53%c\xd0%s%s" % (code, _SIZES.pack(len(values) + 4, count), values)


def _compound(short: int, long: int, items: Sequence[bytes]) -> bytes:
    data = b"".join(items)
    if len(data) < 255 and len(items) < 256:
        return bytes((short, len(data) + 1, len(items))) + data
    return bytes((long,)) + _SIZES.pack(len(data) + 4, len(items)) + data


def _list(value: list[Any]) -> bytes:
    if not value:
        return b"\x45"
    return _compound(0xC0, 0xD0, [_ENCODERS[type(each)](each) for each in value])


def _map(value: dict[Any, Any]) -> bytes:
    items = []
    for key, each in value.items():
        items.append(_ENCODERS[type(key)](key))
        items.append(_ENCODERS[type(each)](each))
    return _compound(0xC1, 0xD1, items)


def _packed(constructor: int, format: str) -> Callable[[Any], bytes]:
    pack = struct.Struct(f">B{format}").pack
    return lambda value: pack(constructor, value)


#: A time, in milliseconds since 1970.
created = _packed(0x83, "q")

_ENCODERS: dict[type, Callable[[Any], bytes]] = {
    type(None): lambda value: b"\x40",
    bool: lambda value: b"\x41" if value else b"\x42",
    str: text,
    bytes: lambda value: _variable(0xA0, 0xB0, value),
    int: _packed(0x81, "q"),
    float: _packed(0x82, "d"),
    UUID: lambda value: b"\x98" + value.bytes,
    list: _list,
    dict: _map,
    proton.symbol: _symbol,
    proton.timestamp: created,
    proton.ubyte: _packed(0x50, "B"),
    proton.uint: _packed(0x70, "I"),
    proton.ulong: _packed(0x80, "Q"),
    proton.int32: _packed(0x71, "i"),
}
