"""Budgets in bytes for what waits in memory: in all, and for each one that makes us hold it.

    Budget   counts, and says whether there is room: for what is refused where there is none
    Gate     one whose holders wait for room instead, and are not read meanwhile

The oldest holder is always let through.  So a packet that is larger than the whole budget gets in,
alone, and those that wait for each other are never all of them.  One that holds memory and sends
nothing is ended when others wait, the oldest first.
"""

from __future__ import annotations

import mmap
from collections.abc import Hashable
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import asyncio

    from qmd.runtime.timers import Timers

SHARE_PERCENT = 50  # of a budget that one owner may have, while it is not the only one
CHECKED_S = 5.0  # while somebody waits: those that hold memory and are slow are looked for
SLOW_BYTES = 20_000  # in that time: who sends less, although it is read, makes no progress
REMEMBERED_S = 300.0  # that it was slow: its owner stays behind others
WOKEN_MAX = 16  # at once, of those that wait
SPARE_BYTES = 8 * 1024 * 1024  # beside what is asked for: for all the small things
LARGE_BYTES = 256 * 1024
LOOKED_S = 0.05


class Budget:
    """What some holders, each of which belongs to an owner, have in memory."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.share_bytes = limit_bytes * SHARE_PERCENT // 100
        self.used_bytes = 0
        #: How often there was no room.
        self.denied_count = 0
        self._held: dict[Hashable, tuple[Hashable, int]] = {}  # the oldest first
        self._by_owner: dict[Hashable, int] = {}

    def allows(self, holder: Hashable, owner: Hashable, more_bytes: int) -> bool:
        """Whether `holder` may have so much more.  `hold` says that it has."""
        fits = (
            self.used_bytes + more_bytes <= self.limit_bytes
            or next(iter(self._held), holder) is holder
        )
        if fits and self._by_owner.get(owner, 0) + more_bytes > self.share_bytes:
            fits = self._first_of(owner, holder) is holder
        self.denied_count += not fits
        return fits

    def hold(self, holder: Hashable, owner: Hashable, size: int) -> None:
        """`holder` has so much now, in all."""
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
        """Bytes that are held for it."""
        return self._by_owner.get(owner, 0)

    @property
    def oldest(self) -> Hashable | None:
        """The holder that has held something for the longest time."""
        return next(iter(self._held), None)

    def status(self) -> dict[str, int]:
        """For `qmd status`."""
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
    """A connection: what it has sent waits in memory until it is complete."""

    @property
    def bytes_received(self) -> int: ...

    @property
    def is_read(self) -> bool:
        """Whether bytes of it are taken in: if none come, that is its own doing."""
        ...

    def memory_came(self) -> None:
        """There may be room for it: it tries again."""

    def end_slow(self, held_bytes: int) -> None:
        """It holds memory that others wait for, and sends nothing."""


class Gate(Budget):
    """A budget for connections."""

    def __init__(self, limit_bytes: int, loop: asyncio.AbstractEventLoop, timers: Timers) -> None:
        super().__init__(limit_bytes)
        self._loop, self._timers = loop, timers
        self._waiting: dict[Waiter, Hashable] = {}  # and their owners
        self._slow: dict[Hashable, float] = {}  # owners one of whose was ended for it: when
        #: The first that there was no room for: later ones do not get in before it.
        self._next: Waiter | None = None
        self._marks: dict[Hashable, int] = {}  # what holders had sent at the last check
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
        """It is gone, and holds nothing."""
        self._waiting.pop(holder, None)
        if self._next is holder:
            self._next = None
        self._marks.pop(holder, None)
        self.hold(holder, None, 0)

    def wait(self, holder: Waiter, owner: Hashable) -> None:
        """Call `memory_came` of it when there may be room."""
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
        """The first to come, but for those whose like have been slow."""
        self._next = None
        ranked = sorted(self._waiting, key=lambda each: self._waiting[each] in self._slow)
        for holder in ranked[:count]:
            if holder in self._waiting:
                del self._waiting[holder]
                self._marks.pop(holder, None)
                holder.memory_came()

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
        return list(self._held)  # type: ignore[arg-type]  # all of them are


class MemoryProbe:
    """Sees that what follows can have its memory.

    Where memory ends in the middle of an act, it and the disk may disagree; so it is looked for
    before anything is begun.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._looked_at = float("-inf")

    def look(self, size: int) -> None:
        """For small things now and then, for large ones always.  Raises MemoryError."""
        now = self._loop.time()
        if size < LARGE_BYTES and now - self._looked_at < LOOKED_S:
            return
        try:
            flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS  # no page of it is made
            mmap.mmap(-1, size + SPARE_BYTES, flags=flags).close()
        except OSError as error:
            raise MemoryError from error
        self._looked_at = now
