"""The delayed messages of one destination, as they count towards quotas."""

from __future__ import annotations

from typing import TYPE_CHECKING

from qmd.queues.usage import Measured

if TYPE_CHECKING:
    from qmd.queues.local_queue import LocalQueue
    from qmd.queues.usage import Usage


class DelayedGauge(Measured):
    """Number and bytes of the delayed messages for one destination.

    Those for a queue of this computer count towards its quota, as the messages of a subqueue do.
    """

    def __init__(self, usage: Usage, queue: LocalQueue | None) -> None:
        super().__init__(usage, 0, within=queue)
        self.queue = queue
        self.messages = 0
        if queue is not None:
            queue.delayed = self

    def count_in(self, messages: int, size: int) -> None:
        """Count messages that are delayed from now on."""
        self.messages += messages
        self.grow(size)

    def count_out(self, messages: int, size: int) -> None:
        """Count messages that are not delayed any more."""
        self.messages -= messages
        self.shrink(size)

    def leave(self) -> None:
        """Remove the gauge, which counts no message, from its queue."""
        if self.queue is not None and self.queue.delayed is self:
            self.queue.delayed = None
