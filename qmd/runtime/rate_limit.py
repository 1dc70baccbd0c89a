"""Rate limit: a number of events per second, for each source and for all (token buckets)."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable

SOURCES_MAX = 4096  # beyond them, the one that was unused for the longest time begins anew


class RateLimit:
    """Rates of each source, of each group of sources, and of all sources together."""

    def __init__(
        self,
        clock: Callable[[], float],
        *,
        of_each: float,
        of_all: float,
        burst_s: float,
        of_group: float = math.inf,
    ) -> None:
        """Create the limit: events per second, and the time of which they may come at once."""
        self._clock = clock
        self._of_each = of_each
        self._burst_s = burst_s
        self._all = Bucket(of_all, burst_s, clock())
        self._of_group = of_group
        self._sources: dict[Hashable, Bucket] = {}  # the longest unused first
        self._groups: dict[Hashable, Bucket] = {}  # likewise

    def allows(
        self, source: Hashable, *, group: Hashable = None, in_any_case: bool = False
    ) -> bool:
        """Return whether an event of this source is within the limits, and count it if so.

        `in_any_case` exempts the source from the limits of its group and of all.
        """
        now = self._clock()
        bucket = self._bucket(self._sources, source, self._of_each, now)
        if not bucket.has_one(now):
            return False
        if not in_any_case:
            if self._of_group < math.inf:
                groups = self._bucket(self._groups, group, self._of_group, now)
                # First of all: a group without tokens takes none from the others.
                if not groups.has_one(now) or not self._all.take(now):
                    return False
                groups.take(now)
            elif not self._all.take(now):
                return False
        return bucket.take(now)

    def _bucket(
        self, buckets: dict[Hashable, Bucket], name: Hashable, rate: float, now: float
    ) -> Bucket:
        """Return the bucket of a name, which becomes the latest used one."""
        bucket = buckets.pop(name, None)
        if bucket is None:
            bucket = Bucket(rate, self._burst_s, now)
            if len(buckets) >= SOURCES_MAX:
                del buckets[next(iter(buckets))]
        buckets[name] = bucket
        return bucket


class Bucket:
    """A token bucket, which is full at first."""

    __slots__ = ("_at", "_left", "_most", "_rate")

    def __init__(self, rate: float, burst_s: float, now: float) -> None:
        self._rate = rate
        self._most = self._left = max(rate * burst_s, 1.0)
        self._at = now

    def has_one(self, now: float) -> bool:
        """Return whether a token is left."""
        self._left = min(self._most, self._left + (now - self._at) * self._rate)
        self._at = now
        return self._left >= 1

    def take(self, now: float) -> bool:
        """Take a token, if one is left; return whether it was."""
        if not self.has_one(now):
            return False
        self._left -= 1
        return True
