"""The bounded window in memory on the messages of one queue that are ready to be taken.

The disk holds everything recoverable, memory a prefix of it.  Keys are lookup
ids (level, then arrival: smaller is sooner) and one number, the *horizon*, says
how far the window can be trusted:

             in the window, or taken          perhaps only on disk
    ──────────────────────────────────────┬──────────────────────────►  key
                                       horizon

Every ready stored message below the horizon is in the window; no stored one at
or above it is.  When the window is full, its largest entries fall out and the
horizon moves down; a refill reads on from the horizon and moves it up.  Express
messages exist nowhere else, stay whatever their number, and wait at the horizon
until what may precede them has been read.

A message that was taken is still on disk.  It is remembered until `remove` or
`put_back`, because a refill may read it again.  So `remove` is called when no
refill that begins later can see the row any more: after the commit that deleted
it, or once that is ahead of every further read in the writer's line.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Collection, Iterator, Sequence
from heapq import merge
from operator import itemgetter
from typing import Any, Generic, TypeVar

LEVEL_SHIFT_BITS = 44  # a key is level << 44 | arrival
LEVELS = 16

_NOWHERE = LEVELS << LEVEL_SHIFT_BITS  # a horizon above every key

Item = TypeVar("Item")
Lane = deque[tuple[int, Item, int]]

_key_of = itemgetter(0)
# Nothing is ever put into it.  Most queues use one level, and there may be thousands of queues.
_UNUSED: Lane[Any] = deque(maxlen=0)


class ReadyWindow(Generic[Item]):
    """What is ready, smallest key first.  Items are the caller's and not looked into."""

    __slots__ = (
        "_arrived",
        "_arrived_bytes",
        "_bytes",
        "_bytes_max",
        "_entries",
        "_entries_max",
        "_express",
        "_first_level",
        "_gone",
        "_horizon",
        "_missed",
        "_refill_from",
        "_refill_is_void",
        "_stored",
        "_taken",
        "_taken_express",
    )

    def __init__(self, *, entries_max: int, bytes_max: int) -> None:
        """The limits are for stored entries; one is kept whatever its size."""
        assert entries_max >= 1
        self._entries_max = entries_max
        self._bytes_max = bytes_max
        # One lane per level: whatever arrives in order is appended, in whatever order levels mix.
        self._stored: list[Lane[Item]] = [_UNUSED] * LEVELS
        self._express: list[Lane[Item]] = [_UNUSED] * LEVELS
        self._first_level = LEVELS  # no level below it has an entry
        self._entries = 0  # stored
        self._bytes = 0
        self._horizon = _NOWHERE
        self._taken: set[int] = set()  # stored
        self._taken_express: set[int] = set()
        # While a refill is under way:
        self._refill_from: int | None = None
        self._refill_is_void = False
        self._gone: set[int] = set()  # removed meanwhile; the rows may still have them
        self._arrived: list[tuple[int, Item, int]] = []  # added meanwhile, beyond the horizon
        self._arrived_bytes = 0
        self._missed = _NOWHERE  # the smallest key added meanwhile and not kept in `_arrived`

    def __len__(self) -> int:
        """Entries in memory, stored and express, without the taken ones."""
        return self._entries + sum(map(len, self._express))

    @property
    def bytes(self) -> int:
        """Of the stored entries in memory."""
        return self._bytes

    @property
    def horizon(self) -> int | None:
        """The key from which on messages may be on disk only; None: all are in memory."""
        return None if self._horizon == _NOWHERE else self._horizon

    @property
    def needs_refill(self) -> bool:
        """Nothing can be taken before the disk was read."""
        return self._may_refill and self._first_lane() is None

    @property
    def wants_refill(self) -> bool:
        """It runs low; whoever reads now does not have to wait later."""
        return (
            self._may_refill
            and 4 * self._entries < self._entries_max
            and 4 * self._bytes < self._bytes_max
        )

    def add(self, key: int, item: Item, size: int, *, stored: bool) -> None:
        """A message is ready: its commit has returned, or it is express.

        A stored one may have come in by a refill before; it is then left alone.
        """
        self._gone.discard(key)  # it was moved away, and has come back
        if not stored:
            self._insert(self._express, (key, item, size))
        elif key >= self._horizon:
            if self._refill_from is not None:
                self._remember_arrival(key, item, size)
        elif key not in self._taken and self._insert(self._stored, (key, item, size)):
            self._entries += 1
            self._bytes += size
            if self._entries > self._entries_max or self._bytes > self._bytes_max:
                self._shrink()

    def peek(self) -> tuple[int, Item] | None:
        """The first message, without taking it; None when there is none, or none is known yet."""
        lane = self._first_lane()
        return None if lane is None else lane[0][:2]

    def pop(self) -> tuple[int, Item] | None:
        """Take the first message; None as for `peek`."""
        lane = self._first_lane()
        if lane is None:
            return None
        key, item, size = lane.popleft()
        if lane is self._stored[self._first_level]:
            self._entries -= 1
            self._bytes -= size
            self._taken.add(key)
        else:
            self._taken_express.add(key)
        return key, item

    def take(self, key: int) -> Item | None:
        """Take this one, if it is in memory and not taken."""
        level = key >> LEVEL_SHIFT_BITS
        entry = _extract(self._stored[level], key)
        if entry is not None:
            self._entries -= 1
            self._bytes -= entry[2]
            self._taken.add(key)
            return entry[1]
        entry = _extract(self._express[level], key)
        if entry is not None:
            self._taken_express.add(key)
            return entry[1]
        return None

    def hold(self, key: int) -> bool:
        """Take this stored one, even if it is on disk only.  False: it is taken already."""
        if key in self._taken:
            return False
        self.take(key)
        self._taken.add(key)
        return True

    def hold_all(self, keys: Collection[int]) -> None:
        """`hold` for many, none of which is taken."""
        if self._entries:
            for key in keys:
                self.take(key)
        self._taken.update(keys)

    def put_back(self, key: int, item: Item, size: int) -> None:
        """A taken message returns to its place, unless the disk has it and will be read there."""
        if key in self._taken_express:
            self._taken_express.remove(key)
            self._insert(self._express, (key, item, size))
        elif key in self._taken:
            self._taken.remove(key)
            self.add(key, item, size, stored=True)

    def remove(self, key: int) -> None:
        """The message is gone for good: the commit that deleted it has returned."""
        if self._refill_from is not None:
            self._gone.add(key)
        self.take(key)
        self._taken.discard(key)
        self._taken_express.discard(key)

    def clear_to_disk(self, from_key: int, *, keep_taken: Collection[int] = ()) -> None:
        """Forget the stored messages from `from_key` on; they are read again.

        So are the taken ones, except for `keep_taken` (such as whose removal is
        being committed): the others are ready again, and not to be put back.
        """
        self._forget_from(from_key)
        self._taken = {key for key in self._taken if key < from_key or key in keep_taken}
        self._horizon = min(self._horizon, from_key)

    def leave_on_disk(self, from_key: int) -> None:
        """Stored messages are ready, and none of them is before `from_key`: too many to be added
        one by one, they are read when it is their turn.  What is taken stays taken.
        """
        self._forget_from(from_key)
        self._horizon = min(self._horizon, from_key)
        if self._refill_from is not None:  # which may have begun before they were there
            self._missed = min(self._missed, from_key)

    def remove_taken(self, keys: Collection[int]) -> None:
        """`remove` for stored ones that are all taken."""
        if self._refill_from is not None:
            self._gone.update(keys)
        self._taken.difference_update(keys)

    def purge(self) -> list[tuple[int, Item]]:
        """The commit that emptied the queue has returned; what is taken stays taken.

        Returns what was in memory, stored and express.
        """
        dropped = [(key, item) for key, item, _ in self._in_memory()]
        for lane in (*self._stored, *self._express):
            lane.clear()
        self._entries = self._bytes = 0
        self._horizon = _NOWHERE
        self._refill_is_void = self._refill_from is not None
        return dropped

    def entries(self) -> Iterator[tuple[int, Item]]:
        """What can be taken without reading the disk, in order; not while it changes."""
        return ((key, item) for key, item, _ in self._in_memory() if key < self._horizon)

    def begin_refill(self) -> int:
        """The key to read from, that one included.  `refill` must follow.

        Every commit whose `add` was called before must be visible to the reader.
        """
        assert self._may_refill
        self._refill_from = self._horizon
        return self._horizon

    def refill(self, rows: Sequence[tuple[int, Item, int]], *, complete: bool) -> None:
        """What was read: (key, item, size) in the order of keys; `complete`: up to the end."""
        assert self._refill_from is not None
        assert rows or complete
        is_of_use = not self._refill_is_void and self._horizon == self._refill_from
        arrived, gone, missed = self._arrived, self._gone, self._missed
        self._refill_from = None
        self._refill_is_void = False
        self._arrived, self._arrived_bytes, self._gone, self._missed = [], 0, set(), _NOWHERE
        if not is_of_use:
            return  # the window needs what lies before these rows, or they are no more
        self._horizon = _NOWHERE if complete else rows[-1][0] + 1
        arrived_keys = {key for key, _, _ in arrived}  # the rows may have an older state of them
        for key, item, size in rows:
            if self._entries >= self._entries_max or self._bytes >= self._bytes_max:
                self._horizon = key
                break
            if key not in self._taken and key not in gone and key not in arrived_keys:
                self._insert(self._stored, (key, item, size))
                self._entries += 1
                self._bytes += size
        self._forget_from(missed)
        self._horizon = min(self._horizon, missed)
        for key, item, size in arrived:
            if key not in gone:
                self.add(key, item, size, stored=True)

    @property
    def _may_refill(self) -> bool:
        return self._horizon != _NOWHERE and self._refill_from is None

    def _first_lane(self) -> Lane[Item] | None:
        """The lane that begins with the smallest key, if that is below the horizon."""
        for level in range(self._first_level, LEVELS):
            stored, express = self._stored[level], self._express[level]
            if stored:
                self._first_level = level
                return express if express and express[0][0] < stored[0][0] else stored
            if express:
                self._first_level = level
                return express if express[0][0] < self._horizon else None
        self._first_level = LEVELS
        return None

    def _insert(self, lanes: list[Lane[Item]], entry: tuple[int, Item, int]) -> bool:
        """In its order.  False: it is there already."""
        key = entry[0]
        level = key >> LEVEL_SHIFT_BITS
        lane = lanes[level]
        if lane is _UNUSED:
            lane = lanes[level] = deque()
        if not lane or lane[-1][0] < key:
            lane.append(entry)
        elif key < lane[0][0]:
            lane.appendleft(entry)
        else:
            at = bisect_left(lane, key, key=_key_of)
            if lane[at][0] == key:
                return False
            lane.insert(at, entry)
        if level < self._first_level:
            self._first_level = level
        return True

    def _shrink(self) -> None:
        """The largest stored entries fall out, and the horizon moves down to the last of them."""
        for level in reversed(range(LEVELS)):
            lane = self._stored[level]
            while lane:
                if self._entries == 1 or (
                    self._entries <= self._entries_max and self._bytes <= self._bytes_max
                ):
                    return
                self._horizon, _, size = lane.pop()
                self._entries -= 1
                self._bytes -= size

    def _forget_from(self, from_key: int) -> None:
        for level in range(from_key >> LEVEL_SHIFT_BITS, LEVELS):
            lane = self._stored[level]
            while lane and lane[-1][0] >= from_key:
                _, _, size = lane.pop()
                self._entries -= 1
                self._bytes -= size

    def _remember_arrival(self, key: int, item: Item, size: int) -> None:
        """The rows may or may not have it; without this, a window that ran dry would have to
        read the disk again and again for as long as messages keep arriving."""
        if len(self._arrived) < self._entries_max and self._arrived_bytes < self._bytes_max:
            self._arrived.append((key, item, size))
            self._arrived_bytes += size
        else:
            self._missed = min(self._missed, key)

    def _in_memory(self) -> Iterator[tuple[int, Item, int]]:
        for stored, express in zip(self._stored, self._express, strict=True):
            yield from merge(stored, express, key=_key_of)


def _extract(lane: Lane[Item], key: int) -> tuple[int, Item, int] | None:
    """Take the entry with `key` out of the lane, if it is there."""
    if not lane or not lane[0][0] <= key <= lane[-1][0]:
        return None
    if lane[0][0] == key:
        return lane.popleft()  # who empties a long lane begins at its head: a search walks over it
    at = bisect_left(lane, key, key=_key_of)
    if lane[at][0] != key:
        return None
    entry = lane[at]
    del lane[at]
    return entry
