"""A fuzz target: a check that holds for any bytes, and seeds for it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from random import Random

Check = Callable[[bytes], None]
Mutate = Callable[[bytes, int, Random], bytes]


@dataclass(frozen=True, slots=True)
class Target:
    """A check with its seeds; `check` raises nothing for any input, `mutate` changes a valid one.

    `check` must keep to `limits.within_limits`, whatever the product does with the input.
    """

    name: str
    check: Check
    seeds: Callable[[], Iterable[bytes]]
    mutate: Mutate | None = None


def numbers(data: bytes, count_max: int) -> tuple[list[int], bytes]:
    """Return the first bytes of an input as numbers that steer the check, and the rest of it."""
    count = min(data[0] if data else 0, count_max, max(0, len(data) - 1))
    return list(data[1 : 1 + count]), data[1 + count :]


def pieces(data: bytes, sizes: list[int]) -> Iterable[bytes]:
    """Cut bytes into pieces of these sizes, repeatedly; a size of 0 means 4096."""
    at, turn = 0, 0
    while at < len(data):
        size = (sizes[turn % len(sizes)] if sizes else 0) or 4096
        yield data[at : at + size]
        at += size
        turn += 1


def steered(mutate: Mutate, count_max: int) -> Mutate:
    """Wrap a mutation for inputs that begin with `numbers`, which stay or change a little."""

    def mutate_rest(data: bytes, size_max: int, random: Random) -> bytes:
        steering, rest = numbers(data, count_max)
        if random.random() < 0.2:
            steering = [random.randrange(256) for _ in range(random.randrange(count_max))]
        head = bytes((len(steering), *steering))
        return head + mutate(rest, max(0, size_max - len(head)), random)

    return mutate_rest
