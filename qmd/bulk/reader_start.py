"""The place at which a new reader begins in a queue."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from qmd.errors import Refusal
from storage.tables import reservations
from storage.tables.keys import ARRIVAL_MAX

if TYPE_CHECKING:
    from collections.abc import Iterable

    from qmd.bulk.range_read import Ranges
    from qmd.queues.local_queue import LocalQueue
    from qmd.runtime.services import Services

OLDEST, NEWEST = "oldest", "newest"
_POSITION, _TIME, _EXISTING = "position", "time", "existing"
_TIME_MAX_MS = 1 << 62
_LIMITS = {_POSITION: ARRIVAL_MAX, _TIME: _TIME_MAX_MS, _EXISTING: _TIME_MAX_MS}


class ReaderStarts:
    """The part that finds the arrival number behind which a new reader begins."""

    def __init__(self, services: Services, ranges: Ranges) -> None:
        self._services = services
        self._ranges = ranges

    async def arrival_before(self, queue: LocalQueue, start: str) -> int:
        """Return the arrival number behind which a reader with this start begins in the queue.

        `start` is as in `qmd.control_protocol.bulk.OpenReader`, and was checked by `check_start`.
        Raises Refusal if no message is there with which the reader has to begin.
        """
        kind, number = _parsed(start)
        if kind == OLDEST:
            return 0
        frontier = await self._ranges.frontier()
        if kind == _POSITION:
            if number > frontier:  # such a reader would wait for this number, and skip the rest
                raise Refusal(
                    "bad_reader_start",
                    f"no message of {queue.name} has had position {number}: the next one to come"
                    f" has {frontier} or more",
                    f"Give the arrival number of a message, or {NEWEST}.",
                )
            return max(number - 1, 0)
        if kind == NEWEST:
            return frontier
        first = await self._services.storage.read(
            partial(
                reservations.first_arrival_since,
                queue_id=queue.id,
                until=frontier,
                since_ms=number,
            )
        )
        numbers = [] if first is None else [first]
        numbers += [
            lookup_id & ARRIVAL_MAX
            for lookup_id, message in queue.express.items()
            if message.arrived_at_ms >= number
        ]
        if not numbers and kind == _EXISTING:
            raise Refusal(
                "bad_reader_start",
                f"{queue.name} has no message that arrived at {number} ms (since 1970) or later",
                f"Give an earlier time, or {_TIME}:{number} to begin with the first one to come.",
            )
        return min(numbers, default=frontier + 1) - 1


def check_start(starts: Iterable[str]) -> None:
    """Raise Refusal for a start that is not as in `OpenReader`."""
    for start in starts:
        _parsed(start)


def _parsed(start: str) -> tuple[str, int]:
    if start in (OLDEST, NEWEST):
        return start, 0
    kind, _, text = start.partition(":")
    if text.isascii() and text.isdecimal() and len(text) < 20:
        number = int(text)
        limit = _LIMITS.get(kind, -1)
        if number <= limit:
            return kind, number
    raise Refusal(
        "bad_reader_start",
        f"a reader cannot start with {start!r}",
        f"Give one of {OLDEST}, {NEWEST}, {_POSITION}:NUMBER, {_TIME}:MILLISECONDS,"
        f" {_EXISTING}:MILLISECONDS.",
    )
