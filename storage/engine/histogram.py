"""Histogram: counts measured values by size, with an example of each size."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import NamedTuple


class Example(NamedTuple):
    """A measured value, and the message that it is about."""

    value: float
    source: bytes  # GUID of the queue manager that assigned the number
    number: int


class Histogram:
    """Counts of values that are at most each of some ascending bounds, and of those above all."""

    __slots__ = ("bounds", "counts", "examples", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.examples: list[Example | None] = [None] * (len(self.bounds) + 1)
        self.total = 0.0  # the sum of all values

    def add(self, value: float) -> int:
        """Count a value; return the index of its count."""
        index = bisect_left(self.bounds, value)
        self.counts[index] += 1
        self.total += value
        return index
