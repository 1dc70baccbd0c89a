"""Where a read begins and ends: positions and times, as options give them.

A position is the number of arrival of a message in its queue (the column `position` of a batch
read).  As in Kafka's source, a starting position belongs to the read, and an ending one does not.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from pipeline.source.errors import option_error

EARLIEST, LATEST = "earliest", "latest"
POSITION_MAX = (1 << 44) - 1
_KAFKA_NUMBERS = {-2: EARLIEST, -1: LATEST}
# From 1973 to 5138.  Seconds have fewer digits, microseconds more: they would be silently wrong.
_MILLISECONDS = re.compile(r"\d{12,14}|0")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)

Position = int | str  # a number of arrival, EARLIEST or LATEST


@dataclass(frozen=True, slots=True)
class Bound:
    """One end of a read: the same for all queues, or with numbers for single ones."""

    general: Position
    queues: Mapping[str, int | str] = field(default_factory=dict)
    at_ms: int | None = None
    times: Mapping[str, int] = field(default_factory=dict)  # of single queues, in ms

    def time_of(self, queue: str) -> int | None:
        return self.times.get(queue, self.at_ms)

    def of(self, queue: str) -> Position:
        return self.queues.get(queue, self.general)


def starting(given: Mapping[str, str], queues: list[str], start: str) -> Bound:
    """Return the start: `startingOffsets`, `startingTimestamp`, or `start` if neither is given."""
    return _bound(given, "startingOffsets", "startingTimestamp", queues, start)


def ending(given: Mapping[str, str], queues: list[str]) -> Bound:
    """Return the end: `endingOffsets`, `endingTimestamp`, or LATEST if neither is given."""
    end = _bound(given, "endingOffsets", "endingTimestamp", queues, LATEST)
    if EARLIEST in (end.general, *end.queues.values()):
        raise option_error("endingOffsets", "is earliest; a read that ends there reads nothing")
    return end


def _bound(
    given: Mapping[str, str], offsets: str, timestamp: str, queues: list[str], otherwise: str
) -> Bound:
    said, time = given.get(offsets.lower()), given.get(timestamp.lower())
    if said is not None and time is not None:
        raise option_error(offsets, f'and "{timestamp}" exclude each other; leave one of them out')
    if time is not None and time.strip().startswith("{"):
        return Bound(otherwise, times=_times(timestamp, time, queues))
    if time is not None:
        return Bound(otherwise, at_ms=moment_ms(timestamp, time))
    if said is None:
        return Bound(otherwise)
    text = said.strip()
    if text.lower() in (EARLIEST, LATEST):
        return Bound(text.lower())
    return Bound(otherwise, _positions(offsets, text, queues))


def _positions(option: str, text: str, queues: list[str]) -> dict[str, Position]:
    wrong = f'is {text!r}; it is {EARLIEST}, {LATEST}, or as {{"orders": 4711}}'
    try:
        listed = json.loads(text)
    except (ValueError, RecursionError):
        raise option_error(option, wrong) from None
    if not isinstance(listed, dict) or not listed:
        raise option_error(option, wrong)
    found: dict[str, Position] = {}
    for queue, position in listed.items():
        if queue not in queues:
            raise option_error(
                option, f'names {queue!r}, and the option "queue" does not; it has {_list(queues)}'
            )
        known: Any = _KAFKA_NUMBERS.get(position, position) if _is_whole(position) else position
        if known in (EARLIEST, LATEST) or (_is_whole(known) and 0 <= known <= POSITION_MAX):
            found[queue] = known
            continue
        raise option_error(
            option,
            f"has {position!r} for {queue!r}; it is a whole number from 0, {EARLIEST} or {LATEST}",
        )
    return found


def _times(option: str, text: str, queues: list[str]) -> dict[str, int]:
    wrong = f'is {text!r}; it is a time, or as {{"orders": "2026-01-31T08:00:00Z"}}'
    try:
        listed = json.loads(text)
    except (ValueError, RecursionError):
        raise option_error(option, wrong) from None
    if not isinstance(listed, dict) or not listed:
        raise option_error(option, wrong)
    for queue, time in listed.items():
        if queue not in queues:
            raise option_error(
                option, f'names {queue!r}, and the option "queue" does not; it has {_list(queues)}'
            )
        if not _is_whole(time) and not isinstance(time, str):
            raise option_error(option, wrong)
    return {queue: moment_ms(option, str(time)) for queue, time in listed.items()}


def moment_ms(option: str, text: str) -> int:
    """Return a time in milliseconds since 1970: the first whole one that is not before it.

    Messages arrive at whole milliseconds, so it serves as a start and as an end.
    """
    return max(0, -((_EPOCH - moment_of(option, text)) // _MILLISECOND))


def moment_of(option: str, text: str) -> datetime:
    """Return a time, given in milliseconds since 1970 or in ISO 8601 (UTC).  Raises SourceError."""
    text = text.strip()
    try:
        if _MILLISECONDS.fullmatch(text):
            return _EPOCH + int(text) * _MILLISECOND
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise option_error(
            option,
            f"is {text!r}; it is a time as 2026-01-31T08:00:00Z, or milliseconds since 1970",
        ) from None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _list(queues: list[str]) -> str:
    return ", ".join(map(repr, queues))
