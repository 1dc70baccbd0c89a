"""Conditions of a read, translated for the queue manager.

Every translation passes the rows that the condition passes, and perhaps more: the queue manager
matches substrings without regard to case, and times in milliseconds.  So the executor compares
again (`where.py`), and a condition without a translation is left to it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from protocol.errors import InvalidName
from protocol.identifiers import parse_correlation
from protocol.message_class import MessageClass
from qmd.client import Choice
from qmd.control_protocol.bulk import Filter

_POSITION_MAX = (1 << 44) - 1  # of an arrival number
_IDS_MAX = 10_000
_OF_EVENTS = (("host",), ("queue_manager",), ("queue",), ("kind",), ("time",))


@dataclass(frozen=True, slots=True)
class PushedFilters:
    """Restrictions that are applied before rows are read."""

    wanted: Filter = field(default_factory=Filter)
    after: int = 0
    until: int = _POSITION_MAX
    places: dict[str, frozenset[str]] = field(default_factory=dict)  # host, queue_manager, queue
    moments: tuple[int, int] = (0, 1 << 62)  # of events, in milliseconds, both included
    kinds: frozenset[str] | None = None  # of events
    nothing: bool = False  # no row can match

    def has(self, name: str, value: str) -> bool:
        """Return whether rows with this value in the column `name` are wanted."""
        return name not in self.places or value in self.places[name]


def pushed(filters: Iterable[Any], kind: str = "messages") -> PushedFilters:
    """Translate all of the filters on messages or events, which are joined by AND."""
    found = PushedFilters()
    for one in filters:
        path = getattr(one, "attribute", ())
        # Some columns of events have other values: without a correlation id it is an empty text.
        if kind == "messages" or path[:1] in _OF_EVENTS:
            found = _with(found, type(one).__name__, path, one)
    return found


def within(
    found: PushedFilters, first_ms: int | None, end_ms: int | None, moments: tuple[int, int]
) -> PushedFilters:
    """Restrict messages to those that arrived from `first_ms` on and before `end_ms`.

    `moments` is the same restriction of events.
    """
    found = replace(found, moments=moments)
    choice = found.wanted.choice
    if first_ms is not None:
        after = choice.arrived_after_ms
        low = first_ms - 1 if after is None else max(after, first_ms - 1)
        found = _choosing(found, arrived_after_ms=low)
    if end_ms is not None:
        before = choice.arrived_before_ms
        found = _choosing(
            found, arrived_before_ms=end_ms if before is None else min(before, end_ms)
        )
    return found


def _with(found: PushedFilters, kind: str, path: tuple[str, ...], one: Any) -> PushedFilters:
    value = getattr(one, "value", None)
    if kind == "EqualNullSafe" and value is not None:
        kind = "EqualTo"
    if value is None or not path:
        return found
    name = ".".join(path)
    if name in ("host", "queue_manager", "queue", "kind"):
        return _placed(found, name, kind, value)
    if name in ("position", "sequence.number", "sequence.id"):
        return _numbered(found, name, kind, value)
    if name in ("arrived_at", "time") and isinstance(value, datetime):
        return _timed(found, name, kind, value)
    if name in ("label", "reason", "destination"):
        return _texted(found, name, kind, value)
    if name == "class" and kind == "EqualTo":
        # The queue manager refuses a class that it does not know; no row has it.
        known = str(value).upper() in MessageClass.__members__
        return _choosing(found, message_class=str(value)) if known else found
    if name in ("id", "correlation_id", "lookup_id"):
        return _identified(found, name, kind, value)
    return found


def _placed(found: PushedFilters, name: str, kind: str, value: Any) -> PushedFilters:
    if kind not in ("EqualTo", "In"):
        return found
    given = value if kind == "In" else [value]
    values = frozenset(str(each) for each in given if each is not None)
    if name == "kind":
        return replace(found, kinds=values if found.kinds is None else found.kinds & values)
    before = found.places.get(name)
    both = values if before is None else before & values
    return replace(found, places={**found.places, name: both})


def _bounds(kind: str, value: float) -> tuple[int | None, int | None]:
    """Return the smallest and the largest integer that the comparison passes (None: no bound)."""
    match kind:
        case "EqualTo":
            return math.ceil(value), math.floor(value)
        case "GreaterThan":
            return math.floor(value) + 1, None
        case "GreaterThanOrEqual":
            return math.ceil(value), None
        case "LessThan":
            return None, math.ceil(value) - 1
        case "LessThanOrEqual":
            return None, math.floor(value)
    return None, None


def _numbered(found: PushedFilters, name: str, kind: str, value: Any) -> PushedFilters:
    first, last = _bounds(kind, value) if kind != "In" else (None, None)
    if name == "position":
        after = found.after if first is None else max(found.after, first - 1)
        until = found.until if last is None else min(found.until, last)
        return replace(found, after=after, until=until, nothing=found.nothing or after >= until)
    wanted = found.wanted
    if name == "sequence.id":
        if kind != "EqualTo" or not 0 <= value < 1 << 62 or value != int(value):
            return found  # the request has no room for larger ones
        if wanted.sequence_id not in (None, int(value)):
            return replace(found, nothing=True)
        return _filtering(found, sequence_id=int(value))
    if first is not None and first > 0:
        found = _filtering(found, sequence_from=max(first, wanted.sequence_from or 0))
    if last is not None:
        if last < 0:
            return replace(found, nothing=True)
        before = wanted.sequence_until
        found = _filtering(found, sequence_until=last if before is None else min(last, before))
    return found


def _timed(found: PushedFilters, name: str, kind: str, value: datetime) -> PushedFilters:
    moment_ms = value.timestamp() * 1000
    # A time between two milliseconds equals no time of a row, and is only a bound.
    first, last = (math.floor(moment_ms), math.ceil(moment_ms))
    low = first if kind in ("EqualTo", "GreaterThan", "GreaterThanOrEqual") else None
    high = last if kind in ("EqualTo", "LessThan", "LessThanOrEqual") else None
    if name == "time":
        least, most = found.moments
        return replace(found, moments=(max(least, low or 0), min(most, high or most)))
    choice = found.wanted.choice
    if low is not None:
        after = choice.arrived_after_ms
        found = _choosing(found, arrived_after_ms=low - 1 if after is None else max(after, low - 1))
    if high is not None:
        before = choice.arrived_before_ms
        found = _choosing(
            found, arrived_before_ms=high + 1 if before is None else min(before, high + 1)
        )
    return found


def _texted(found: PushedFilters, name: str, kind: str, value: Any) -> PushedFilters:
    if kind not in ("EqualTo", "StringContains", "StringStartsWith", "StringEndsWith"):
        return found
    # The request has room for one substring; the longest is the most selective.
    if len(value) <= len(getattr(found.wanted.choice, name)):
        return found
    return _choosing(found, **{name: str(value)})


def _identified(found: PushedFilters, name: str, kind: str, value: Any) -> PushedFilters:
    if kind not in ("EqualTo", "In"):
        return found
    values = list(value) if kind == "In" else [value]
    field_name = {"id": "message_ids", "correlation_id": "correlation_ids"}.get(name, "lookup_ids")
    if getattr(found.wanted.choice, field_name) or len(values) > _IDS_MAX:
        return found  # the request has room for one list
    if name == "lookup_id":
        known: list[Any] = [int(each) for each in values if each is not None]
    else:
        known = []
        for each in values:
            try:
                known.append(parse_correlation(str(each)))
            except InvalidName:  # no message has this id
                continue
    if not known:
        return replace(found, nothing=True)
    return _choosing(found, **{field_name: known})


def _filtering(found: PushedFilters, **changes: Any) -> PushedFilters:
    import msgspec

    return replace(found, wanted=msgspec.structs.replace(found.wanted, **changes))


def _choosing(found: PushedFilters, **changes: Any) -> PushedFilters:
    import msgspec

    choice: Choice = msgspec.structs.replace(found.wanted.choice, **changes)
    return _filtering(found, choice=choice)
