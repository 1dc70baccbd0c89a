"""Message numbers that have come from one source, and which of them are forgotten first.

[MS-MQQB] 3.1.1.3 keeps one table for all sources, in which a busy source pushes out the others.
Here each source has a `History`:

    oldest ◄── Segment ── Segment ── Segment ── open Segment ◄── numbers as they come
               1-900      901, 905   40-52      906-…

A source gives its numbers in growing order, but they arrive in any: priorities overtake, messages
wait, and other destinations get the numbers between.  A number below a known one may therefore be
new, and only what has come is known.  Neighbouring numbers are one run of eight bytes.

What is forgotten goes by segments, the oldest first:

- by count, while the segments behind it hold `runs_min` runs and more;
- by age, while those behind it hold `KEPT_MESSAGES` messages and more: what a source had under way
  when it went silent (its window, and what a crash at its side brings back) is sent again whenever
  it returns, be it after a day;
- with its whole history, when nothing has come for `SILENT_S`.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterable
from typing import NamedTuple

KEPT_MESSAGES = 1000  # sixteen windows of 64
SILENT_S = 7 * 86400  # beyond the four days that Windows waits for a message to reach its queue
SEGMENT_RUNS_MAX = 1024
SEGMENT_MESSAGES_MIN = 128  # a younger part of a segment is not worth one of its own
SEGMENTS_PER_AGE = 4

#: What they take in memory, about: measured with sys.getsizeof.
RUN_BYTES = 8
SEGMENT_BYTES = 400
HISTORY_BYTES = 800

#: First and last number, both included.
Run = tuple[int, int]


class Bounds(NamedTuple):
    """How much of each source is kept: at least so many runs, and for so long."""

    runs_min: int
    age_s: int

    @property
    def segment_runs(self) -> int:
        return max(1, min(self.runs_min // 8, SEGMENT_RUNS_MAX))


class Segment:
    """A set of 32-bit numbers that have come about the same time."""

    __slots__ = ("_firsts", "_lasts", "began_s", "id", "last_s", "messages")

    def __init__(self, id: int, now_s: int) -> None:
        self.id = id
        self.began_s = self.last_s = now_s
        self.messages = 0
        self._firsts, self._lasts = array("I"), array("I")

    @property
    def runs(self) -> int:
        return len(self._firsts)

    @property
    def bytes(self) -> int:
        return SEGMENT_BYTES + RUN_BYTES * len(self._firsts)

    @property
    def highest(self) -> int:
        return self._lasts[-1] if self._lasts else 0

    def has(self, number: int) -> bool:
        at = bisect_right(self._firsts, number)
        return at > 0 and number <= self._lasts[at - 1]

    def add(self, number: int) -> int:
        """How many runs it has more: 1, 0, or -1; a number that it has changes nothing."""
        self.messages += 1
        firsts, lasts = self._firsts, self._lasts
        if lasts and number == lasts[-1] + 1:
            lasts[-1] = number
            return 0
        at = bisect_right(firsts, number)
        if at and number <= lasts[at - 1]:
            self.messages -= 1
            return 0
        follows = at > 0 and lasts[at - 1] + 1 == number
        precedes = at < len(firsts) and number + 1 == firsts[at]
        if follows and precedes:
            lasts[at - 1] = lasts[at]
            del firsts[at], lasts[at]
            return -1
        if follows:
            lasts[at - 1] = number
            return 0
        if precedes:
            firsts[at] = number
            return 0
        firsts.insert(at, number)
        lasts.insert(at, number)
        return 1

    def restore(self, runs: Iterable[Run]) -> None:
        """Fill an empty segment; runs in any order, which may overlap."""
        firsts, lasts = self._firsts, self._lasts
        for first, last in sorted(runs):
            if lasts and first <= lasts[-1] + 1:
                lasts[-1] = max(lasts[-1], last)
            else:
                firsts.append(first)
                lasts.append(last)
        self.messages = sum(lasts) - sum(firsts) + len(firsts)


class History:
    """The numbers of one source that one peer has brought."""

    __slots__ = ("_bounds", "_segments", "highest")

    def __init__(self, bounds: Bounds) -> None:
        self._bounds = bounds
        self._segments: list[Segment] = []  # few; an empty deque takes more than all the rest
        self.highest = 0  # that ever came

    @property
    def segments(self) -> tuple[Segment, ...]:
        """The oldest first."""
        return tuple(self._segments)

    @property
    def last_s(self) -> int:
        """When its last number came."""
        return self._segments[-1].last_s if self._segments else 0

    @property
    def oldest_s(self) -> int:
        """When the last number of its first segment came."""
        return self._segments[0].last_s if self._segments else 0

    def measured(self) -> int:
        """Bytes in memory, about."""
        return HISTORY_BYTES + sum(segment.bytes for segment in self._segments)

    def has(self, number: int) -> bool:
        return number <= self.highest and any(
            segment.has(number) for segment in reversed(self._segments)
        )

    def is_recent(self, number: int) -> bool:
        """Whether it is in the segment that is forgotten last."""
        return bool(self._segments) and self._segments[-1].has(number)

    def is_newest(self, segment_id: int) -> bool:
        """Whether its last segment has that id."""
        return bool(self._segments) and self._segments[-1].id == segment_id

    def restore(self, segment: Segment) -> None:
        """Segments in the order of their ids."""
        self._segments.append(segment)
        self.highest = max(self.highest, segment.highest)

    def segment_at(self, now_s: int, new_id: int) -> tuple[Segment, list[Segment]]:
        """The segment for what comes now, a new one `new_id` perhaps; those that give way to it."""
        segments, bounds = self._segments, self._bounds
        latest = segments[-1] if segments else None
        if latest is not None and not (
            latest.runs >= bounds.segment_runs
            or (
                latest.messages >= SEGMENT_MESSAGES_MIN
                and now_s - latest.began_s > bounds.age_s // SEGMENTS_PER_AGE
            )
        ):
            latest.last_s = max(latest.last_s, now_s)
            return latest, []
        gone: list[Segment] = []
        left = sum(segment.runs for segment in segments)
        while segments and left - segments[0].runs >= bounds.runs_min:
            left -= segments[0].runs
            gone.append(segments.pop(0))
        opened = Segment(new_id, now_s)
        segments.append(opened)
        return opened, gone

    def add(self, number: int) -> int:
        """To the segment that `segment_at` gave last; how many runs it has more."""
        if number > self.highest:
            self.highest = number
        return self._segments[-1].add(number)

    def forget_old(self, now_s: int) -> list[Segment]:
        """What is too old; all that there was, where nothing has come for very long."""
        segments = self._segments
        if now_s - self.last_s > SILENT_S:
            return self.shrink(0)
        gone: list[Segment] = []
        left = sum(segment.messages for segment in segments)
        while (
            segments
            and now_s - segments[0].last_s > self._bounds.age_s
            and left - segments[0].messages >= KEPT_MESSAGES
        ):
            left -= segments[0].messages
            gone.append(segments.pop(0))
        return gone

    def shrink(self, bytes_max: int) -> list[Segment]:
        """Give way to others, the oldest first; all of it, if nothing else helps."""
        gone: list[Segment] = []
        size = self.measured()
        while self._segments and size > bytes_max:
            gone.append(self._segments.pop(0))
            size -= gone[-1].bytes
        return gone


def fair_share(amounts: Iterable[int], total: int) -> int:
    """The most that each may keep so that all together keep `total` at most: who has less keeps it,
    and what is left is shared among the others (max-min fairness)."""
    ascending = sorted(amounts)
    left = total
    for at, amount in enumerate(ascending):
        share = left // (len(ascending) - at)
        if amount > share:
            return share
        left -= amount
    return ascending[-1] if ascending else total
