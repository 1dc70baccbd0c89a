"""Cache of session keys: their RSA operation is slow.  [MS-MQQB] 3.1.1.3.3, 3.1.6.10 to 3.1.6.12"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

Value = TypeVar("Value")

RECEIVED_MAX, SENT_MAX = 127, 53  # [MS-MQQB] 3.1.3.1
LIFETIME_S = 600.0  # SymmetricKeyShortLifetime


class KeyCache(Generic[Value]):
    """Session keys by their marks, for a limited time."""

    def __init__(self, entries_max: int, lifetime_s: float = LIFETIME_S) -> None:
        self._entries_max = entries_max
        self._lifetime_s = lifetime_s
        self._entries: dict[Hashable, tuple[float, Value]] = {}  # in the order of their times

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, mark: Hashable, now: float) -> Value | None:
        """Return a key that is not too old; now: a clock that only moves forward, in seconds."""
        entry = self._entries.get(mark)
        if entry is None:
            return None
        if now - entry[0] >= self._lifetime_s:
            del self._entries[mark]
            return None
        return entry[1]

    def add(self, mark: Hashable, value: Value, now: float) -> None:
        """Add a key, and remove those that are too old.  If there are too many, the older half is
        removed, as the specification has it."""
        self.sweep(now)
        self._entries.pop(mark, None)
        if len(self._entries) >= self._entries_max:
            for oldest in list(self._entries)[: max(self._entries_max // 2, 1)]:
                del self._entries[oldest]
        self._entries[mark] = now, value

    def sweep(self, now: float) -> None:
        """Remove all keys that are too old."""
        for mark, (added, _) in list(self._entries.items()):
            if now - added < self._lifetime_s:
                break
            del self._entries[mark]

    def clear(self) -> None:
        """Remove all keys: the private key has changed."""
        self._entries.clear()
