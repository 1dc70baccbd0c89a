"""Rate limit: a number of events per second, for each source and for all (token buckets)."""

from __future__ import annotations

from collections.abc import Callable, Hashable

SOURCES_MAX = 4096  # beyond them, the one that was unused for the longest time begins anew


class RateLimit:
    """Rates of each source and of all sources together."""

    def __init__(
        self, clock: Callable[[], float], *, of_each: float, of_all: float, burst_s: float
    ) -> None:
        """Create the limit: events per second, and the time of which they may come at once."""
        self._clock = clock
        self._of_each = of_each
        self._burst_s = burst_s
        self._all = Bucket(of_all, burst_s, clock())
        self._sources: dict[Hashable, Bucket] = {}  # the longest unused first

    def allows(self, source: Hashable, *, in_any_case: bool = False) -> bool:
        """Return whether an event of this source is within the limits, and count it if so.

        `in_any_case` exempts the source from the limit of all.
        """
        now = self._clock()
        bucket = self._sources.pop(source, None)
        if bucket is None:
            bucket = Bucket(self._of_each, self._burst_s, now)
            if len(self._sources) >= SOURCES_MAX:
                del self._sources[next(iter(self._sources))]
        self._sources[source] = bucket
        if not bucket.has_one(now) or not (in_any_case or self._all.take(now)):
            return False
        return bucket.take(now)


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
