"""Values of .NET objects: the classes that every program knows, and objects of all other classes.

A stream of [MS-NRBF] names classes and their fields.  No class is ever looked up or created here:
an object stays a name with fields.  The classes of the .NET base library that applications use as
plain values (numbers, dates, lists, dictionaries) become the Python values that they stand for.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

DEPTH_MAX = 200  # of objects within objects

_TICKS_MASK = (1 << 62) - 1
_UTC_KIND = 1
_FIRST = datetime(1, 1, 1)


class NrbfObject:
    """An object of a class: the names of class and assembly, and the fields by their names.

    `library` is "" for a class of the base library.  The values of `members` are None, bool, int,
    float, str (also for a character), bytes, Decimal, datetime, timedelta, uuid.UUID, list, dict or
    NrbfObject.
    """

    __slots__ = ("library", "members", "type_name")

    def __init__(
        self, type_name: str, members: dict[str, Any] | None = None, library: str = ""
    ) -> None:
        self.type_name = type_name
        self.library = library
        self.members: dict[str, Any] = {} if members is None else members

    def __repr__(self) -> str:
        return f"<NrbfObject {self.type_name} {', '.join(self.members)}>"

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, NrbfObject)
            and (self.type_name, self.library) == (other.type_name, other.library)
            and self.members == other.members
        )

    __hash__ = None  # type: ignore[assignment]


def moment(raw: int) -> datetime:
    """Return a time from its 64 bits: ticks of 100 ns since year 1, and the kind in the top bits.

    [MS-NRBF] 2.1.1.5.  A UTC time has a time zone, all others have none.  Parts of a microsecond
    are dropped.  Raises OverflowError for a time after the year 9999.
    """
    kind, ticks = raw >> 62 & 3, raw & _TICKS_MASK
    found = _FIRST + timedelta(microseconds=ticks // 10)
    return found.replace(tzinfo=UTC) if kind == _UTC_KIND else found


def ticks_of(value: datetime) -> int:
    """Return the 64 bits of a time; a time with a time zone becomes UTC."""
    kind = 0
    if value.tzinfo is not None:
        kind, value = _UTC_KIND, value.astimezone(UTC).replace(tzinfo=None)
    return kind << 62 | (value - _FIRST) // timedelta(microseconds=1) * 10


def natural(value: Any) -> Any:
    """Return a value with Python's own values for the known classes, at every depth.

    Raises ValueError if objects contain each other too deeply, or a known class has unknown fields.
    """
    return _Naturalizer().convert(value, 0)


class _Naturalizer:
    """One conversion; an object that occurs several times is converted once."""

    def __init__(self) -> None:
        # The originals are kept beside the results: an id is unique only as long as its object.
        self._done: dict[int, tuple[Any, Any]] = {}

    def convert(self, value: Any, depth: int) -> Any:
        if not isinstance(value, list | NrbfObject):
            return value
        if depth > DEPTH_MAX:
            raise ValueError(f"its objects contain each other more than {DEPTH_MAX} levels deep")
        known = self._done.get(id(value))
        if known is not None:
            return known[1]
        if isinstance(value, list):
            items: list[Any] = []
            self._done[id(value)] = value, items
            items += [self.convert(each, depth + 1) for each in value]
            return items
        family = value.type_name.partition("`")[0]
        scalar = _SCALARS.get(family)
        if scalar is not None:
            try:
                found = scalar(value.members)
            except (KeyError, TypeError, ValueError, OverflowError, ArithmeticError) as error:
                raise ValueError(f"{value.type_name} has unexpected fields") from error
            self._done[id(value)] = value, found
            return found
        if family in _LISTS:
            return self._list(value, depth)
        if family in _DICTIONARIES:
            return self._dictionary(value, depth)
        copy = NrbfObject(value.type_name, library=value.library)
        self._done[id(value)] = value, copy
        for name, member in value.members.items():
            copy.members[name] = self.convert(member, depth + 1)
        return copy

    def _list(self, value: NrbfObject, depth: int) -> list[Any]:
        found: list[Any] = []
        self._done[id(value)] = value, found
        items, size = value.members.get("_items"), value.members.get("_size")
        if isinstance(items, bytes) and isinstance(size, int):  # a list of bytes
            items = list(items)
        if not isinstance(items, list) or not isinstance(size, int) or not 0 <= size <= len(items):
            raise ValueError(f"{value.type_name} has unexpected fields")
        found += [self.convert(each, depth + 1) for each in items[:size]]
        return found

    def _dictionary(self, value: NrbfObject, depth: int) -> dict[Any, Any]:
        found: dict[Any, Any] = {}
        self._done[id(value)] = value, found
        members = value.members
        if "KeyValuePairs" in members:
            pairs = members["KeyValuePairs"]
            if not isinstance(pairs, list) or not all(isinstance(p, NrbfObject) for p in pairs):
                raise ValueError(f"{value.type_name} has unexpected fields")
            keys = [pair.members.get("key") for pair in pairs]
            values = [pair.members.get("value") for pair in pairs]
        else:
            keys, values = members.get("Keys", []), members.get("Values", [])
        if not isinstance(keys, list) or not isinstance(values, list) or len(keys) != len(values):
            raise ValueError(f"{value.type_name} has unexpected fields")
        for key, each in zip(keys, values, strict=True):
            key = self.convert(key, depth + 1)
            try:
                found[key] = self.convert(each, depth + 1)
            except TypeError as error:  # a key that is itself a list or an object
                raise ValueError(f"{value.type_name} has keys that are no plain values") from error
        return found


def _decimal(members: dict[str, Any]) -> Decimal:
    """Return System.Decimal: 96 bits in three fields, sign and scale in `flags`."""
    low, middle, high = (members[each] & 0xFFFFFFFF for each in ("lo", "mid", "hi"))
    flags = members["flags"]
    digits = high << 64 | middle << 32 | low
    scale = flags >> 16 & 0xFF
    if scale > 28:
        raise ValueError("the scale of a decimal number")
    return Decimal((1 if flags < 0 else 0, tuple(map(int, str(digits))), -scale))


def _guid(members: dict[str, Any]) -> uuid.UUID:
    rest = bytes(members[f"_{name}"] & 0xFF for name in "defghijk")
    return uuid.UUID(
        fields=(
            members["_a"] & 0xFFFFFFFF,
            members["_b"] & 0xFFFF,
            members["_c"] & 0xFFFF,
            rest[0],
            rest[1],
            int.from_bytes(rest[2:], "big"),
        )
    )


def _boxed(members: dict[str, Any]) -> Any:
    return members["m_value"]


def _date(members: dict[str, Any]) -> datetime:
    return moment(members["dateData"] if "dateData" in members else members["ticks"])


def _span(members: dict[str, Any]) -> timedelta:
    return timedelta(microseconds=members["_ticks"] // 10)


_SCALARS: dict[str, Callable[[dict[str, Any]], Any]] = {
    **{
        f"System.{name}": _boxed
        for name in (
            *("Boolean", "Byte", "SByte", "Char", "Double", "Single"),
            *("Int16", "Int32", "Int64", "UInt16", "UInt32", "UInt64"),
        )
    },
    "System.DateTime": _date,
    "System.TimeSpan": _span,
    "System.Decimal": _decimal,
    "System.Guid": _guid,
}
_LISTS = frozenset({"System.Collections.Generic.List", "System.Collections.ArrayList"})
_DICTIONARIES = frozenset({"System.Collections.Generic.Dictionary", "System.Collections.Hashtable"})
