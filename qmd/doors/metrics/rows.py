"""Rows of queues and destinations: those that are shown, and the sum of all others.

A time series for each of ten thousand queues would burden every part of a monitoring system, so a
limited number is shown: those with the most messages and the most traffic.  A row that is shown
stays shown until another one has twice as much, so that series do not come and go.  The counters of
the others are added up as they grow, so that their sum never falls when a row changes sides.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from heapq import nlargest
from typing import Generic, NamedTuple, TypeVar

OTHER = "other"  # no queue can have this name: names of queues have a backslash


class Queue(NamedTuple):
    """The figures of a queue, as in the answer of `QueueFigures`."""

    name: str
    kind: str
    messages: int
    bytes: int
    arrived: int
    left: int
    taken: int
    readers: int
    quota_bytes: int | None

    @property
    def counters(self) -> tuple[int, ...]:
        """The values that only grow while the daemon runs."""
        return self.arrived, self.left

    @property
    def is_main(self) -> bool:
        """Whether it comes before others of its size: journals are of less interest."""
        return self.kind == "queue"


class Destination(NamedTuple):
    """The figures of an outgoing queue, as in the answer of `DestinationFigures`."""

    name: str
    state: str
    messages: int
    bytes: int
    unacknowledged: int
    awaiting: int
    handed: int
    resent: int
    round_trip_s: float | None
    in_doubt: bool
    heartbeat: tuple[int, int, int, float | None] | None

    @property
    def counters(self) -> tuple[int, ...]:
        """The values that only grow while the daemon runs."""
        return self.handed, self.resent

    @property
    def is_main(self) -> bool:
        """Whether it comes before others of its size."""
        return True


Row = TypeVar("Row", Queue, Destination)


class Shown(Generic[Row]):
    """The choice of the rows that are shown, from one collection to the next."""

    def __init__(self, rows_max: int, always: Callable[[Row], bool] | None = None) -> None:
        """Show at most `rows_max` rows besides those that are `always` shown."""
        self._rows_max = rows_max
        self._always: Callable[[Row], bool] | None = always
        self._last: dict[str, tuple[int, ...]] = {}  # the counters of all rows
        self._names: set[str] = set()
        self._others: list[int] = []  # the counters of the other rows, added up

    def choose(
        self, rows: Collection[Row], changed: Iterable[Row] | None = None
    ) -> tuple[list[Row], list[Row], tuple[int, ...]]:
        """Return the rows that are shown, the others, and the counters of the others.

        `changed` has the rows that differ from those of the last call, and new ones; None: all may.
        """
        grown = {row.name: self._growth(row) for row in (rows if changed is None else changed)}
        always = self._always
        fixed = [] if always is None else [row for row in rows if always(row)]
        rest = list(rows) if always is None else [row for row in rows if not always(row)]
        if len(rest) > self._rows_max:
            rest = nlargest(self._rows_max, rest, key=lambda row: self._rank(row, grown))
        shown = fixed + rest
        self._names = {row.name for row in shown}
        others = [row for row in rows if row.name not in self._names]
        for name, growth in grown.items():
            if name not in self._names:
                self._others = add(self._others, growth)
        if others and not self._others:
            self._others = [0] * len(others[0].counters)
        self._note(rows, grown)
        return shown, others, tuple(self._others)

    def _note(self, rows: Collection[Row], grown: Collection[str]) -> None:
        """Remember the counters of all rows."""
        if len(grown) == len(rows):
            self._last = {}
        self._last |= {row.name: row.counters for row in rows if row.name in grown}
        if len(self._last) > len(rows):
            names = {row.name for row in rows}
            self._last = {name: last for name, last in self._last.items() if name in names}

    def _rank(self, row: Row, grown: Mapping[str, tuple[int, ...]]) -> tuple[int, bool, str]:
        size = row.messages + sum(grown.get(row.name, ()))
        return (2 * size + 1 if row.name in self._names else size), row.is_main, row.name

    def _growth(self, row: Row) -> tuple[int, ...]:
        """Return how much the counters of a row have grown; they begin anew with the daemon."""
        now = row.counters
        before = self._last.get(row.name, ())
        if any(new < old for new, old in zip(now, before, strict=False)) or not before:
            return now
        return tuple(new - old for new, old in zip(now, before, strict=True))


def add(one: Sequence[int], other: Sequence[int]) -> list[int]:
    """Return the sums of two sequences, of which the first may be empty."""
    return [a + b for a, b in zip(one or [0] * len(other), other, strict=True)]


class Ages:
    """The ages of the oldest messages: of all rows that are shown, of the others in turn."""

    def __init__(self, asked_max: int) -> None:
        self._asked_max = asked_max
        self._at_ms: dict[str, int] = {}
        self._turn: list[str] = []  # the others that are asked next

    def to_ask(self, shown: Iterable[str], others: Iterable[str]) -> list[str]:
        """Return the names to ask for; all must have messages."""
        others, asked = list(others), list(shown)
        known = set(asked) | set(others)
        self._at_ms = {name: at for name, at in self._at_ms.items() if name in known}
        room = max(0, self._asked_max - len(asked))
        turn = [name for name in self._turn if name in known] or others
        self._turn = turn[room:]
        return asked[: self._asked_max] + turn[:room]

    def answered(self, names: Sequence[str], times_ms: Sequence[int | None]) -> None:
        """Note the answers."""
        for name, at_ms in zip(names, times_ms, strict=True):
            if at_ms is None:
                self._at_ms.pop(name, None)
            else:
                self._at_ms[name] = at_ms

    def age_s(self, name: str, now_s: float) -> float | None:
        """Return the age of the oldest message of a row, in seconds, or None."""
        at_ms = self._at_ms.get(name)
        return None if at_ms is None else max(0.0, now_s - at_ms / 1000)

    def oldest_s(self, names: Iterable[str], now_s: float) -> float | None:
        """Return the greatest age of some rows, or None."""
        ages = (self.age_s(name, now_s) for name in names)
        return max((age for age in ages if age is not None), default=None)
