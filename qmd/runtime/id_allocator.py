"""Numbers that are never given twice, not even after a crash."""

from __future__ import annotations

import asyncio
from collections import deque
from functools import partial
from typing import TYPE_CHECKING

from storage.tables import counters
from storage.tables.keys import ARRIVAL_BITS

if TYPE_CHECKING:
    from storage import Storage

ARRIVALS_BLOCK = 1_000_000  # numbers reserved at once: one row written for so many messages
MESSAGE_NUMBERS_BLOCK = 1 << 18  # half of it is more than a client can ask for at once
NUMBERS_SPARE = 20_000  # for what our own acknowledgments and dead letters may need meanwhile


class Numbers:
    """Gives the numbers of a block that is reserved on disk; reserves the next one in time."""

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
        """Reserve the first block, behind `skipped` numbers that nobody gets.

        Raises StorageError.
        """
        count = self._block + skipped
        first = await self._storage.batch.run(
            partial(counters.reserve, name=self._name, count=count)
        )
        self._next, self._end = first + skipped, first + count

    async def ensure(self, count: int) -> None:
        """Wait until so many can be given at once; others may take them.  Raises StorageError."""
        while self.left < count:
            block = max(count - self.left, self._block)
            reserve = partial(counters.reserve, name=self._name, count=block)
            self._add(await self._storage.batch.run(reserve), block)

    @property
    def left(self) -> int:
        """How many can be given before the disk has reserved more."""
        return self._end - self._next + self._spare

    def next(self) -> int:
        """There must be one left."""
        number = self._next
        self._next = number + 1
        if self._end - number + self._spare <= self._block // 2 and not self._reserving:
            self._reserving = True
            self._storage.batch.run(self._reserve).add_done_callback(self._reserved)
        if self._next >= self._end:
            # Nothing is taken in while few are left (`Admission.is_full`).
            assert self._following, f"the reserved {self._name} numbers ran out"
            self._next, self._end = self._following.popleft()
            self._spare -= self._end - self._next
        return number

    def take(self, count: int) -> list[int]:
        """So many at once, ascending.  There must be as many left."""
        numbers: list[int] = []
        while len(numbers) < count:
            # The last one of a block by `next`, which goes on to the following block.
            last = min(self._next + count - len(numbers), self._end) - 1
            numbers += range(self._next, last)
            self._next = last
            numbers.append(self.next())
        return numbers

    @property
    def _reserve(self) -> partial[int]:
        return partial(counters.reserve, name=self._name, count=self._block)

    def _reserved(self, done: asyncio.Future[int]) -> None:
        self._reserving = False
        if not done.cancelled() and done.exception() is None:
            self._add(done.result(), self._block)

    def _add(self, first: int, count: int) -> None:
        """Blocks are reserved in ascending order, and may be heard of in another."""
        self._following.append((first, first + count))
        if len(self._following) > 1 and first < self._following[-2][0]:
            self._following = deque(sorted(self._following))
        self._spare += count


class Ids:
    """Allocates message numbers and lookup ids."""

    def __init__(self, storage: Storage) -> None:
        self._messages = Numbers(storage, "message", MESSAGE_NUMBERS_BLOCK)
        self._arrivals = Numbers(storage, "arrival", ARRIVALS_BLOCK)

    async def start(self, skipped: int) -> None:
        """Reserve the first blocks, the message numbers behind `skipped` ones that no message gets.

        Raises StorageError.
        """
        await self._messages.start(skipped)
        await self._arrivals.start()

    def next_message_number(self) -> int:
        """Allocate one.  [MS-MQQB] 3.1.1.3 MessageIdOrdinal: 32 bits, each number once."""
        return self._messages.next() & 0xFFFFFFFF

    def next_message_numbers(self, count: int) -> list[int]:
        """Allocate `count` message numbers."""
        return [number & 0xFFFFFFFF for number in self._messages.take(count)]

    def next_lookup_id(self, level: int) -> int:
        """Allocate one, for a message of this priority level."""
        return level << ARRIVAL_BITS | self._arrivals.next()

    def next_lookup_ids(self, level: int, count: int) -> list[int]:
        """Allocate `count` lookup ids, ascending."""
        at = level << ARRIVAL_BITS
        return [at | number for number in self._arrivals.take(count)]

    def suffice(self, messages: int, *, spare: int = NUMBERS_SPARE) -> bool:
        """Whether so many messages can be given their numbers without waiting for the disk."""
        return min(self._arrivals.left, self._messages.left) >= messages + spare

    async def ensure(self, messages: int) -> None:
        """Wait until so many messages can be given their numbers at once.  Raises StorageError."""
        wanted = messages + NUMBERS_SPARE
        await self._arrivals.ensure(wanted)
        await self._messages.ensure(wanted)
