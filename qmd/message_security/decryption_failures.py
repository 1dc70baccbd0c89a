"""Counts of bodies that could not be decrypted, so that refusals do not disclose a body.

The encryption of MSMQ has no tag: a program that has an encrypted message can send changed copies
of it, and learns from each refusal whether the padding was right; 128 copies disclose a byte on
average.  After some failures with one encrypted key, further messages with it from that host are
refused untried.  The genuine sender is another host, or has failures with one wrong key only.
"""

from __future__ import annotations

import hashlib

FAILURES_MAX = 64  # of one host with one encrypted key
FORGOTTEN_S = 86_400.0
ENTRIES_MAX = 1000

_Mark = tuple[str, bytes]


class DecryptionFailures:
    """Failures by host and encrypted key."""

    def __init__(self) -> None:
        self._counts: dict[_Mark, tuple[int, float]] = {}

    def are_too_many(self, host: str, item: bytes, now: float) -> bool:
        """Return whether messages of a host with this item EncryptionKey are refused untried.

        now: a clock that only moves forward, in seconds.
        """
        mark = _mark(host, item)
        count, since = self._counts.get(mark, (0, now))
        if count and now - since > FORGOTTEN_S:
            del self._counts[mark]
            return False
        return count >= FAILURES_MAX

    def add(self, host: str, item: bytes, now: float) -> None:
        """Count a failure.  A full table forgets the mark with the fewest failures."""
        mark = _mark(host, item)
        count, since = self._counts.get(mark, (0, now))
        if not count and len(self._counts) >= ENTRIES_MAX:
            del self._counts[min(self._counts, key=lambda each: self._counts[each][0])]
        self._counts[mark] = count + 1, since


def _mark(host: str, item: bytes) -> _Mark:
    return host, hashlib.sha256(item).digest()
