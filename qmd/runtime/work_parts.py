"""Long work in parts: it yields to all other work after each part.

    line.place(owner) ──► parts.of(count) ──(a turn)──► part ──(a turn)──► part … ──► the last step

A request with 65,536 messages needs a second of the event loop.  It is prepared in parts of a
fraction of a millisecond, each in a turn of the heavy connections (fair_scheduler.py): while light
connections are active, all of these together use a tenth of the time.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Callable, Hashable
from typing import TYPE_CHECKING

from qmd.runtime.fair_scheduler import Class

if TYPE_CHECKING:
    from qmd.runtime.fair_scheduler import FairScheduler
    from qmd.runtime.services import Services

#: Messages in a part at most, while light connections are active and otherwise, and its duration.
PART_SHARED, PART_ALONE = 16, 160
PART_SHARED_S, PART_ALONE_S = 0.0002, 0.002


def _ignore(seconds: float) -> None:
    """Ignore the time that a part has taken."""


class _Turn:
    """One turn of a scheduler that work in parts waits for."""

    def __init__(self, taken: asyncio.Future[None]) -> None:
        self._taken = taken

    def take_turn(self, now: float, packets_max: int) -> None:
        """Let the work go on, unless it was cancelled."""
        if not self._taken.done():
            self._taken.set_result(None)


class WorkParts:
    """Turns for the parts of long work."""

    def __init__(self, services: Services, turns: FairScheduler) -> None:
        self._services = services
        self._turns = turns

    async def of(
        self, count: int, spend: Callable[[float], None] = _ignore
    ) -> AsyncIterator[slice]:
        """Iterate over `count` items in slices, each of which begins in a turn of its own.

        The body of the loop should not wait: its time counts as that of the slice.  `spend` is
        called with the CPU time of each slice, in seconds.
        """
        busy_time = self._services.environment.busy_time
        at, size = 0, PART_ALONE
        while at < count:
            taken = self._services.loop.create_future()
            self._turns.wait(_Turn(taken), Class.HEAVY)
            await taken
            is_shared = self._turns.is_shared
            size = min(size, PART_SHARED if is_shared else PART_ALONE)
            end = min(at + size, count)
            began_s = busy_time()
            yield slice(at, end)
            took_s = busy_time() - began_s
            self._turns.charge(took_s)
            spend(took_s)
            at = end
            # Some items take longer than others, such as signed messages.
            wanted_s = PART_SHARED_S if is_shared else PART_ALONE_S
            size = max(size // 2, 1) if took_s > 2 * wanted_s else 2 * size


class Line:
    """A line in which owners (accounts) take turns; one place is at the front."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._is_taken = False
        self._waiting: dict[Hashable, deque[asyncio.Future[None]]] = {}  # the next owner first

    @contextlib.asynccontextmanager
    async def place(self, owner: Hashable) -> AsyncIterator[None]:
        """Enter when no other place is at the front."""
        if self._is_taken:
            turn = self._loop.create_future()
            self._waiting.setdefault(owner, deque()).append(turn)
            try:
                await turn
            except asyncio.CancelledError:
                if turn.done() and not turn.cancelled():
                    self._next()
                raise
        self._is_taken = True
        try:
            yield
        finally:
            self._next()

    def _next(self) -> None:
        """Let the next one in; the front stays taken for it."""
        self._is_taken = False
        while self._waiting:
            owner, turns = next(iter(self._waiting.items()))
            del self._waiting[owner]
            turn = turns.popleft()
            if turns:
                self._waiting[owner] = turns
            if not turn.done():
                self._is_taken = True
                turn.set_result(None)
                return
