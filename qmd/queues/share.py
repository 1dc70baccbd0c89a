"""Share: the outgoing queues that exist because one other host asks for acknowledgments."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

ADDED_MAX = 32  # messages since the queues were counted


class TotalBytes:
    """The bytes in the queues of all shares."""

    __slots__ = ("bytes",)

    def __init__(self) -> None:
        self.bytes = 0


class Share:
    """The outgoing queues that one host asks for."""

    __slots__ = ("_added", "_counted", "_total", "bytes", "host", "keys", "search_at")

    def __init__(self, total: TotalBytes, host: str) -> None:
        self._total = total
        self.host = host
        self.bytes = 0  # of the packets in these queues
        # Names, because a reference to a queue would keep it from being forgotten.
        self.keys: dict[str, None] = {}
        self.search_at = 0.0  # no search for idle queues before
        self._counted = 0  # messages, at the last count
        self._added = ADDED_MAX  # since then, at most

    def messages(self, count: Callable[[str], int], more: int, limit: int) -> int:
        """Return the number of messages in these queues, before `more` are added to them.

        `count` returns that of the queue with a key.  Each acknowledgment asks for the number, and
        there may be as many queues: they are counted once for `ADDED_MAX` messages only, and
        whenever the number might exceed the limit.
        """
        if self._added + more > ADDED_MAX or self._counted + self._added + more > limit:
            self._counted = sum(map(count, self.keys))
            self._added = 0
        before = self._counted + self._added
        self._added += more
        return before

    def grow(self, size: int) -> None:
        """Count `size` more bytes; a negative number counts fewer."""
        self.bytes += size
        self._total.bytes += size
