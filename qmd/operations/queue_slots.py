"""Queue slots: the number of queues that may still be created."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

from qmd.errors import Refusal
from storage.tables import queues as queue_rows

if TYPE_CHECKING:
    from qmd.queues.registry import LocalQueues


class QueueSlots:
    """The limit of queues, with those that are being created."""

    def __init__(self, queues: LocalQueues, queues_max: int) -> None:
        self._queues = queues
        self._queues_max = queues_max
        self._reserved = 0

    @contextlib.contextmanager
    def reserve(self, count: int) -> Iterator[None]:
        """Reserve slots for `count` queues while they are being created.

        Raises Refusal if there are too few, without reading from the disk: a client that creates
        more and more queues must not delay others.
        """
        queues = self._queues.by_id
        system = sum(queue_id in queues for queue_id in range(queue_rows.FIRST_USER_QUEUE_ID))
        if len(queues) - system + self._reserved + count > self._queues_max:
            raise self.too_many()
        self._reserved += count
        try:
            yield
        finally:
            self._reserved -= count

    def too_many(self) -> Refusal:
        """Return the refusal of another queue."""
        return Refusal(
            "too_many_queues",
            f"there are {self._queues_max} queues, with subqueues and journals: no more can be"
            " created",
            "Delete queues that are not needed.",
        )
