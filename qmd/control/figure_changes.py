"""Changes of figures: the rows of queues that differ from those that a connection has read before.

Of ten thousand queues, most do not change between two collections.  Comparing a few integers takes
a fraction of the time of making, encoding and sending a row.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple
from weakref import WeakKeyDictionary

from qmd.control_protocol.figures import ROWS_MAX, SCAN_MAX

if TYPE_CHECKING:
    from qmd.queues.local_queue import LocalQueue

Queues = Mapping[str, "LocalQueue"]
Mark = tuple[int | None, ...]


class Page(NamedTuple):
    """The changes among some of the queues."""

    queues: list[LocalQueue]  # those that have changed
    next: int | None  # the place of the next page
    gone: list[str]  # names of queues that are no more; on the last page


class KnownQueues:
    """The figures of queues that one connection has read."""

    def __init__(self) -> None:
        self._marks: dict[LocalQueue, Mark] = {}
        self._by_name: dict[str, LocalQueue] = {}

    def changes(self, queues: Queues, start: int) -> Page:
        """Return the queues that have changed, from the place `start` on."""
        marks = self._marks
        changed: list[LocalQueue] = []
        end = start
        for queue in islice(queues.values(), start, start + SCAN_MAX):
            end += 1
            # Every change of a figure changes one of these.
            mark = (
                queue.messages,
                queue.left_count,
                queue.bytes,
                queue.reserved.unready,
                len(queue.waiters),
                queue.quota_bytes,
            )
            if marks.get(queue) != mark:
                marks[queue] = mark
                self._by_name[queue.name] = queue
                changed.append(queue)
                if len(changed) == ROWS_MAX:
                    break
        if start < end < len(queues):
            return Page(changed, end, [])
        return Page(changed, None, self._gone(queues))

    def find(self, names: Iterable[str], queues: Queues) -> list[LocalQueue | None]:
        """Return the queues with these names, in this order."""
        by_name = self._by_name or {each.name: each for each in queues.values()}
        found = [by_name.get(name) for name in names]
        return [None if each is None or each.deleted else each for each in found]

    def _gone(self, queues: Queues) -> list[str]:
        """Return the names of queues that are no more, and forget them."""
        if len(self._marks) <= len(queues):
            return []
        present = set(queues.values())
        gone = []
        for queue in [each for each in self._marks if each not in present]:
            del self._marks[queue]
            # A new queue may have its name.
            if self._by_name[queue.name] is queue:
                del self._by_name[queue.name]
                gone.append(queue.name)
        return gone


class FigureReaders:
    """The connections that read changes, each with the figures that it knows."""

    def __init__(self) -> None:
        self._known: WeakKeyDictionary[object, KnownQueues] = WeakKeyDictionary()

    def known(self, connection: object) -> KnownQueues:
        """Return the figures that a connection knows."""
        found = self._known.get(connection)
        if found is None:
            found = self._known[connection] = KnownQueues()
        return found
