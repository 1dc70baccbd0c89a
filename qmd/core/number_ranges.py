"""Which messages of others' sequences a relay holds: ranges of their numbers.

A source sends everything again that nobody has acknowledged end to end, as often as its timer says,
while the relay may be holding all of it for a destination that is away.  What is held is not taken
a second time; what was passed on is, because it may have been rejected there.

Numbers of a sequence come and go in order, so that its ranges are few.
"""

from __future__ import annotations

from bisect import bisect_right


class HeldNumbers:
    """A set of numbers; costs memory by its gaps."""

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
        """False: it was there."""
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
