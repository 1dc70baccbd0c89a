"""Histories of the message numbers received from each source, with bounded memory.

[MS-MQQB] 3.1.1.3 keeps one table for all sources, in which a busy source displaces the others. Here
each source has a `History`:

    oldest ◄── Segment ── Segment ── Segment ── open Segment ◄── numbers as they arrive
               1-900      901, 905   40-52      906-…

A source assigns its numbers in ascending order, but they arrive in any order: messages overtake
others by priority, messages wait, and numbers in between go to other destinations. A number below a
known one may therefore be new, so only the numbers that arrived are recorded. Adjacent numbers form
one run of eight bytes.

Numbers are forgotten by whole segments, the oldest first:

- by count, while the segments after it hold at least `runs_min` runs;
- by age, while the segments after it hold at least `KEPT_MESSAGES` messages: a source that was
  disconnected resends its unacknowledged messages (its window, and those that a crash of the source
  restores) whenever it returns, even after a day;
- with the complete history, when nothing has arrived for `SILENT_S`.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterable
from typing import NamedTuple

KEPT_MESSAGES = 1000  # sixteen windows of 64
SILENT_S = 7 * 86400  # more than the four days that Windows waits for a message to reach its queue
SEGMENT_RUNS_MAX = 1024
SEGMENT_MESSAGES_MIN = 128  # with fewer messages, a new segment is not worth its memory
SEGMENTS_PER_AGE = 4

#: Approximate memory use, measured with sys.getsizeof.
RUN_BYTES = 8
SEGMENT_BYTES = 400
HISTORY_BYTES = 800

#: First and last number, both included.
Run = tuple[int, int]


class Bounds(NamedTuple):
    """Minimum kept of each source: the number of runs, and the age in seconds."""

    runs_min: int
    age_s: int

    @property
    def segment_runs(self) -> int:
        return max(1, min(self.runs_min // 8, SEGMENT_RUNS_MAX))


class Segment:
    """A set of 32-bit numbers that arrived at about the same time."""

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
        """Add a number; return the change in the number of runs: 1, 0 or -1.

        A number that is present changes nothing.
        """
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

    def add_run(self, first: int, last: int) -> int:
        """Add the numbers from `first` to `last`, as `add` does."""
        lasts = self._lasts
        if lasts and first == lasts[-1] + 1:
            self.messages += last - lasts[-1]
            lasts[-1] = last
            return 0
        return sum([self.add(number) for number in range(first, last + 1)])

    def restore(self, runs: Iterable[Run]) -> None:
        """Fill an empty segment from runs, which may be unordered and may overlap."""
        firsts, lasts = self._firsts, self._lasts
        for first, last in sorted(runs):
            if lasts and first <= lasts[-1] + 1:
                lasts[-1] = max(lasts[-1], last)
            else:
                firsts.append(first)
                lasts.append(last)
        self.messages = sum(lasts) - sum(firsts) + len(firsts)


class History:
    """Numbers of one source that arrived from one peer."""

    __slots__ = ("_bounds", "_segments", "highest")

    def __init__(self, bounds: Bounds) -> None:
        self._bounds = bounds
        self._segments: list[Segment] = []  # few: an empty deque is larger than all the rest
        self.highest = 0  # highest number that ever arrived

    @property
    def segments(self) -> tuple[Segment, ...]:
        """The segments, the oldest first."""
        return tuple(self._segments)

    @property
    def last_s(self) -> int:
        """When the last number arrived."""
        return self._segments[-1].last_s if self._segments else 0

    @property
    def oldest_s(self) -> int:
        """When the last number of the oldest segment arrived."""
        return self._segments[0].last_s if self._segments else 0

    def measured(self) -> int:
        """Return the approximate memory use in bytes."""
        return HISTORY_BYTES + sum(segment.bytes for segment in self._segments)

    def has(self, number: int) -> bool:
        return number <= self.highest and any(
            segment.has(number) for segment in reversed(self._segments)
        )

    def is_recent(self, number: int) -> bool:
        """Return whether the number is in the segment that is forgotten last."""
        return bool(self._segments) and self._segments[-1].has(number)

    def is_newest(self, segment_id: int) -> bool:
        """Return whether the last segment has this id."""
        return bool(self._segments) and self._segments[-1].id == segment_id

    def restore(self, segment: Segment) -> None:
        """Add a stored segment; call this in the order of the segment ids."""
        self._segments.append(segment)
        self.highest = max(self.highest, segment.highest)

    def segment_at(self, now_s: int, new_id: int) -> tuple[Segment, list[Segment]]:
        """Return the segment for a number that arrives now, and the segments that were forgotten.

        If a new segment is opened, it gets the id `new_id`.
        """
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
        """Add a number to the last segment, see `segment_at`; return the change in runs."""
        if number > self.highest:
            self.highest = number
        return self._segments[-1].add(number)

    def add_run(self, first: int, last: int) -> int:
        """Add the numbers from `first` to `last`, as `add` does."""
        if last > self.highest:
            self.highest = last
        return self._segments[-1].add_run(first, last)

    def forget_old(self, now_s: int) -> list[Segment]:
        """Forget and return the segments that are too old.

        After `SILENT_S` seconds without a number these are all segments.
        """
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
        """Forget and return the oldest segments until at most `bytes_max` bytes remain.

        All segments are forgotten if that is necessary.
        """
        gone: list[Segment] = []
        size = self.measured()
        while self._segments and size > bytes_max:
            gone.append(self._segments.pop(0))
            size -= gone[-1].bytes
        return gone


def fair_share(amounts: Iterable[int], total: int) -> int:
    """Return the limit for each amount so that their sum is at most `total` (max-min fairness).

    Amounts below the limit stay as they are; the larger ones share the remainder equally.
    """
    ascending = sorted(amounts)
    left = total
    for at, amount in enumerate(ascending):
        share = left // (len(ascending) - at)
        if amount > share:
            return share
        left -= amount
    return ascending[-1] if ascending else total
