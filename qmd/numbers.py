"""Numbers that are never given twice, not even after a crash."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING

from storage import counters

if TYPE_CHECKING:
    from storage import Storage


class Numbers:
    """Gives the numbers of a block that is reserved on disk; reserves the next one in time."""

    def __init__(self, storage: Storage, name: str, block: int) -> None:
        self._storage = storage
        self._name = name
        self._block = block
        self._next = 0
        self._end = 0
        self._following: int | None = None
        self._reserving = False

    async def start(self) -> None:
        """Reserve the first block.  Raises StorageError."""
        self._next = await self._storage.batch.run(self._reserve)
        self._end = self._next + self._block

    @property
    def left(self) -> int:
        """How many can be given before the disk has reserved more."""
        return self._end - self._next + (0 if self._following is None else self._block)

    def next(self) -> int:
        """There must be one left."""
        number = self._next
        self._next = number + 1
        if self._end - number <= self._block // 2 and not self._reserving:
            self._reserving = True
            self._storage.batch.run(self._reserve).add_done_callback(self._reserved)
        if self._next >= self._end:
            # Nothing is taken in while few are left (`QueueManager.is_full`).
            assert self._following is not None, f"the reserved {self._name} numbers ran out"
            self._next, self._following = self._following, None
            self._end = self._next + self._block
            self._reserving = False
        return number

    @property
    def _reserve(self) -> partial[int]:
        return partial(counters.reserve, name=self._name, count=self._block)

    def _reserved(self, done: asyncio.Future[int]) -> None:
        if not done.cancelled() and done.exception() is None:
            self._following = done.result()
