"""How much is stored, counted as it changes."""

from __future__ import annotations


class Usage:
    """The bytes of all packets in all queues, and of the express ones, which memory holds."""

    __slots__ = ("bytes", "express_bytes")

    def __init__(self) -> None:
        self.bytes = 0
        self.express_bytes = 0


class Measured:
    """A queue whose bytes count towards the whole."""

    def __init__(self, usage: Usage, size: int) -> None:
        self.bytes = 0
        self.usage = usage
        self.grow(size)

    def grow(self, size: int) -> None:
        self.bytes += size
        self.usage.bytes += size

    def shrink(self, size: int) -> None:
        self.bytes -= size
        self.usage.bytes -= size
