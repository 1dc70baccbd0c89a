"""When what is in memory only ends: the disk's index of expiries, for express messages."""

from __future__ import annotations

from itertools import islice

_NEVER = float("inf")


class Deadlines:
    """Keys with the last second of their life.  Adding and discarding cost next to nothing; looking
    for what is over costs nothing before the earliest of them, and then one pass over all."""

    __slots__ = ("_earliest_s", "_ends", "_over")

    def __init__(self) -> None:
        self._ends: dict[int, int] = {}
        self._earliest_s: float = _NEVER  # or earlier: that one may be discarded
        self._over: dict[int, None] = {}  # found, and not yet handed out

    def __len__(self) -> int:
        return len(self._ends) + len(self._over)

    def add(self, key: int, last_s: int) -> None:
        self._ends[key] = last_s
        if last_s < self._earliest_s:
            self._earliest_s = last_s

    def discard(self, key: int) -> None:
        if self._ends.pop(key, None) is None:
            self._over.pop(key, None)

    def pop_over(self, now_s: int, keys_max: int) -> list[int]:
        """Keys whose last second has passed: all, or so many.  They are forgotten here."""
        if now_s > self._earliest_s:
            ends = self._ends
            self._over |= dict.fromkeys(key for key, last_s in ends.items() if last_s < now_s)
            self._ends = {key: last_s for key, last_s in ends.items() if last_s >= now_s}
            self._earliest_s = min(self._ends.values(), default=_NEVER)
        over = list(islice(self._over, keys_max))
        for key in over:
            del self._over[key]
        return over
