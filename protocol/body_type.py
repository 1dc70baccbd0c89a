"""Body types: the VT_ codes of MS-MQMQ 2.2.12, by name and number.

The queue manager passes every code on.  Codes that the specification does not list but senders use
have names here too: VT_BSTR is in the specification's own example.
"""

from __future__ import annotations

from enum import IntEnum

from protocol.errors import InvalidName

VECTOR = 0x1000  # combined with another code: a counted array of that type


class BodyType(IntEnum):
    """The types that the specification lists, and those that real senders add."""

    VT_EMPTY = 0
    VT_NULL = 1
    VT_I2 = 2
    VT_I4 = 3
    VT_R4 = 4
    VT_R8 = 5
    VT_CY = 6
    VT_DATE = 7
    VT_BSTR = 8
    VT_DISPATCH = 9
    VT_BOOL = 11
    VT_VARIANT = 12
    VT_UNKNOWN = 13
    VT_I1 = 16
    VT_UI1 = 17
    VT_UI2 = 18
    VT_UI4 = 19
    VT_I8 = 20
    VT_UI8 = 21
    VT_LPSTR = 30
    VT_LPWSTR = 31
    VT_BLOB = 65
    VT_STREAM = 66
    VT_STORAGE = 67
    VT_STREAMED_OBJECT = 68
    VT_STORED_OBJECT = 69
    VT_CLSID = 72


_NAMES = {each.value: each.name for each in BodyType}


def body_type_name(value: int) -> str:
    """Return `VT_LPWSTR`, `VT_VECTOR|VT_UI1`, or `0x00000063` for a code without a name."""
    if value in _NAMES:
        return _NAMES[value]
    if value & VECTOR and value & ~VECTOR in _NAMES:
        return f"VT_VECTOR|{_NAMES[value & ~VECTOR]}"
    return f"0x{value:08x}"


def parse_body_type(text: str) -> int:
    """Parse a number, or a name in any case with or without `VT_`; several are joined by `|`.

    Raises InvalidName.
    """
    value = 0
    for part in text.split("|"):
        word = part.strip().upper()
        name = word if word.startswith("VT_") else f"VT_{word}"
        if name in BodyType.__members__:
            value |= BodyType[name]
        elif name == "VT_VECTOR":
            value |= VECTOR
        else:
            value |= _number(word, text)
    return value


def _number(word: str, text: str) -> int:
    try:
        number = int(word, 0)
    except ValueError:
        number = -1
    if not 0 <= number <= 0xFFFFFFFF:
        rule = (
            f"{text!r} is no type of a body: it MUST be a name such as VT_LPWSTR, or a number of"
            " 32 bits"
        )
        raise InvalidName("body_type", 0, rule)
    return number
