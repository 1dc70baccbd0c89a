"""Ranges of sequence numbers that a relay holds for the sequences of other queue managers.

A source resends every message that is not acknowledged end to end, each time its timer expires,
while the relay may still hold all of them for an unreachable destination. The relay does not accept
a held message a second time. It accepts one again that it has forwarded, because the destination
may have rejected that copy.

The numbers of a sequence arrive and leave in order, so there are few ranges.
"""

from __future__ import annotations

from bisect import bisect_right


class HeldNumbers:
    """A set of numbers, stored as ranges; memory use grows with the number of gaps."""

    __slots__ = ("_firsts", "_lasts")

    def __init__(self) -> None:
        self._firsts: list[int] = []
        self._lasts: list[int] = []

    def __bool__(self) -> bool:
        return bool(self._firsts)

    def __contains__(self, number: int) -> bool:
        at = bisect_right(self._firsts, number) - 1
        return at >= 0 and number <= self._lasts[at]

    def add(self, number: int) -> bool:
        """Add a number; return False if it was present."""
        at = bisect_right(self._firsts, number) - 1
        if at >= 0 and number <= self._lasts[at]:
            return False
        joins_left = at >= 0 and self._lasts[at] == number - 1
        joins_right = at + 1 < len(self._firsts) and self._firsts[at + 1] == number + 1
        if joins_left and joins_right:
            self._lasts[at] = self._lasts[at + 1]
            del self._firsts[at + 1], self._lasts[at + 1]
        elif joins_left:
            self._lasts[at] = number
        elif joins_right:
            self._firsts[at + 1] = number
        else:
            self._firsts.insert(at + 1, number)
            self._lasts.insert(at + 1, number)
        return True

    def discard(self, number: int) -> None:
        at = bisect_right(self._firsts, number) - 1
        if at < 0 or number > self._lasts[at]:
            return
        first, last = self._firsts[at], self._lasts[at]
        if first == last:
            del self._firsts[at], self._lasts[at]
        elif number == first:
            self._firsts[at] = number + 1
        elif number == last:
            self._lasts[at] = number - 1
        else:
            self._lasts[at] = number - 1
            self._firsts.insert(at + 1, number + 1)
            self._lasts.insert(at + 1, last)
