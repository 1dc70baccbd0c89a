"""Sections of an AMQP message: their boundaries, and the values within them.

A message is a sequence of described values, one for each section (AMQP 1.0, clause 3.2).  Bodies
are passed on as bytes: only sections that qmd interprets are decoded, by proton.
"""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

import proton
from cproton import ffi, lib

HEADER, DELIVERY_ANNOTATIONS, ANNOTATIONS, PROPERTIES = 0x70, 0x71, 0x72, 0x73
APPLICATION, DATA, SEQUENCE, VALUE, FOOTER = 0x74, 0x75, 0x76, 0x77, 0x78
BODIES = (DATA, SEQUENCE, VALUE)

_U32 = struct.Struct(">I")
# Constructors with a size: the number of bytes of the size itself.
_SIZED = {
    **dict.fromkeys((0xA0, 0xA1, 0xA3, 0xC0, 0xC1, 0xE0), 1),
    **dict.fromkeys((0xB0, 0xB1, 0xB3, 0xD0, 0xD1, 0xF0), 4),
}
_FIXED = {  # and those of a fixed width
    **dict.fromkeys((0x40, 0x41, 0x42, 0x43, 0x44, 0x45), 0),
    **dict.fromkeys((0x50, 0x51, 0x52, 0x53, 0x54, 0x55, 0x56), 1),
    **dict.fromkeys((0x60, 0x61), 2),
    **dict.fromkeys((0x70, 0x71, 0x72, 0x73, 0x74), 4),
    **dict.fromkeys((0x80, 0x81, 0x82, 0x83, 0x84), 8),
    **dict.fromkeys((0x94, 0x98), 16),
}
TOO_MANY_PARTS = -10  # an error of proton: PN_OUT_OF_MEMORY
_NULL, _STRING8, _STRING32 = 0x40, 0xA1, 0xB1


class BadMessage(ValueError):
    """Bytes that are no AMQP message; the text says why."""


class Section(NamedTuple):
    """One section: its code, and where its value begins and ends in the message."""

    code: int
    start: int  # of the descriptor
    value: int  # of the constructor of the value
    end: int


def split(raw: bytes) -> list[Section]:
    """Return the sections of a message.  Raises BadMessage."""
    found: list[Section] = []
    at = 0
    while at < len(raw):
        try:
            section = _section(raw, at)
        except (IndexError, struct.error):
            raise BadMessage(f"the section at byte {at} is not complete") from None
        if section.end > len(raw):
            raise BadMessage(f"the section at byte {at} is not complete")
        found.append(section)
        at = section.end
    return found


def _section(raw: bytes, at: int) -> Section:
    if raw[at] != 0x00:
        raise BadMessage(f"there is no section at byte {at}")
    if raw[at + 1] == 0x53:  # a small unsigned number
        code, value = raw[at + 2], at + 3
    elif raw[at + 1] == 0x80:
        (number,) = struct.unpack_from(">Q", raw, at + 2)
        code, value = number if number < 0x100 else 0, at + 10
    else:
        raise BadMessage(f"the section at byte {at} has a descriptor that is not understood")
    if not HEADER <= code <= FOOTER:
        raise BadMessage(f"the section at byte {at} has the unknown code {code:#x}")
    return Section(code, at, value, _end(raw, value))


def _end(raw: bytes, at: int) -> int:
    """Return where the value at `at` ends."""
    while raw[at] == 0x00:  # a described value: its descriptor first
        at = _plain_end(raw, at + 1)
    return _plain_end(raw, at)


def _plain_end(raw: bytes, at: int) -> int:
    """Return where a value without a descriptor ends."""
    constructor = raw[at]
    if (width := _FIXED.get(constructor)) is not None:
        return at + 1 + width
    width = _SIZED.get(constructor, 0)
    if width == 1:
        return at + 2 + raw[at + 1]
    if width == 4:
        return at + 5 + int(_U32.unpack_from(raw, at + 1)[0])
    raise BadMessage(f"the constructor {constructor:#x} at byte {at} is unknown")


def decode(raw: bytes | memoryview, *, described: bool = False) -> Any:
    """Return one value, by proton.  Raises BadMessage.

    A described value is returned without its descriptor, unless `described` is true.
    """
    data = proton.Data()
    try:
        count = data.decode(bytes(raw))
        data.next()
        found = _owned(data.get_object())
    except (proton.ProtonException, ValueError, TypeError, OverflowError, RecursionError) as error:
        # A TypeError: a key of a map is a list, a map or a described value.
        raise BadMessage(f"a section cannot be decoded: {error}") from None
    if count != len(raw):
        raise BadMessage("a section has more bytes than its value")
    return found if described or not isinstance(found, proton.Described) else found.value


def check(raw: bytes) -> None:
    """Raise BadMessage unless `raw` is one value.

    One with more parts than proton can hold (65,535) is not refused: other clients may read it.
    """
    data = lib.pn_data(0)
    count = lib.pn_data_decode(data, ffi.from_buffer(raw), len(raw))
    lib.pn_data_free(data)
    if count != len(raw) and count != TOO_MANY_PARTS:
        raise BadMessage(f"a body cannot be decoded (error {count} of {len(raw)} bytes)")


def _owned(found: Any) -> Any:
    """Return a value with its own bytes: those of proton's end with its object."""
    if isinstance(found, memoryview):
        return bytes(found)
    if isinstance(found, dict):
        return {_owned(key): _owned(each) for key, each in found.items()}
    if isinstance(found, list):
        return [_owned(each) for each in found]
    if isinstance(found, proton.Array):
        return proton.Array(_owned(found.descriptor), found.type, *map(_owned, found.elements))
    if isinstance(found, proton.Described):
        return proton.Described(_owned(found.descriptor), _owned(found.value))
    return found


def encode(code: int, value: Any) -> bytes:
    """Return a section."""
    data = proton.Data()
    data.put_object(proton.Described(proton.ulong(code), value))
    return bytes(data.encode())


def binary_of(raw: bytes, section: Section) -> bytes:
    """Return the contents of a section DATA.  Raises BadMessage."""
    match raw[section.value]:
        case 0xA0:
            return raw[section.value + 2 : section.end]
        case 0xB0:
            return raw[section.value + 5 : section.end]
    raise BadMessage("a data section does not hold binary data")


def text_of(raw: bytes, section: Section) -> str | None:
    """Return the text of a section VALUE, or None if it is of another type.  Raises BadMessage."""
    constructor = raw[section.value]
    if constructor not in (_STRING8, _STRING32):
        return None
    start = section.value + (2 if constructor == _STRING8 else 5)
    try:
        return raw[start : section.end].decode()
    except UnicodeDecodeError as error:
        raise BadMessage(f"a text is not UTF-8: {error}") from None


def is_null(raw: bytes, section: Section) -> bool:
    """Return whether a section VALUE is null."""
    return raw[section.value] == _NULL


def data_section(body: bytes) -> bytes:
    """Return a section DATA."""
    if len(body) < 256:
        return b"\x00\x53\x75\xa0" + bytes((len(body),)) + body
    return b"\x00\x53\x75\xb0" + _U32.pack(len(body)) + body


def text_section(text: str) -> bytes:
    """Return a section VALUE with a text."""
    body = text.encode("utf-8", "replace")
    if len(body) < 256:
        return b"\x00\x53\x77\xa1" + bytes((len(body),)) + body
    return b"\x00\x53\x77\xb1" + _U32.pack(len(body)) + body


NULL_SECTION = b"\x00\x53\x77\x40"
