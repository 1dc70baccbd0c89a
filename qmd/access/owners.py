"""Owners of queues, and the number of queues of each.

The numbers are kept in memory: to count rows for each new queue would read the whole table on the
thread that writes, so that a client that creates thousands of queues would delay all commits.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from qmd.errors import Refusal

if TYPE_CHECKING:
    from qmd.core.principals import Principal


class Owners:
    """The owner of each queue that has one, by the id of the queue."""

    def __init__(self) -> None:
        self._by_queue: dict[int, Principal] = {}
        self._counts: Counter[str] = Counter()  # with the queues that are being created

    def get(self, queue_id: int) -> Principal | None:
        """Return the owner of a queue, or None."""
        return self._by_queue.get(queue_id)

    def set(self, queue_id: int, owner: Principal) -> None:
        """Give a queue to an owner."""
        self.forget(queue_id)
        self._by_queue[queue_id] = owner
        self._counts[str(owner)] += 1

    def forget(self, queue_id: int) -> None:
        """Forget the owner of a queue that is deleted."""
        owner = self._by_queue.pop(queue_id, None)
        if owner is not None:
            self._remove(str(owner))

    @contextlib.contextmanager
    def room(self, owner: Principal | None, queues_max: int | None) -> Iterator[None]:
        """Count a queue that is being created for its owner; None: no limit.  Raises Refusal."""
        if owner is None or queues_max is None:
            yield
            return
        name = str(owner)
        if self._counts[name] >= queues_max:
            raise Refusal(
                "too_many_owned",
                f"{name} has {self._counts[name]} queues, and that is the most that an owner"
                " without all rights may have",
                "Delete some, or raise queues_max in the section [access].",
            )
        self._counts[name] += 1
        try:
            yield
        finally:
            self._remove(name)

    def _remove(self, name: str) -> None:
        self._counts[name] -= 1
        if not self._counts[name]:
            del self._counts[name]
