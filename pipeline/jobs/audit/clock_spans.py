"""Differences of two clocks at a time, as far as messages between hosts show them.

A message shows the difference at its own time.  At any other time the clocks may have drifted
apart, the further the longer it is ago, so bounds are kept for slots of some minutes, each with
the time at which it held.  docs/decisions/0025
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from pipeline.jobs.clocks import BOUNDS

Frame = Any
Array = Any

SLOT_MS = 900_000
_DAY_MS = 86_400_000
_HOUR_MS = 3_600_000
#: How far the clock of `host` is ahead of that of `source`: at least `at_from` at `seen_from`, at
#: most `at_to` at `seen_to`, both by the clock of `source`.
SLOT_BOUNDS = ["source", "host", "slot", "at_from", "seen_from", "at_to", "seen_to"]

_UNKNOWN_MS = _DAY_MS  # assumed largest difference of two clocks without data
_OVER = 4  # pairs that connect two hosts without messages between them
_DAYS = 7  # before a pair's last day: older bounds may precede a clock correction
#: Times are whole milliseconds, and those of an acknowledgment are not those of its commit.
UNSURE_MS = 50
#: Linux corrects a running clock by at most 500 ppm, and a quartz drifts less; two clocks drift
#: apart twice as fast.  Faster drifts are tried where messages contradict that; if messages
#: contradict the last one too, a clock was set.
_DRIFTS = (0.001, 0.002, 0.004, 0.008, 0.016)


def narrowed(old: Frame, new: Frame) -> Frame:
    """Merge bounds (`SLOT_BOUNDS`) into the narrowest of each slot, of the last `_DAYS`."""
    both = pd.concat([old[SLOT_BOUNDS].astype("Int64"), new[SLOT_BOUNDS].astype("Int64")])
    slot = SLOT_BOUNDS[:3]
    low = both.dropna(subset=["at_from"]).sort_values(["at_from", "seen_from"])
    low = low.drop_duplicates(slot, keep="last")[[*slot, "at_from", "seen_from"]]
    high = both.sort_values(["at_to", "seen_to"])
    high = high.drop_duplicates(slot)[[*slot, "at_to", "seen_to"]]
    both = high.merge(low, on=slot, how="left")[SLOT_BOUNDS]
    last = both.groupby(["source", "host"]).slot.transform("max")
    is_recent = _day(both.slot) > _day(last) - _DAYS
    return both[is_recent].sort_values(slot, ignore_index=True)


def by_day(bounds: Frame) -> Frame:
    """Return the bounds of each day (`clocks.BOUNDS`)."""
    days = bounds.assign(day=_day(bounds.slot)).groupby(["source", "host", "day"], as_index=False)
    return days.agg(at_from=("at_from", "max"), at_to=("at_to", "min"))[BOUNDS]


def _day(slots: Frame) -> Frame:
    return slots * SLOT_MS // _DAY_MS


@dataclass(frozen=True)
class _Bounds:
    """Upper bounds `most`, and lower bounds `least`, at times; both sorted by their times."""

    at_most: Array
    most: Array
    at_least: Array
    least: Array

    @classmethod
    def of(cls, at_most: Array, most: Array, at_least: Array, least: Array) -> _Bounds:
        above, below = np.argsort(at_most, kind="stable"), np.argsort(at_least, kind="stable")
        return cls(at_most[above], most[above], at_least[below], least[below])

    def reversed(self) -> _Bounds:
        """Return the same about the other clock, by the times of that clock."""
        moved = self.moved()
        return _Bounds(moved.at_least, -moved.least, moved.at_most, -moved.most)

    def moved(self) -> _Bounds:
        """Return the same by the times of the clock that is ahead."""
        return _Bounds.of(
            self.at_most + self.most, self.most, self.at_least + self.least, self.least
        )

    @property
    def fastest(self) -> float:
        return self.drift or _DRIFTS[0]

    @cached_property
    def drift(self) -> float | None:
        """Return a drift that explains all bounds; None: the clock was set.

        It is twice the slowest one that does: bounds show its mean only.
        """
        for rate in _DRIFTS:
            if (
                self.least <= _cone(self.at_most, self.most, self.at_least, rate) + UNSURE_MS
            ).all():
                return rate if rate == _DRIFTS[0] else 2 * rate
        return None

    def highest(self, at: Array) -> Array:
        """Return the upper bound at each of these times; infinite: there is none."""
        if len(self.most) == 0:
            return np.full(len(at), np.inf)
        if self.drift is not None:
            return _cone(self.at_most, self.most, at, self.drift)
        # It has had all offsets between those before and after.
        beside = [_beside(self.at_most, self.most, at), _beside(self.at_least, self.least, at)]
        return np.maximum(*beside)


def _cone(at: Array, most: Array, when: Array, rate: float) -> Array:
    """Return the lowest of the bounds `most`, each higher by `rate` the further `when` is."""
    if len(at) == 0:
        return np.full(len(when), np.inf)
    before = np.minimum.accumulate(most - rate * at)
    behind = np.minimum.accumulate((most + rate * at)[::-1])[::-1]
    count = np.searchsorted(at, when, side="right")
    of_before = np.where(count > 0, before[np.maximum(count - 1, 0)] + rate * when, np.inf)
    of_behind = np.where(
        count < len(at), behind[np.minimum(count, len(at) - 1)] - rate * when, np.inf
    )
    return np.minimum(of_before, of_behind)


def _beside(at: Array, value: Array, when: Array) -> Array:
    """Return the larger one of the values before and after each time, plus drift meanwhile."""
    if len(at) == 0:
        return np.full(len(when), -np.inf)
    count = np.searchsorted(at, when, side="right")
    before, behind = np.maximum(count - 1, 0), np.minimum(count, len(at) - 1)
    return np.maximum(
        *(value[which] + _DRIFTS[0] * np.abs(when - at[which]) for which in (before, behind))
    )


class Spans:
    """Bounds of the difference of two clocks at a time."""

    def __init__(
        self, bounds: Frame, wrong: Collection[int] = (), unsteady: Collection[int] = ()
    ) -> None:
        """Build the bounds from `SLOT_BOUNDS`.

        Clocks in `wrong` do not connect other clocks.  Clocks in `unsteady` were set back; for
        these, even direct bounds are not used.
        """
        is_known = ~(bounds.source.isin(list(unsteady)) | bounds.host.isin(list(unsteady)))
        bounds = bounds[(bounds.source != bounds.host) & is_known]
        sides: dict[tuple[int, int], list[_Bounds]] = {}
        for (source, host), part in bounds.groupby(["source", "host"]):
            one = _Bounds.of(*_side(part, "to"), *_side(part, "from"))
            sides.setdefault((int(source), int(host)), []).append(one)
            sides.setdefault((int(host), int(source)), []).append(one.reversed())
        self._pairs = {pair: _joined(parts) for pair, parts in sides.items()}
        self._connecting = sorted(pair for pair in self._pairs if not {*pair} & set(wrong))
        self._of_hours: dict[int, tuple[Array, Array, Array]] = {}
        self._reached: dict[tuple[int, int], dict[int, float]] = {}

    def of(self, others: Any, host: int, begin: Array, end: Array) -> tuple[Any, Any]:
        """Return how far the clock of `host` is ahead of each of `others`.

        The lower bound is that at the times `begin`, the upper one that at `end`, both by the
        clocks of `others`.  For a null in `others` both are 0: there is nothing to convert.
        """
        known = np.array([int(each) if pd.notna(each) else 0 for each in others], np.int64)
        least, most = np.zeros(len(known)), np.zeros(len(known))
        for other in set(known.tolist()) - {0, host}:
            which = np.flatnonzero(known == other)
            low = -self._most(host, other, begin[which], by_second=True)
            low = np.where(np.isfinite(low), low, -_UNKNOWN_MS)
            high = self._most(other, host, end[which])
            high = np.where(np.isfinite(high), high, np.maximum(_UNKNOWN_MS, low))
            least[which], most[which] = np.minimum(low, high), high
        return least, most

    def _most(self, one: int, other: int, at: Array, *, by_second: bool = False) -> Array:
        """Return how far the clock of `other` is ahead of that of `one` at most.

        The times are those of `one`, or by the second clock; an infinite time has no meaning.
        """
        at = np.where(np.isfinite(at), at, 0.0)
        pair = self._pairs.get((one, other))
        if pair is not None and len(pair.most):
            return pair.moved().highest(at) if by_second else pair.highest(at)
        # Clocks that connect others are right: by all of them it is about the same hour.
        hours = (at // _HOUR_MS).astype(np.int64)
        return np.array([self._of_hour(one, int(hour)).get(other, np.inf) for hour in hours])

    def _of_hour(self, source: int, hour: int) -> dict[int, float]:
        """Return the upper bounds of other clocks in an hour, over a few hosts in between."""
        if (source, hour) in self._reached:
            return self._reached[source, hour]
        if hour not in self._of_hours:
            middle = np.array([(hour + 0.5) * _HOUR_MS])
            pairs = [self._pairs[pair] for pair in self._connecting]
            most = np.array(
                [pair.highest(middle)[0] + pair.fastest * _HOUR_MS / 2 for pair in pairs]
            )
            hosts, at = np.unique(np.array(self._connecting, np.int64), return_inverse=True)
            self._of_hours[hour] = hosts, at.reshape(-1, 2), most
        hosts, ends, pair_most = self._of_hours[hour]
        most = np.where(hosts == source, 0.0, np.inf)
        for _ in range(_OVER):
            further = most.copy()
            if len(ends):
                np.minimum.at(further, ends[:, 1], most[ends[:, 0]] + pair_most)
            most = further
        there = np.isfinite(most)
        found = dict(zip(hosts[there].tolist(), most[there].tolist(), strict=True))
        self._reached[source, hour] = found
        return found


def _side(part: Frame, side: str) -> tuple[Array, Array]:
    """Return the times and the values of the bounds of a side: `from` or `to`."""
    part = part.dropna(subset=[f"at_{side}"])
    return part[f"seen_{side}"].to_numpy(np.float64), part[f"at_{side}"].to_numpy(np.float64)


def _joined(parts: list[_Bounds]) -> _Bounds:
    return _Bounds.of(
        *(
            np.concatenate([getattr(part, name) for part in parts])
            for name in ("at_most", "most", "at_least", "least")
        )
    )
