"""Deadlines of messages that exist in memory only (express messages).

For stored messages the database has an index of expiry times.
"""

from __future__ import annotations

from itertools import islice

_NEVER = float("inf")


class Deadlines:
    """Keys with the last second of their lifetime.

    Adding and discarding a key is cheap. A search for expired keys costs nothing before the
    earliest deadline, and then one pass over all keys.
    """

    __slots__ = ("_earliest_s", "_ends", "_over")

    def __init__(self) -> None:
        self._ends: dict[int, int] = {}
        self._earliest_s: float = _NEVER  # or earlier, if that key was discarded
        self._over: dict[int, None] = {}  # found expired, not returned yet

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
        """Remove and return at most `keys_max` keys that expired before `now_s`."""
        if now_s > self._earliest_s:
            ends = self._ends
            self._over |= dict.fromkeys(key for key, last_s in ends.items() if last_s < now_s)
            self._ends = {key: last_s for key, last_s in ends.items() if last_s >= now_s}
            self._earliest_s = min(self._ends.values(), default=_NEVER)
        over = list(islice(self._over, keys_max))
        for key in over:
            del self._over[key]
        return over
