"""Allocators of numbers that are never assigned twice, even after a crash."""

from __future__ import annotations

import asyncio
from collections import deque
from functools import partial
from typing import TYPE_CHECKING

from storage.tables import counters
from storage.tables.keys import ARRIVAL_BITS

if TYPE_CHECKING:
    from storage import Storage

ARRIVALS_BLOCK = 1_000_000  # numbers reserved at once: one row is written per block
MESSAGE_NUMBERS_BLOCK = 1 << 18  # half of it is more than a client can request at once
NUMBERS_SPARE = 20_000  # reserve for our own acknowledgments and dead letters


class Numbers:
    """Allocator with a block of numbers reserved on disk; it reserves the next block early."""

    def __init__(self, storage: Storage, name: str, block: int) -> None:
        self._storage = storage
        self._name = name
        self._block = block
        self._next = 0
        self._end = 0
        self._following: deque[tuple[int, int]] = deque()  # blocks, ascending
        self._spare = 0  # numbers in them
        self._reserving = False

    async def start(self, skipped: int = 0) -> None:
        """Reserve the first block, and skip the first `skipped` numbers of it.

        Raises StorageError.
        """
        count = self._block + skipped
        first = await self._storage.batch.run(
            partial(counters.reserve, name=self._name, count=count)
        )
        self._next, self._end = first + skipped, first + count

    async def ensure(self, count: int) -> None:
        """Wait until `count` numbers are left, which another caller may take.

        Raises StorageError.
        """
        while self.left < count:
            block = max(count - self.left, self._block)
            reserve = partial(counters.reserve, name=self._name, count=block)
            self._add(await self._storage.batch.run(reserve), block)

    @property
    def left(self) -> int:
        """The count of numbers that can be allocated before another block is reserved."""
        return self._end - self._next + self._spare

    def next(self) -> int:
        """Allocate a number; at least one must be left."""
        number = self._next
        self._next = number + 1
        if self._end - number + self._spare <= self._block // 2 and not self._reserving:
            self._reserving = True
            self._storage.batch.run(self._reserve).add_done_callback(self._reserved)
        if self._next >= self._end:
            # New work is refused while few numbers are left (`Admission.is_full`).
            assert self._following, f"the reserved {self._name} numbers ran out"
            self._next, self._end = self._following.popleft()
            self._spare -= self._end - self._next
        return number

    def take(self, count: int) -> list[int]:
        """Allocate `count` numbers, ascending; as many must be left."""
        numbers: list[int] = []
        while len(numbers) < count:
            # The last number of a block is allocated by `next`, which continues with the following
            # block.
            last = min(self._next + count - len(numbers), self._end) - 1
            numbers += range(self._next, last)
            self._next = last
            numbers.append(self.next())
        return numbers

    @property
    def upcoming(self) -> int:
        """The number that `next` will return, unless it begins a new block."""
        return self._next

    @property
    def _reserve(self) -> partial[int]:
        return partial(counters.reserve, name=self._name, count=self._block)

    def _reserved(self, done: asyncio.Future[int]) -> None:
        self._reserving = False
        if not done.cancelled() and done.exception() is None:
            self._add(done.result(), self._block)

    def _add(self, first: int, count: int) -> None:
        """Add a reserved block.

        Blocks are reserved in ascending order, but their callbacks may come in another order.
        """
        self._following.append((first, first + count))
        if len(self._following) > 1 and first < self._following[-2][0]:
            self._following = deque(sorted(self._following))
        self._spare += count


class Ids:
    """Allocator of message numbers and lookup ids."""

    def __init__(self, storage: Storage) -> None:
        self._messages = Numbers(storage, "message", MESSAGE_NUMBERS_BLOCK)
        self._arrivals = Numbers(storage, "arrival", ARRIVALS_BLOCK)

    async def start(self, skipped: int) -> None:
        """Reserve the first blocks, and skip the first `skipped` message numbers.

        Raises StorageError.
        """
        await self._messages.start(skipped)
        await self._arrivals.start()

    @property
    def upcoming_message_number(self) -> int:
        """The number that the next message of this queue manager will get, or a smaller one."""
        return self._messages.upcoming & 0xFFFFFFFF

    def next_message_number(self) -> int:
        """Allocate a message number: 32 bits, each once. [MS-MQQB] 3.1.1.3 MessageIdOrdinal"""
        return self._messages.next() & 0xFFFFFFFF

    def next_message_numbers(self, count: int) -> list[int]:
        """Allocate `count` message numbers."""
        return [number & 0xFFFFFFFF for number in self._messages.take(count)]

    def next_lookup_id(self, level: int) -> int:
        """Allocate a lookup id for a message of this priority level."""
        return level << ARRIVAL_BITS | self._arrivals.next()

    def next_lookup_ids(self, level: int, count: int) -> list[int]:
        """Allocate `count` lookup ids, ascending."""
        at = level << ARRIVAL_BITS
        return [at | number for number in self._arrivals.take(count)]

    def suffice(self, messages: int, *, spare: int = NUMBERS_SPARE) -> bool:
        """Return whether `messages` messages can be numbered without waiting for the disk."""
        return min(self._arrivals.left, self._messages.left) >= messages + spare

    async def ensure(self, messages: int) -> None:
        """Wait until `messages` messages can be numbered at once. Raises StorageError."""
        wanted = messages + NUMBERS_SPARE
        await self._arrivals.ensure(wanted)
        await self._messages.ensure(wanted)
