"""Bodies of COM programs and of ActiveXMessageFormatter: the body type says the type of the value.

The codes are those of [MS-MQMQ] 2.2.12, in `protocol.body_type`; values are little-endian.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Callable
from datetime import datetime, timedelta
from decimal import Context, Decimal, Inexact, InvalidOperation
from typing import Any

from protocol.body_type import VECTOR, BodyType, body_type_name
from qmd.bodies.errors import UnreadableBody

FORMAT = "value of ActiveXMessageFormatter"

_DATE_FIRST = datetime(1899, 12, 30)  # day 0 of an OLE date
# Refuses to round; the numbers that VT_CY holds have 19 digits.
_EXACT = Context(prec=40, traps=[Inexact, InvalidOperation])
_NUMBERS = {
    BodyType.VT_I1: "b",
    BodyType.VT_UI1: "B",
    BodyType.VT_I2: "h",
    BodyType.VT_UI2: "H",
    BodyType.VT_I4: "i",
    BodyType.VT_UI4: "I",
    BodyType.VT_I8: "q",
    BodyType.VT_UI8: "Q",
    BodyType.VT_R4: "f",
    BodyType.VT_R8: "d",
}


def is_active_x(body_type: int) -> bool:
    """Return whether `read_active_x` reads bodies of this type."""
    return body_type in _READERS or body_type in _NUMBERS or body_type == _BYTES


def read_active_x(body: bytes, body_type: int) -> Any:
    """Return the value of a body with a type for which `is_active_x` is true.

    A string becomes str, VT_VECTOR|VT_UI1 and streams bytes, VT_CY Decimal, VT_DATE datetime
    without a time zone, VT_CLSID UUID, VT_NULL None.  Raises UnreadableBody.
    """
    if body_type == _BYTES:
        return body
    layout = _NUMBERS.get(BodyType(body_type))
    try:
        if layout is not None:
            return struct.unpack("<" + layout, body)[0]
        return _READERS[body_type](body)
    except (struct.error, ValueError, OverflowError) as error:
        name = body_type_name(body_type)
        raise UnreadableBody(FORMAT, -1, f"{len(body)} bytes are no {name}: {error}") from None


def write_active_x(value: Any) -> tuple[bytes, int]:
    """Return body and body type of a value, as ActiveXMessageFormatter writes it.

    Raises UnreadableBody for a value without a type.
    """
    match value:
        case None:
            return b"", BodyType.VT_NULL
        case str():
            return value.encode("utf-16-le", "surrogatepass"), BodyType.VT_LPWSTR
        case bytes() | bytearray() | memoryview():
            return bytes(value), _BYTES
        case bool():
            # [MS-MQMQ] 2.2.14: a VARIANT_BOOL has two bytes, and true is -1.
            return (b"\xff\xff" if value else b"\0\0"), BodyType.VT_BOOL
        case int() if -(1 << 31) <= value < 1 << 31:
            return struct.pack("<i", value), BodyType.VT_I4
        case int() if -(1 << 63) <= value < 1 << 63:
            return struct.pack("<q", value), BodyType.VT_I8
        case float():
            return struct.pack("<d", value), BodyType.VT_R8
        case Decimal() if (scaled := _scaled(value)) is not None:
            return struct.pack("<q", scaled), BodyType.VT_CY
        case datetime() if value.tzinfo is None:
            return struct.pack("<d", _days(value)), BodyType.VT_DATE
        case uuid.UUID():
            return value.bytes_le, BodyType.VT_CLSID
    raise UnreadableBody(FORMAT, -1, f"{value!r:.60} ({type(value).__name__}) has no VT_ type")


_BYTES = VECTOR | BodyType.VT_UI1


def _nothing(body: bytes) -> None:
    if body:
        raise ValueError("nothing was expected")


def _boolean(body: bytes) -> bool:
    if len(body) not in (1, 2, 4):
        raise ValueError("1, 2 or 4 were expected")
    return any(body)


def _currency(body: bytes) -> Decimal:
    return Decimal(struct.unpack("<q", body)[0]).scaleb(-4)


def _scaled(value: Decimal) -> int | None:
    """Return a number in units of 1/10,000; None if VT_CY cannot hold it exactly."""
    if not value.is_finite():
        return None
    try:
        scaled = _EXACT.scaleb(value, 4)
        whole = _EXACT.to_integral_exact(scaled)
    except (InvalidOperation, Inexact):
        return None
    return int(whole) if -(1 << 63) <= whole < 1 << 63 else None


def _date(body: bytes) -> datetime:
    """Return an OLE date; the time of day counts forwards even before day 0."""
    days = struct.unpack("<d", body)[0]
    whole = int(days)
    return _DATE_FIRST + timedelta(days=whole) + timedelta(days=abs(days - whole))


def _days(value: datetime) -> float:
    span = value - _DATE_FIRST
    part = timedelta(seconds=span.seconds, microseconds=span.microseconds) / timedelta(days=1)
    return span.days + part if span.days >= 0 else span.days - part


def _narrow(body: bytes) -> str:
    """Return a text in the code page of its sender, which is not known: UTF-8, else Latin-1."""
    body = body.removesuffix(b"\0")
    try:
        return body.decode()
    except UnicodeDecodeError:
        return body.decode("latin-1")


def _wide(body: bytes) -> str:
    return body.decode("utf-16-le").removesuffix("\0")


def _class_id(body: bytes) -> uuid.UUID:
    return uuid.UUID(bytes_le=body)


_READERS: dict[int, Callable[[bytes], Any]] = {
    BodyType.VT_NULL: _nothing,
    BodyType.VT_BOOL: _boolean,
    BodyType.VT_CY: _currency,
    BodyType.VT_DATE: _date,
    BodyType.VT_LPSTR: _narrow,
    BodyType.VT_LPWSTR: _wide,
    BodyType.VT_BSTR: _wide,
    BodyType.VT_CLSID: _class_id,
    # Objects that serialize themselves: only their class can read them.
    BodyType.VT_STREAM: bytes,
    BodyType.VT_STREAMED_OBJECT: bytes,
    BodyType.VT_STORAGE: bytes,
    BodyType.VT_STORED_OBJECT: bytes,
    BodyType.VT_BLOB: bytes,
}
