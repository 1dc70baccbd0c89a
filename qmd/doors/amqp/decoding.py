"""Decoding of sections with simple values, which nearly all messages have; proton decodes others.

The counterpart of `qmd.doors.amqp.encoding`: each value costs several calls of proton's C
functions, and each message arrives with three or four sections.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any
from uuid import UUID

import proton

from qmd.doors.amqp import sections as parts
from qmd.doors.amqp.sections import Section

Reader = Callable[[bytes, int], tuple[Any, int]]
_U32 = struct.Struct(">I")
_SIZES = struct.Struct(">II")
#: The errors of a value that is not simple, or damaged: proton decides.
_NOT_SIMPLE = (KeyError, IndexError, ValueError, TypeError, struct.error)


def value_of(raw: bytes, section: Section) -> Any:
    """Return the value of a section, as `sections.decode`.  Raises BadMessage."""
    try:
        found, end = _READERS[raw[section.value]](raw, section.value + 1)
    except _NOT_SIMPLE:
        return parts.decode(raw[section.start : section.end])
    return found if end == section.end else parts.decode(raw[section.start : section.end])


def _constant(value: Any) -> Reader:
    return lambda raw, at: (value, at)


def _fixed(format: str, kind: Callable[[Any], Any]) -> Reader:
    packed = struct.Struct(f">{format}")
    unpack, size = packed.unpack_from, packed.size
    return lambda raw, at: (kind(unpack(raw, at)[0]), at + size)


def _short(kind: Callable[[bytes], Any]) -> Reader:
    def read(raw: bytes, at: int) -> tuple[Any, int]:
        end = at + 1 + raw[at]
        return kind(_slice(raw, at + 1, end)), end

    return read


def _long(kind: Callable[[bytes], Any]) -> Reader:
    def read(raw: bytes, at: int) -> tuple[Any, int]:
        end = at + 4 + int(_U32.unpack_from(raw, at)[0])
        return kind(_slice(raw, at + 4, end)), end

    return read


def _slice(raw: bytes, start: int, end: int) -> bytes:
    if end > len(raw):
        raise IndexError
    return raw[start:end]


def _symbol(data: bytes) -> Any:
    return proton.symbol(data.decode("ascii"))


def _items(raw: bytes, at: int, size: int, count: int) -> tuple[list[Any], int]:
    """Return `count` values from `at` on, which have `size` bytes together."""
    end, items = at + size, []
    for _ in range(count):
        value, at = _READERS[raw[at]](raw, at + 1)
        items.append(value)
    if at != end:
        raise IndexError
    return items, at


def _list8(raw: bytes, at: int) -> tuple[list[Any], int]:
    return _items(raw, at + 2, raw[at] - 1, raw[at + 1])


def _list32(raw: bytes, at: int) -> tuple[list[Any], int]:
    size, count = _SIZES.unpack_from(raw, at)
    return _items(raw, at + 8, size - 4, count)


def _map(read: Reader) -> Reader:
    def read_map(raw: bytes, at: int) -> tuple[dict[Any, Any], int]:
        items, end = read(raw, at)
        if len(items) % 2:
            raise IndexError
        return dict(zip(items[::2], items[1::2], strict=True)), end

    return read_map


_READERS: dict[int, Reader] = {
    0x40: _constant(None),
    0x41: _constant(True),
    0x42: _constant(False),
    0x43: _constant(proton.uint(0)),
    0x44: _constant(proton.ulong(0)),
    0x45: lambda raw, at: ([], at),
    0x50: _fixed("B", proton.ubyte),
    0x52: _fixed("B", proton.uint),
    0x53: _fixed("B", proton.ulong),
    0x54: _fixed("b", proton.int32),
    0x55: _fixed("b", int),
    0x70: _fixed("I", proton.uint),
    0x71: _fixed("i", proton.int32),
    0x80: _fixed("Q", proton.ulong),
    0x81: _fixed("q", int),
    0x82: _fixed("d", float),
    0x83: _fixed("q", proton.timestamp),
    0x98: _fixed("16s", lambda data: UUID(bytes=data)),
    0xA0: _short(bytes),
    0xA1: _short(bytes.decode),
    0xA3: _short(_symbol),
    0xB0: _long(bytes),
    0xB1: _long(bytes.decode),
    0xB3: _long(_symbol),
    0xC0: _list8,
    0xC1: _map(_list8),
    0xD0: _list32,
    0xD1: _map(_list32),
}
