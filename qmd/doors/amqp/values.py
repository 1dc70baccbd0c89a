"""Values of AMQP: between proton's classes and those of `qmd.properties`, which keep the types."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, cast
from uuid import UUID

import proton

from qmd.properties.values import Typed, Value

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MILLISECOND = timedelta(milliseconds=1)

#: Classes of proton with the name of their AMQP type, and the class of the plain value.
_TYPES: dict[type, tuple[str, Any]] = {
    proton.ulong: ("ulong", int),
    proton.uint: ("uint", int),
    proton.ushort: ("ushort", int),
    proton.ubyte: ("ubyte", int),
    proton.int32: ("int", int),
    proton.short: ("short", int),
    proton.byte: ("byte", int),
    proton.float32: ("float", float),
    proton.char: ("char", str),
    proton.symbol: ("symbol", str),
    proton.decimal32: ("decimal32", int),
    proton.decimal64: ("decimal64", int),
    proton.decimal128: ("decimal128", bytes),
}
_CLASSES: dict[str, Any] = {name: kind for kind, (name, _) in _TYPES.items()}
_PLAIN = (bool, int, float, str, bytes, UUID)


def to_value(given: Any) -> Value:
    """Return a value of proton as one of `qmd.properties`; raises ValueError if it has no such."""
    kind = type(given)
    if given is None or kind in _PLAIN:
        return cast(Value, given)
    if (found := _TYPES.get(kind)) is not None:
        name, plain = found
        return Typed(name, plain(given))
    if kind is proton.timestamp:
        return time_of(int(given))
    if isinstance(given, memoryview | bytearray):
        return bytes(given)
    if isinstance(given, dict):
        return {_key(key): to_value(each) for key, each in given.items()}
    if isinstance(given, proton.Array):
        items = [to_value(each) for each in given.elements]
        described = given.descriptor is not proton.UNDESCRIBED
        descriptor = [to_value(given.descriptor)] if described else []
        return Typed("array", [given.type, descriptor, items])
    if isinstance(given, proton.Described):
        return Typed("described", [to_value(given.descriptor), to_value(given.value)])
    if isinstance(given, list | tuple):
        return [to_value(each) for each in given]
    raise ValueError(f"a value of type {kind.__name__} is not understood")


def _key(given: Any) -> Any:
    """Return the key of a map; lists and maps cannot be one here."""
    found = to_value(given)
    try:
        hash(found)
    except TypeError:
        raise ValueError("a map has a key that is a map, a list or an array") from None
    return found


def from_value(value: Any) -> Any:
    """Return a value of `qmd.properties` as proton encodes it."""
    if isinstance(value, Typed):
        return _from_typed(value)
    if isinstance(value, datetime):
        return proton.timestamp((value - EPOCH) // MILLISECOND)
    if isinstance(value, dict):
        return {from_value(key): from_value(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [from_value(each) for each in value]
    if type(value) is int and not -(1 << 63) <= value < 1 << 63:
        return proton.ulong(value)
    return value


def _from_typed(value: Typed) -> Any:
    kind = _CLASSES.get(value.type)
    inner: Any = value.value
    if kind is not None:
        return kind(inner)
    if value.type == "timestamp":
        return proton.timestamp(inner)
    if value.type == "array":
        code, descriptor, items = inner
        first = from_value(descriptor[0]) if descriptor else proton.UNDESCRIBED
        return proton.Array(first, code, *[from_value(each) for each in items])
    if value.type == "described":
        return proton.Described(*map(from_value, inner))
    return from_value(inner)  # of another door


def time_of(milliseconds: int) -> Value:
    """Return a time of AMQP; one beyond the year 9999 stays a number."""
    try:
        return EPOCH + timedelta(milliseconds=milliseconds)
    except OverflowError:
        return Typed("timestamp", milliseconds)


def symbols(values: Mapping[Any, Any]) -> dict[Any, Any]:
    """Return annotations as proton encodes them: their keys are symbols, or unsigned numbers."""
    return {
        proton.symbol(key) if isinstance(key, str) else proton.ulong(_number(key)): from_value(each)
        for key, each in values.items()
    }


def _number(key: Any) -> int:
    number: Any = key.value if isinstance(key, Typed) else key
    return int(number)
