"""Ready window: the bounded part in memory of the messages of a queue that are ready to receive.

All recoverable messages are on disk, and a prefix of them is in memory. Keys are lookup ids (level,
then arrival: smaller is earlier). One number, the *horizon*, says up to which key the window is
complete:

             in the window, or taken          perhaps only on disk
    ──────────────────────────────────────┬──────────────────────────►  key
                                       horizon

The window holds every ready stored message below the horizon and no stored message at or above it.
When the window is full, its largest entries are dropped and the horizon moves down; a refill reads
on from the horizon and moves it up. Express messages exist only in memory: they stay whatever their
number, and wait at the horizon until the messages that may precede them have been read.

A taken message is still on disk. Its key is remembered until `remove` or `put_back`, because a
refill may read the message again; so are the keys of `hold_runs`. Call `remove` only when no refill
that begins later can see the row: after the commit that deleted it, or once that commit precedes
every further read in the writer's queue.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Collection, Iterator, Sequence
from heapq import merge
from operator import itemgetter
from typing import Any, Generic, TypeVar

from qmd.core.number_set import NumberSet, Run

LEVEL_SHIFT_BITS = 44  # a key is level << 44 | arrival
LEVELS = 16
FEW = 4  # entries that are added one by one

_NOWHERE = LEVELS << LEVEL_SHIFT_BITS  # a horizon above every key

Item = TypeVar("Item")
Lane = deque[tuple[int, Item, int]]

_key_of = itemgetter(0)
# An empty lane that is never filled. Most queues use one level, and there may be thousands of
# queues.
_UNUSED: Lane[Any] = deque(maxlen=0)


class ReadyWindow(Generic[Item]):
    """The messages that are ready, smallest key first; items are opaque."""

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
        "_gone_runs",
        "_held",
        "_horizon",
        "_missed",
        "_refill_from",
        "_stored",
        "_taken",
        "_taken_express",
    )

    def __init__(self, *, entries_max: int, bytes_max: int) -> None:
        """Create an empty window.

        The limits count stored entries; one entry is kept whatever its size.
        """
        assert entries_max >= 1
        self._entries_max = entries_max
        self._bytes_max = bytes_max
        # One lane per level: messages that arrive in order are appended, however the levels mix.
        self._stored: list[Lane[Item]] = [_UNUSED] * LEVELS
        self._express: list[Lane[Item]] = [_UNUSED] * LEVELS
        self._first_level = LEVELS  # no lower level has an entry
        self._entries = 0  # stored entries only
        self._bytes = 0
        self._horizon = _NOWHERE
        self._taken: set[int] = set()  # stored entries only
        self._taken_express: set[int] = set()
        self._held: NumberSet | None = None  # stored entries that were taken in runs
        # While a refill is under way:
        self._refill_from: int | None = None
        # Keys removed during the refill; the rows may still contain them.
        self._gone: set[int] = set()
        self._gone_runs: NumberSet | None = None
        # Entries added during the refill, beyond the horizon.
        self._arrived: list[tuple[int, Item, int]] = []
        self._arrived_bytes = 0
        # The smallest key added during the refill and not kept in `_arrived`.
        self._missed = _NOWHERE

    def __len__(self) -> int:
        """Return the number of stored and express entries in memory, without the taken ones."""
        return self._entries + sum(map(len, self._express))

    @property
    def bytes(self) -> int:
        """Size of the stored entries in memory."""
        return self._bytes

    @property
    def horizon(self) -> int | None:
        """The first key from which messages may be on disk only; None: all are in memory."""
        return None if self._horizon == _NOWHERE else self._horizon

    @property
    def needs_refill(self) -> bool:
        """Whether the disk must be read before anything can be taken."""
        return self._may_refill and self._first_lane() is None

    @property
    def wants_refill(self) -> bool:
        """Whether the window runs low, so that a refill now avoids waiting later."""
        return (
            self._may_refill
            and 4 * self._entries < self._entries_max
            and 4 * self._bytes < self._bytes_max
        )

    def add(self, key: int, item: Item, size: int, *, stored: bool) -> None:
        """Add a message that is ready: its commit has returned, or it is express.

        Nothing changes if a refill has already read the stored message.
        """
        if self._gone_runs is not None:
            self._gone_runs.discard(key, key)
        self._gone.discard(key)  # the message was moved to another queue and has returned
        if not stored:
            self._insert(self._express, (key, item, size))
        elif key >= self._horizon:
            if self._refill_from is not None:
                self._remember_arrival(key, item, size)
        elif (
            key not in self._taken
            and (self._held is None or key not in self._held)
            and self._insert(self._stored, (key, item, size))
        ):
            self._entries += 1
            self._bytes += size
            if self._entries > self._entries_max or self._bytes > self._bytes_max:
                self._shrink()

    def add_all(self, entries: Sequence[tuple[int, Item, int]]) -> None:
        """Add stored messages that are ready, (key, item, size), as `add` does one by one."""
        if len(entries) < FEW:
            for key, item, size in entries:
                self.add(key, item, size, stored=True)
            return
        keys = [key for key, _, _ in entries]
        level = keys[0] >> LEVEL_SHIFT_BITS
        lane = self._stored[level]
        if (
            (lane and lane[-1][0] >= keys[0])
            or keys[-1] >= self._horizon
            or keys[-1] >> LEVEL_SHIFT_BITS != level
            or not self._taken.isdisjoint(keys)
            or (self._held is not None and self._held.touches(keys[0], keys[-1]))
            or self._gone_runs is not None
            or keys != sorted(keys)
        ):
            for key, item, size in entries:
                self.add(key, item, size, stored=True)
            return
        self._gone.difference_update(keys)
        if lane is _UNUSED:
            lane = self._stored[level] = deque()
        lane.extend(entries)
        self._first_level = min(self._first_level, level)
        self._entries += len(keys)
        self._bytes += sum([size for _, _, size in entries])
        if self._entries > self._entries_max or self._bytes > self._bytes_max:
            self._shrink()

    def peek(self) -> tuple[int, Item] | None:
        """Return the first message without taking it; None: none is ready, or none is known yet."""
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

    def pop_run(self, entries_max: int, bytes_max: int) -> list[tuple[int, Item, int]]:
        """Take the first messages as `pop` does, up to so many; return them with their sizes.

        It is at least one, if one is ready and known, and then as many as `bytes_max` allows.
        There may be more when fewer are returned.
        """
        lane = self._first_lane()
        if lane is None:
            return []
        stored, express = self._stored[self._first_level], self._express[self._first_level]
        is_only = lane is stored and not express and len(lane) == self._entries
        if is_only and self._entries <= entries_max and self._bytes <= bytes_max:
            run, size = list(lane), self._bytes
            lane.clear()
        else:
            run = [lane.popleft()]
            size = run[0][2]
        if lane is stored and not express:
            while lane and len(run) < entries_max and size + lane[0][2] <= bytes_max:
                size += lane[0][2]
                run.append(lane.popleft())
        if lane is stored:
            self._entries -= len(run)
            self._bytes -= size
            self._taken.update([key for key, _, _ in run])
        else:
            self._taken_express.add(run[0][0])
        return run

    def take(self, key: int) -> Item | None:
        """Take the message with this key; None: it is not in memory, or taken."""
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
        """Take this stored message, even if it is on disk only. False: it is already taken."""
        if key in self._taken or (self._held is not None and key in self._held):
            return False
        self.take(key)
        self._taken.add(key)
        return True

    def hold_runs(self, runs: Sequence[Run]) -> None:
        """Take stored messages as `hold` does, all that have these keys; none may be taken."""
        if self._held is None:
            self._held = NumberSet()
        self._held.add_all(runs)
        if self._entries:
            for first, last in runs:
                self._extract_run(first, last)

    def _extract_run(self, first: int, last: int) -> None:
        if last - first < FEW:
            for key in range(first, last + 1):
                if (entry := _extract(self._stored[key >> LEVEL_SHIFT_BITS], key)) is not None:
                    self._entries -= 1
                    self._bytes -= entry[2]
            return
        for level in range(first >> LEVEL_SHIFT_BITS, (last >> LEVEL_SHIFT_BITS) + 1):
            lane = self._stored[level]
            if lane and lane[0][0] <= last and lane[-1][0] >= first:
                left = [entry for entry in lane if not first <= entry[0] <= last]
                self._entries -= len(lane) - len(left)
                self._bytes -= sum([size for _, _, size in lane]) - sum([it[2] for it in left])
                self._stored[level] = deque(left)

    def put_back(self, key: int, item: Item, size: int) -> None:
        """Return a taken message to its place, unless it is on disk and a refill will read it."""
        if key in self._taken_express:
            self._taken_express.remove(key)
            self._insert(self._express, (key, item, size))
        elif key in self._taken:
            self._taken.remove(key)
            self.add(key, item, size, stored=True)

    def remove(self, key: int) -> None:
        """Remove a message permanently: the commit that deleted it has returned."""
        if self._refill_from is not None:
            self._gone.add(key)
        self.take(key)
        if self._held is not None:
            self._let_go(((key, key),))
        self._taken.discard(key)
        self._taken_express.discard(key)

    def remove_all(self, keys: Collection[int] = (), *, runs: Sequence[Run] = ()) -> None:
        """Remove messages permanently, as `remove` does; most of them are taken.

        `runs` were taken by `hold_runs`.
        """
        if runs:
            if self._refill_from is not None:
                if self._gone_runs is None:
                    self._gone_runs = NumberSet()
                self._gone_runs.add_all(runs)
            self._let_go(runs)
        others = []
        if not self._taken.issuperset(keys):
            others = [key for key in keys if key not in self._taken]
        if self._refill_from is not None:
            self._gone.update(keys)
        self._taken.difference_update(keys)
        for key in others:
            self.remove(key)

    def _let_go(self, runs: Sequence[Run]) -> None:
        if self._held is not None:
            self._held.discard_all(runs)
            self._held = self._held or None

    def clear_to_disk(self, from_key: int) -> None:
        """Forget the stored messages from `from_key` on; a refill reads them again.

        Taken messages are forgotten too: they are ready again and must not be put back.
        """
        self._forget_from(from_key)
        self._taken = {key for key in self._taken if key < from_key}
        if self._held is not None:
            runs = ((first, min(last, from_key - 1)) for first, last in self._held.runs())
            self._held = NumberSet(run for run in runs if run[0] <= run[1]) or None
        self._horizon = min(self._horizon, from_key)

    def leave_on_disk(self, from_key: int, *, returned: Sequence[Run] = ()) -> None:
        """Note stored messages that are ready, none of them before `from_key`, without adding them.

        For messages that are too many to add one by one: a refill reads them later. Taken messages
        stay taken, except for runs of `hold_runs` that are `returned`.
        """
        self._forget_from(from_key)
        self._let_go(returned)
        self._horizon = min(self._horizon, from_key)
        if self._refill_from is not None:  # that refill may have begun before they were stored
            self._missed = min(self._missed, from_key)

    def entries(self) -> Iterator[tuple[int, Item]]:
        """Iterate in order over the messages that can be taken without reading the disk.

        The window must not change meanwhile.
        """
        return ((key, item) for key, item, _ in self._in_memory() if key < self._horizon)

    def begin_refill(self) -> int:
        """Begin a refill; return the first key to read. A call of `refill` must follow.

        If `add` was called before for a commit, the reader must see that commit.
        """
        assert self._may_refill
        self._refill_from = self._horizon
        return self._horizon

    def refill(self, rows: Sequence[tuple[int, Item, int]], *, complete: bool) -> None:
        """Take the rows of a read: (key, item, size) in key order; `complete`: up to the end."""
        assert self._refill_from is not None
        assert rows or complete
        is_of_use = self._horizon == self._refill_from
        arrived, gone, missed = self._arrived, self._gone, self._missed
        held, gone_runs = self._held or (), self._gone_runs or ()
        self._refill_from, self._gone_runs = None, None
        self._arrived, self._arrived_bytes, self._gone, self._missed = [], 0, set(), _NOWHERE
        if not is_of_use:
            return  # the window now needs rows before these, or these rows are deleted
        self._horizon = _NOWHERE if complete else rows[-1][0] + 1
        arrived_keys = {key for key, _, _ in arrived}  # the rows may hold an older state of these
        for key, item, size in rows:
            if self._entries >= self._entries_max or self._bytes >= self._bytes_max:
                self._horizon = key
                break
            if (
                key not in self._taken
                and key not in held
                and key not in gone
                and key not in gone_runs
                and key not in arrived_keys
            ):
                self._insert(self._stored, (key, item, size))
                self._entries += 1
                self._bytes += size
        self._forget_from(missed)
        self._horizon = min(self._horizon, missed)
        for key, item, size in arrived:
            if key not in gone and key not in gone_runs:
                self.add(key, item, size, stored=True)

    @property
    def _may_refill(self) -> bool:
        return self._horizon != _NOWHERE and self._refill_from is None

    def _first_lane(self) -> Lane[Item] | None:
        """Return the lane that begins with the smallest key, if that key is below the horizon."""
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
        """Insert the entry in key order; return False if its key is present."""
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
        """Drop the largest stored entries and move the horizon down to the last one dropped."""
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
        """Remember an entry that the rows of the current refill may or may not contain.

        Without this, an empty window would have to read the disk again and again for as long as
        messages keep arriving.
        """
        if len(self._arrived) < self._entries_max and self._arrived_bytes < self._bytes_max:
            self._arrived.append((key, item, size))
            self._arrived_bytes += size
        else:
            self._missed = min(self._missed, key)

    def _in_memory(self) -> Iterator[tuple[int, Item, int]]:
        for stored, express in zip(self._stored, self._express, strict=True):
            yield from merge(stored, express, key=_key_of)


def _extract(lane: Lane[Item], key: int) -> tuple[int, Item, int] | None:
    """Take the entry with `key` out of the lane; None: it is not there."""
    if not lane or not lane[0][0] <= key <= lane[-1][0]:
        return None
    if lane[0][0] == key:
        # Shortcut: a long lane is usually emptied from its head, and a search walks over it.
        return lane.popleft()
    at = bisect_left(lane, key, key=_key_of)
    if lane[at][0] != key:
        return None
    entry = lane[at]
    del lane[at]
    return entry
