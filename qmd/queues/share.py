"""Share: the outgoing queues that exist because one other host asks for acknowledgments."""

from __future__ import annotations


class TotalBytes:
    """The bytes in the queues of all shares."""

    __slots__ = ("bytes",)

    def __init__(self) -> None:
        self.bytes = 0


class Share:
    """The outgoing queues that one host asks for."""

    __slots__ = ("_total", "bytes", "host", "keys", "search_at")

    def __init__(self, total: TotalBytes, host: str) -> None:
        self._total = total
        self.host = host
        self.bytes = 0  # of the packets in these queues
        # Names, because a reference to a queue would keep it from being forgotten.
        self.keys: dict[str, None] = {}
        self.search_at = 0.0  # no search for idle queues before

    def grow(self, size: int) -> None:
        """Count `size` more bytes; a negative number counts fewer."""
        self.bytes += size
        self._total.bytes += size
