"""How much is stored, counted as it changes."""

from __future__ import annotations


class Usage:
    """The bytes of all packets in all queues: what the computer quota limits."""

    __slots__ = ("bytes",)

    def __init__(self) -> None:
        self.bytes = 0


class Measured:
    """A queue whose bytes count towards the whole."""

    def __init__(self, usage: Usage, size: int) -> None:
        self.bytes = 0
        self._usage = usage
        self.grow(size)

    def grow(self, size: int) -> None:
        self.bytes += size
        self._usage.bytes += size

    def shrink(self, size: int) -> None:
        self.bytes -= size
        self._usage.bytes -= size
