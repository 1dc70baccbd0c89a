"""Writes values as BinaryMessageFormatter does.  [MS-NRBF]

    None, bool, int, float, str, Decimal, datetime, timedelta, uuid.UUID    the .NET type
    bytes                                                                   byte[]
    list of str, list of anything                                           string[], object[]
    dict                                                                    Hashtable
    NrbfObject                                                              its class

A whole number is an Int32 if it fits, otherwise an Int64.
"""

from __future__ import annotations

import struct
import uuid
from collections import deque
from collections.abc import Callable
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

from qmd.bodies import nrbf
from qmd.bodies.errors import UnreadableBody
from qmd.bodies.nrbf_values import DEPTH_MAX, NrbfObject, ticks_of

_INT32 = range(-(2**31), 2**31)
_INT64 = range(-(2**63), 2**63)


def write_nrbf(value: Any) -> bytes:
    """Return the stream of a value.  Raises UnreadableBody for a value without a .NET type."""
    if value is None:
        raise _no_type("None alone")
    writer = _Writer()
    writer.root(value)
    return bytes(writer.output)


def _no_type(shown: str) -> UnreadableBody:
    return UnreadableBody(nrbf.FORMAT, -1, f"{shown} has no counterpart in .NET")


class _Writer:
    """Writes one stream.

    An array never stands within an object: .NET would read nulls.  A reference stands there, and
    the array follows at the top, [MS-NRBF] 2.7.
    """

    def __init__(self) -> None:
        self.output = bytearray(nrbf.HEADER.pack(0, 1, -1, 1, 0))
        self._next_id = 1
        self._libraries: dict[str, int] = {}
        self._open: list[int] = []  # ids of the Python containers around the value
        # Arrays to be written: the number of the object, the items, and `_open` of its place.
        self._later: deque[tuple[int, bytes | list[Any], list[int]]] = deque()

    def root(self, value: Any) -> None:
        self._record(value, boxed=True)
        while self._later:
            id, items, self._open = self._later.popleft()
            self._array(id, items)
        self.output.append(nrbf.END)

    def _record(self, value: Any, *, boxed: bool = False) -> None:
        """Write a value as a record; a plain value at the root is an object of its class."""
        if value is None:
            self.output.append(nrbf.NULL)
        elif isinstance(value, str):
            self._header(nrbf.STRING)
            self._string(value)
        elif isinstance(value, bytes | bytearray | memoryview):
            self._put_array(bytes(value), refer=not boxed)
        elif isinstance(value, list | tuple | dict | NrbfObject):
            self._container(value, refer=not boxed)
        else:
            self._plain(value, boxed=boxed)

    def _container(self, value: Any, *, refer: bool) -> None:
        if id(value) in self._open:
            raise _no_type("a value that contains itself")
        if len(self._open) >= DEPTH_MAX:
            raise _no_type(f"a value of more than {DEPTH_MAX} levels")
        self._open.append(id(value))
        if isinstance(value, dict):
            self._hashtable(value)
        elif isinstance(value, NrbfObject):
            self._object(value)
        else:
            self._put_array(list(value), refer=refer)
        self._open.pop()

    def _put_array(self, items: bytes | list[Any], *, refer: bool) -> None:
        """Write an array that is the root; or refer to it, and write it later."""
        id, self._next_id = self._next_id, self._next_id + 1
        if refer:
            self.output += struct.pack("<Bi", nrbf.REFERENCE, id)
        self._later.append((id, items, [*self._open]))

    def _array(self, id: int, items: bytes | list[Any]) -> None:
        if isinstance(items, bytes):
            self.output += struct.pack("<BiiB", nrbf.PRIMITIVE_ARRAY, id, len(items), nrbf.BYTE)
            self.output += items
            return
        is_text = bool(items) and all(isinstance(each, str) for each in items)
        kind = nrbf.STRING_ARRAY if is_text else nrbf.OBJECT_ARRAY
        self.output += struct.pack("<Bii", kind, id, len(items))
        for each in items:
            self._record(each)

    def _plain(self, value: Any, *, boxed: bool) -> None:
        if isinstance(value, uuid.UUID):
            self._system_class("System.Guid", _guid_members(value))
        elif isinstance(value, Decimal) and boxed:
            self._system_class("System.Decimal", _decimal_members(value))
        else:
            type, name = _primitive_of(value)
            if not boxed:
                self.output += bytes((nrbf.TYPED_PRIMITIVE, type))
                self._primitive(type, value)
            elif type == nrbf.DATE_TIME:
                ticks = ticks_of(value)
                members = {"ticks": (nrbf.INT64, ticks & (1 << 62) - 1), "dateData": (16, ticks)}
                self._system_class(name, members)
            elif type == nrbf.TIME_SPAN:
                self._system_class(name, {"_ticks": (nrbf.INT64, _span_ticks(value))})
            else:
                self._system_class(name, {"m_value": (type, value)})

    def _system_class(self, name: str, members: dict[str, tuple[int, Any]]) -> None:
        """Write an object of the base library whose members are primitive."""
        self._header(nrbf.SYSTEM_CLASS_AND_TYPES)
        self._class_info(name, members)
        self.output += bytes(len(members))  # each of BinaryTypeEnumeration Primitive
        self.output += bytes(type for type, _ in members.values())
        for type, value in members.values():
            self._primitive(type, value)

    def _object(self, value: NrbfObject) -> None:
        is_system = not value.library
        if not is_system and value.library not in self._libraries:
            # The root has number 1, which the header names.
            id = self._libraries[value.library] = self._next_id + 1
            self.output += struct.pack("<Bi", nrbf.LIBRARY, id)
            self._string(value.library)
            own_id, self._next_id = self._next_id, self._next_id + 2
        else:
            own_id, self._next_id = self._next_id, self._next_id + 1
        types = [_member_type(each) for each in value.members.values()]
        kind = nrbf.SYSTEM_CLASS_AND_TYPES if is_system else nrbf.CLASS_AND_TYPES
        self.output += struct.pack("<Bi", kind, own_id)
        self._class_info(value.type_name, value.members)
        self.output += bytes(type for type, _ in types)
        self.output += b"".join(detail for _, detail in types)
        if not is_system:
            self.output += struct.pack("<i", self._libraries[value.library])
        for (type, detail), each in zip(types, value.members.values(), strict=True):
            if type == nrbf.OF_PRIMITIVE:
                self._primitive(detail[0], each)
            else:
                self._record(each)

    def _hashtable(self, value: dict[Any, Any]) -> None:
        """Write System.Collections.Hashtable, which rebuilds itself from keys and values."""
        self._header(nrbf.SYSTEM_CLASS_AND_TYPES)
        names = ("LoadFactor", "Version", "Comparer", "HashCodeProvider", "HashSize")
        self._class_info("System.Collections.Hashtable", (*names, "Keys", "Values"))
        self.output += bytes((0, 0, nrbf.OF_SYSTEM_CLASS, nrbf.OF_SYSTEM_CLASS, 0, 5, 5))
        self.output += bytes((11, nrbf.INT32))
        self._string("System.Collections.IComparer")
        self._string("System.Collections.IHashCodeProvider")
        self.output.append(nrbf.INT32)
        self.output += struct.pack("<fi", 0.72, len(value))
        self.output += bytes((nrbf.NULL, nrbf.NULL))
        self.output += struct.pack("<i", 2 * len(value) + 3)
        for items in (list(value), list(value.values())):
            self._put_array(items, refer=True)

    # Parts.

    def _header(self, kind: int) -> None:
        self.output += struct.pack("<Bi", kind, self._next_id)
        self._next_id += 1

    def _class_info(self, name: str, members: Any) -> None:
        self._string(name)
        self.output += struct.pack("<i", len(members))
        for each in members:
            self._string(each)

    def _primitive(self, type: int, value: Any) -> None:
        if type == nrbf.DECIMAL:
            _decimal_members(value)  # .NET's numbers have 96 bits
            self._string(f"{value:f}")
            return
        if type == nrbf.DATE_TIME:
            value = ticks_of(value)
        elif type == nrbf.TIME_SPAN:
            value = _span_ticks(value)
        self.output += struct.pack("<" + nrbf.PRIMITIVES[type].layout, value)

    def _string(self, text: str) -> None:
        try:
            data = text.encode()
        except UnicodeEncodeError:
            raise _no_type("a text with half a character") from None
        length = len(data)
        while length >= 0x80:
            self.output.append(length & 0x7F | 0x80)
            length >>= 7
        self.output.append(length)
        self.output += data


def _primitive_of(value: Any) -> tuple[int, str]:
    """Return the primitive type of a value and the name of its class."""
    if isinstance(value, bool):
        return nrbf.BOOLEAN, "System.Boolean"
    if isinstance(value, int):
        if value in _INT32:
            return nrbf.INT32, "System.Int32"
        if value in _INT64:
            return nrbf.INT64, "System.Int64"
        raise _no_type(f"a number of {value.bit_length()} bits")
    for kind, type, name in (
        (float, nrbf.DOUBLE, "System.Double"),
        (Decimal, nrbf.DECIMAL, "System.Decimal"),
        (datetime, nrbf.DATE_TIME, "System.DateTime"),
        (timedelta, nrbf.TIME_SPAN, "System.TimeSpan"),
    ):
        if isinstance(value, kind):
            return type, name
    raise _no_type(f"a value of type {type_name(value)}")


def _member_type(value: Any) -> tuple[int, bytes]:
    """Return the BinaryTypeEnumeration of a member, and the bytes that follow it."""
    if isinstance(value, str):
        return nrbf.OF_STRING, b""
    if value is None or isinstance(value, list | tuple | dict | NrbfObject | uuid.UUID):
        return nrbf.OF_OBJECT, b""
    if isinstance(value, bytes | bytearray | memoryview):
        return nrbf.OF_PRIMITIVE_ARRAY, bytes((nrbf.BYTE,))
    return nrbf.OF_PRIMITIVE, bytes((_primitive_of(value)[0],))


def type_name(value: Any) -> str:
    """Return the name of the Python type of a value."""
    return type(value).__name__


def _guid_members(value: uuid.UUID) -> dict[str, tuple[int, Any]]:
    first, second, third = struct.unpack("<ihh", value.bytes_le[:8])
    members = {"_a": (nrbf.INT32, first), "_b": (7, second), "_c": (7, third)}
    members |= {
        f"_{name}": (nrbf.BYTE, byte)
        for name, byte in zip("defghijk", value.bytes[8:], strict=True)
    }
    return members


def _decimal_members(value: Decimal) -> dict[str, tuple[int, Any]]:
    """Return the fields of System.Decimal.  Raises UnreadableBody for more than 96 bits."""
    sign, digits, exponent = value.as_tuple()
    if not isinstance(exponent, int):
        raise _no_type(f"the number {value}")
    number = int("".join(map(str, digits)))
    if exponent > 0:
        number, exponent = number * 10**exponent if exponent <= 28 else 1 << 96, 0
    if number >> 96 or exponent < -28:
        raise _no_type(f"the number {value}, which needs more than 28 digits,")
    signed: Callable[[int], int] = lambda bits: bits - (bits >> 31 << 32)  # noqa: E731
    flags = signed(sign << 31 | -exponent << 16)
    parts = {"flags": flags, "hi": number >> 64, "lo": number, "mid": number >> 32}
    return {name: (nrbf.INT32, signed(bits & 0xFFFFFFFF)) for name, bits in parts.items()}


def _span_ticks(value: timedelta) -> int:
    ticks = value // timedelta(microseconds=1) * 10
    if ticks not in _INT64:
        raise _no_type(f"a duration of {value.days} days")
    return ticks
