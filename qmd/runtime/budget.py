"""Memory budgets in bytes, in total and for each owner.

    Budget   counts, and denies a request when there is no room
    Gate     applies backpressure: connections without room wait, and are not read meanwhile

The oldest holder is always admitted. A packet that is larger than the complete budget is therefore
admitted when it is alone, and holders never all wait for each other. Connections that hold memory
and send nothing are closed while others wait, the oldest first.
"""

from __future__ import annotations

import mmap
from collections.abc import Hashable
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import asyncio

    from qmd.runtime.timers import Timers

SHARE_PERCENT = 50  # of a budget, for one owner while it is not the only one
CHECKED_S = 5.0  # interval of the check for slow holders, while connections wait
SLOW_BYTES = 20_000  # minimum progress in that time of a connection that is read
REMEMBERED_S = 300.0  # penalty: the owner of a slow connection is served after others
WOKEN_MAX = 16  # waiting connections that are resumed at once
SPARE_BYTES = 8 * 1024 * 1024  # reserve for small allocations, in addition to the requested size
LARGE_BYTES = 256 * 1024
LOOKED_S = 0.05


class Budget:
    """Memory in bytes held by holders, each of which belongs to an owner."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.share_bytes = limit_bytes * SHARE_PERCENT // 100
        self.used_bytes = 0
        #: Number of denied requests.
        self.denied_count = 0
        self._held: dict[Hashable, tuple[Hashable, int]] = {}  # the oldest first
        self._by_owner: dict[Hashable, int] = {}

    def allows(self, holder: Hashable, owner: Hashable, more_bytes: int) -> bool:
        """Return whether `holder` may have `more_bytes` more; `hold` records them."""
        fits = (
            self.used_bytes + more_bytes <= self.limit_bytes
            or next(iter(self._held), holder) is holder
        )
        if fits and self._by_owner.get(owner, 0) + more_bytes > self.share_bytes:
            fits = self._first_of(owner, holder) is holder
        self.denied_count += not fits
        return fits

    def hold(self, holder: Hashable, owner: Hashable, size: int) -> None:
        """Record that `holder` now has `size` bytes in total."""
        before_owner, before = self._held.get(holder, (owner, 0))
        self.used_bytes += size - before
        if size:
            self._held[holder] = before_owner, size
        else:
            self._held.pop(holder, None)
        left = self._by_owner.get(before_owner, 0) + size - before
        if left:
            self._by_owner[before_owner] = left
        else:
            self._by_owner.pop(before_owner, None)

    def of(self, owner: Hashable) -> int:
        """Return the bytes held for this owner."""
        return self._by_owner.get(owner, 0)

    @property
    def oldest(self) -> Hashable | None:
        """The holder that has held memory for the longest time."""
        return next(iter(self._held), None)

    def status(self) -> dict[str, int]:
        """Return the values for `qmd status`."""
        return {
            "bytes": self.used_bytes,
            "limit_bytes": self.limit_bytes,
            "holders": len(self._held),
            "denied": self.denied_count,
        }

    def _first_of(self, owner: Hashable, otherwise: Hashable) -> Hashable:
        mine = (holder for holder, (its_owner, _) in self._held.items() if its_owner == owner)
        return next(mine, otherwise)


class Waiter(Hashable, Protocol):
    """A connection with incomplete received data in memory."""

    @property
    def bytes_received(self) -> int: ...

    @property
    def is_read(self) -> bool:
        """Whether the connection is read; if so and no bytes arrive, the peer is slow."""
        ...

    def memory_available(self) -> None:
        """Try again: there may be room."""

    def end_slow(self, held_bytes: int) -> None:
        """Close the connection: it holds memory that others wait for, and sends nothing."""


class Gate(Budget):
    """A budget for connections, with backpressure."""

    def __init__(self, limit_bytes: int, loop: asyncio.AbstractEventLoop, timers: Timers) -> None:
        super().__init__(limit_bytes)
        self._loop, self._timers = loop, timers
        self._waiting: dict[Waiter, Hashable] = {}  # with their owners
        # Owners of connections closed as slow, with the time.
        self._slow: dict[Hashable, float] = {}
        #: The first connection that found no room; later ones must not overtake it.
        self._next: Waiter | None = None
        self._marks: dict[Hashable, int] = {}  # bytes received from each holder at the last check
        self._wakes = False
        self._is_checking = False

    def allows(self, holder: Waiter, owner: Hashable, more_bytes: int) -> bool:  # type: ignore[override]
        if self._next not in (None, holder) and self.oldest is not holder:
            self.denied_count += 1
            return False
        if super().allows(holder, owner, more_bytes):
            if self._next is holder:
                self._next = None
            return True
        if self.used_bytes + more_bytes > self.limit_bytes:
            self._next = holder
        return False

    def hold(self, holder: Hashable, owner: Hashable, size: int) -> None:
        before = self.used_bytes
        super().hold(holder, owner, size)
        if self._waiting and self.used_bytes < before and not self._wakes:
            self._wakes = True
            self._loop.call_soon(self._wake)

    def leave(self, holder: Waiter) -> None:
        """Remove a connection that is closed; it holds no memory any more."""
        self._waiting.pop(holder, None)
        if self._next is holder:
            self._next = None
        self._marks.pop(holder, None)
        self.hold(holder, None, 0)

    def wait(self, holder: Waiter, owner: Hashable) -> None:
        """Register a connection; its `memory_available` is called when there may be room."""
        if not self._is_checking:
            self._is_checking = True
            self._mark()
        self._waiting[holder] = owner

    def status(self) -> dict[str, int]:
        return super().status() | {"waiting": len(self._waiting)}

    def _wake(self) -> None:
        self._wakes = False
        self._call(WOKEN_MAX)

    def _call(self, count: int) -> None:
        """Resume the first `count` waiting connections; those of slow owners come last."""
        self._next = None
        ranked = sorted(self._waiting, key=lambda each: self._waiting[each] in self._slow)
        for holder in ranked[:count]:
            if holder in self._waiting:
                del self._waiting[holder]
                self._marks.pop(holder, None)
                holder.memory_available()

    def _mark(self) -> None:
        self._marks = {each: each.bytes_received for each in self._connections() if each.is_read}
        self._timers.at(self._loop.time() + CHECKED_S, self, Gate._check)

    def _check(self) -> None:
        if not self._waiting:
            self._marks, self._is_checking = {}, False
            return
        now = self._loop.time()
        self._slow = {owner: at for owner, at in self._slow.items() if now - at < REMEMBERED_S}
        for each in self._connections():
            owner, size = self._held.get(each, (None, 0))
            is_short = self._next is not None or 2 * self.of(owner) > self.share_bytes
            mark = self._marks.get(each)
            if (
                size
                and is_short
                and each.is_read
                and mark is not None
                and each.bytes_received - mark < SLOW_BYTES
            ):
                self._slow[owner] = now
                each.end_slow(size)
                self.leave(each)
        self._mark()
        self._call(len(self._waiting))

    def _connections(self) -> list[Waiter]:
        return list(self._held)  # type: ignore[arg-type]  # every holder of a gate is a Waiter


class MemoryProbe:
    """Probe that checks whether memory for the following work is available.

    If memory ran out in the middle of an operation, memory and disk could disagree; the check
    therefore precedes the operation.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._looked_at = float("-inf")

    def look(self, size: int) -> None:
        """Check for `size` bytes: at intervals if the size is small, always if it is large.

        Raises MemoryError.
        """
        now = self._loop.time()
        if size < LARGE_BYTES and now - self._looked_at < LOOKED_S:
            return
        try:
            flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS  # no page is allocated
            mmap.mmap(-1, size + SPARE_BYTES, flags=flags).close()
        except OSError as error:
            raise MemoryError from error
        self._looked_at = now
