"""Reservations of one queue: the messages that readers of data pipelines have reserved.

They are runs of lookup ids (`qmd/core/number_set.py`): a batch of a pipeline costs the event loop a
few steps, however many messages it has.  A reserved message is not among those that `taken` has,
and no other reader gets it.  Several shared readers may reserve the same message; it is counted how
many have.  The positions of the readers are in the database (`storage/tables/reservations.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from qmd.core.number_set import NumberSet, Run
from storage.tables.runs import runs_of

if TYPE_CHECKING:
    from collections.abc import Collection

    from qmd.queues.local_queue import LocalQueue


class QueueReservations:
    """The reserved messages of a queue, by their lookup ids."""

    __slots__ = ("_held", "_leaving", "_queue", "_storing")

    def __init__(self, queue: LocalQueue) -> None:
        self._queue = queue
        self._held = NumberSet()
        self._leaving = NumberSet()  # those that the open batch deletes, as consumed
        self._storing: set[int] = set()  # express messages whose rows a batch inserts

    def __len__(self) -> int:
        """Return how many messages are reserved, without those that leave."""
        return len(self._held)

    def __contains__(self, lookup_id: object) -> bool:
        """Return whether a message is reserved and does not leave."""
        return lookup_id in self._held

    def __iter__(self) -> Iterator[int]:
        return iter(self._held)

    @property
    def unready(self) -> int:
        """The number of messages of the queue that readers have: taken, reserved or consumed."""
        return len(self._queue.taken) + len(self._held) + len(self._leaving)

    @property
    def are_leaving(self) -> bool:
        """Whether the commit of a consumption is under way."""
        return bool(self._leaving)

    def has(self, lookup_id: int) -> bool:
        """Return whether a message is reserved, or leaves as a consumed one."""
        return lookup_id in self._held or lookup_id in self._leaving

    def holders(self, lookup_id: int) -> int:
        """Return how many readers have reserved a message."""
        return self._held.holders(lookup_id)

    def busy(self, *, shared: bool) -> Busy:
        """Return the messages that a reader cannot reserve, as they are now.

        A reader that shares them may reserve those of other readers.
        """
        held = NumberSet() if shared else self._held.copy()
        return Busy(set(self._queue.taken), held, self._leaving.copy())

    def add(self, lookup_id: int, *, shared: bool) -> bool:
        """Reserve a message for one reader, in memory or on disk.

        Returns False if another reader has the message; a reserved message may be reserved again
        if `shared`.
        """
        queue = self._queue
        if lookup_id in self._held:
            if shared:
                self._held.add(lookup_id, lookup_id)
            return shared
        if lookup_id in queue.taken or lookup_id in self._leaving:
            return False
        if lookup_id in queue.express:
            queue.window.take(lookup_id)
        else:
            queue.window.hold_runs([(lookup_id, lookup_id)])
        self._held.add(lookup_id, lookup_id)
        return True

    def add_stored(self, runs: Sequence[Run], *, shared: bool) -> list[Run]:
        """Reserve messages that are on disk; return the reserved ones.

        A message that another reader has is left out, also if it is reserved, unless `shared`.
        With `shared` the reservation ends before the first one that is left out.
        """
        if self._are_free(runs, shared=shared):
            self._hold(runs)
            return list(runs)
        found: list[Run] = []
        for run in runs:
            if self._are_free([run], shared=shared):
                self._hold([run])
                found.append(run)
                continue
            some: list[int] = []
            for lookup_id in range(run[0], run[1] + 1):
                if self.add(lookup_id, shared=shared):
                    some.append(lookup_id)
                elif shared:
                    return [*found, *runs_of(some)]
            found += runs_of(some)
        return found

    def _are_free(self, runs: Sequence[Run], *, shared: bool) -> bool:
        taken = self._queue.taken
        return (
            not self._leaving.touches_any(runs)
            and (shared or not self._held.touches_any(runs))
            and not (taken and any(_has_any(taken, first, last) for first, last in runs))
        )

    def _hold(self, runs: Sequence[Run]) -> None:
        free = runs
        if self._held.touches_any(runs):
            free = [run for first, last in runs for run in self._held.free_runs(first, last)]
        self._queue.window.hold_runs(free)
        self._held.add_all(runs)

    def restore(self, runs: Sequence[Run]) -> None:
        """Reserve runs for one more reader, as the disk has them; only at a start."""
        self._hold(runs)

    def begin_storing(self, runs: Iterable[Run]) -> list[int]:
        """Return the express messages of these runs that the open batch has to store.

        Those that it stores for another reader already, which shares them, are left out.
        """
        express = self._queue.express
        found = [
            each
            for first, last in runs
            for each in range(first, last + 1)
            if each in express and each not in self._storing
        ]
        self._storing.update(found)
        return found

    def now_stored(self, lookup_id: int) -> None:
        """Change a reserved express message to a stored one, after the commit of its row."""
        self._storing.discard(lookup_id)
        queue = self._queue
        message = queue.express[lookup_id]
        queue.express.drop(lookup_id, message.packet, message.expires_at_s)
        queue.window.remove(lookup_id)
        queue.window.hold_runs([(lookup_id, lookup_id)])

    def release(self, runs: Sequence[Run], *, are_there: bool) -> None:
        """End one reservation of each of these messages.

        A message without further reservations is ready again if `are_there`; otherwise its row
        was already gone.
        """
        if not runs:
            return
        queue = self._queue
        before = len(self._held)
        self._held.discard_all(runs)
        freed = before - len(self._held)
        queue.returns += freed
        if not freed:
            return
        alone = runs
        if self._held.touches_any(runs):  # others have some
            alone = [run for first, last in runs for run in self._held.free_runs(first, last)]
        if are_there:
            queue.window.leave_on_disk(min(alone)[0], returned=alone)
        else:
            queue.window.remove_all(runs=alone)

    def begin_removal(self, runs: Sequence[Run]) -> None:
        """Mark reserved messages as leaving: the open batch deletes them."""
        self._held.discard_all(runs)
        self._leaving.add_all(runs)

    def end_removal(self, runs: Sequence[Run], size: int) -> None:
        """Forget removed messages after the commit; `size` is the bytes of their packets."""
        queue = self._queue
        self._leaving.discard_all(runs)
        queue.window.remove_all(runs=runs)
        queue.count_out(sum(last - first + 1 for first, last in runs), size)


class Busy:
    """The messages that a reader cannot reserve, as they were at one moment."""

    __slots__ = ("_held", "_leaving", "_taken")

    def __init__(self, taken: Collection[int], held: NumberSet, leaving: NumberSet) -> None:
        self._taken = taken
        self._held = held
        self._leaving = leaving

    def __contains__(self, lookup_id: object) -> bool:
        return lookup_id in self._taken or lookup_id in self._held or lookup_id in self._leaving

    def touches(self, first: int, last: int) -> bool:
        """Return whether any lookup id from `first` to `last` is busy."""
        return (
            self._held.touches(first, last)
            or self._leaving.touches(first, last)
            or _has_any(self._taken, first, last)
        )

    def first_free(self, lookup_id: int) -> int:
        """Return the first lookup id from this one on that is not busy."""
        while lookup_id in self:
            lookup_id = max(self._held.first_free(lookup_id), self._leaving.first_free(lookup_id))
            if lookup_id in self._taken:
                lookup_id += 1
        return lookup_id


def _has_any(lookup_ids: Collection[int], first: int, last: int) -> bool:
    """Return whether any of these lookup ids is one from `first` to `last`."""
    if len(lookup_ids) < last - first:
        return any(first <= each <= last for each in lookup_ids)
    return any(each in lookup_ids for each in range(first, last + 1))
