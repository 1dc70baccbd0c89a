"""Numbers that readers hold, most of them in runs; each may have several holders.

Numbers lie in blocks of 1,024, each of which is one integer with a bit for each number.  A run of a
million numbers is a thousand integers, and numbers that are far from each other need a block each:
as much memory as an entry of a dictionary and one of a set.

    layer 0   the numbers with a holder
    layer 1   those with a second one, and so on: each layer is a part of the one before it
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

Run = tuple[int, int]  # the first and the last number of a run

_BITS = 10
_SIZE = 1 << _BITS
_MASK = _SIZE - 1
_FULL = (1 << _SIZE) - 1

_Layer = dict[int, int]  # number of a block -> its bits


class NumberSet:
    """A set of numbers with the number of holders of each."""

    __slots__ = ("_count", "_layers")

    def __init__(self, runs: Iterable[Run] = ()) -> None:
        self._layers: list[_Layer] = [{}]
        self._count = 0
        for first, last in runs:
            self.add(first, last)

    def __len__(self) -> int:
        """Return how many numbers have a holder."""
        return self._count

    def __bool__(self) -> bool:
        return self._count > 0

    def __contains__(self, number: object) -> bool:
        if not self._count or not isinstance(number, int):
            return False
        bits = self._layers[0].get(number >> _BITS)
        return bits is not None and bool(bits >> (number & _MASK) & 1)

    def __iter__(self) -> Iterator[int]:
        """Iterate in ascending order."""
        for first, last in self.runs():
            yield from range(first, last + 1)

    def holders(self, number: int) -> int:
        """Return the number of holders of a number."""
        block, bit = number >> _BITS, number & _MASK
        return sum(layer.get(block, 0) >> bit & 1 for layer in self._layers)

    def touches(self, first: int, last: int) -> bool:
        """Return whether any number of a run has a holder."""
        if not self._count:
            return False
        layer = self._layers[0]
        block = first >> _BITS
        if block == last >> _BITS:
            return bool(layer.get(block, 0) & _bits(first, last))
        return any(layer.get(block, 0) & bits for block, bits in _pieces(first, last))

    def first_free(self, number: int) -> int:
        """Return the lowest number from `number` on that has no holder."""
        layer = self._layers[0]
        block, bit = number >> _BITS, number & _MASK
        while (bits := layer.get(block, 0) >> bit) & 1:
            free = ~bits & (_FULL >> bit)
            if free:
                return (block << _BITS) + bit + _lowest(free)
            block, bit = block + 1, 0
        return (block << _BITS) + bit

    def free_runs(self, first: int, last: int) -> list[Run]:
        """Return the runs of numbers from `first` to `last` that have no holder."""
        if not self.touches(first, last):
            return [(first, last)]
        layer = self._layers[0]
        free = {
            block: left
            for block, bits in _pieces(first, last)
            if (left := bits & ~layer.get(block, 0))
        }
        return list(_runs(free))

    def add(self, first: int, last: int) -> None:
        """Add a holder to each number of a run."""
        block = first >> _BITS
        if block == last >> _BITS:
            self._add(block, _bits(first, last))
            return
        for block, bits in _pieces(first, last):
            self._add(block, bits)

    def _add(self, block: int, bits: int) -> None:
        layer = self._layers[0]
        before = layer.get(block, 0)
        layer[block] = before | bits
        self._count += (bits & ~before).bit_count()
        bits &= before
        depth = 1
        while bits:  # numbers that have a holder already
            if depth == len(self._layers):
                self._layers.append({})
            layer = self._layers[depth]
            before = layer.get(block, 0)
            layer[block] = before | bits
            bits &= before
            depth += 1

    def discard(self, first: int, last: int) -> None:
        """Remove a holder from each number of a run that has one."""
        block = first >> _BITS
        if block == last >> _BITS:
            self._discard(block, _bits(first, last))
        else:
            for block, bits in _pieces(first, last):
                self._discard(block, bits)
        self._trim()

    def _trim(self) -> None:
        while len(self._layers) > 1 and not self._layers[-1]:
            self._layers.pop()

    def _discard(self, block: int, bits: int) -> None:
        for depth in range(len(self._layers) - 1, -1, -1):
            layer = self._layers[depth]
            before = layer.get(block, 0)
            gone = before & bits
            if not gone:
                continue
            if gone == before:
                del layer[block]
            else:
                layer[block] = before ^ gone
            if not depth:
                self._count -= gone.bit_count()
            bits ^= gone
            if not bits:
                return

    def touches_any(self, runs: Sequence[Run]) -> bool:
        """Return whether any number of these runs has a holder."""
        layer = self._layers[0]
        return bool(layer) and any(layer.get(block, 0) & bits for block, bits in _blocks(runs))

    def add_all(self, runs: Sequence[Run]) -> None:
        """Add a holder to each number of these runs, no two of which have a number in common."""
        for block, bits in _blocks(runs):
            self._add(block, bits)

    def discard_all(self, runs: Sequence[Run]) -> None:
        """Remove a holder from each number of these runs, as `add_all` adds one."""
        for block, bits in _blocks(runs):
            self._discard(block, bits)
        self._trim()

    def copy(self) -> NumberSet:
        """Return the numbers as they are now, each with one holder."""
        found = NumberSet()
        found._layers = [self._layers[0].copy()]
        found._count = self._count
        return found

    def runs(self) -> Iterator[Run]:
        """Iterate over the runs of numbers in ascending order."""
        return _runs(self._layers[0])


def _runs(layer: _Layer) -> Iterator[Run]:
    begun: Run | None = None
    for first, last in _runs_of_blocks(layer):
        if begun is not None and begun[1] + 1 == first:
            begun = begun[0], last
            continue
        if begun is not None:
            yield begun
        begun = first, last
    if begun is not None:
        yield begun


def _runs_of_blocks(layer: _Layer) -> Iterator[Run]:
    for block in sorted(layer):
        bits, at = layer[block], block << _BITS
        while bits:
            skipped = _lowest(bits)
            bits >>= skipped
            at += skipped
            length = _lowest(~bits)
            yield at, at + length - 1
            bits >>= length
            at += length


def _lowest(bits: int) -> int:
    """Return the place of the lowest bit that is set."""
    return (bits & -bits).bit_length() - 1


def _bits(first: int, last: int) -> int:
    """Return the bits of a run within one block."""
    return ((2 << (last - first)) - 1) << (first & _MASK)


def _blocks(runs: Iterable[Run]) -> Iterator[tuple[int, int]]:
    """Yield the blocks of runs, each with the bits of its numbers; adjacent short runs together."""
    current, found = -1, 0
    for first, last in runs:
        block = first >> _BITS
        if block != last >> _BITS:
            yield from _pieces(first, last)
            continue
        if block != current:
            if found:
                yield current, found
            current, found = block, 0
        found |= ((2 << (last - first)) - 1) << (first & _MASK)
    if found:
        yield current, found


def _pieces(first: int, last: int) -> Iterator[tuple[int, int]]:
    """Yield the blocks of a run, each with the bits of its numbers."""
    block, end = first >> _BITS, last >> _BITS
    low = first & _MASK
    while block < end:
        yield block, _FULL >> low << low
        block, low = block + 1, 0
    if first <= last:
        yield block, ((2 << (last & _MASK)) - 1) >> low << low
