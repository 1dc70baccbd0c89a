"""The delayed messages of one destination, as they count towards quotas."""

from __future__ import annotations

from qmd.queues.usage import Measured, Usage


class DelayedGauge(Measured):
    """Number and bytes of the delayed messages for one destination.

    Those for a queue of this computer, `within`, count towards its quota, as the messages of a
    subqueue do.
    """

    def __init__(self, usage: Usage, within: Measured | None) -> None:
        super().__init__(usage, 0, within=within)
        self.within = within
        self.messages = 0

    def count_in(self, messages: int, size: int) -> None:
        """Count messages that are delayed from now on."""
        self.messages += messages
        self.grow(size)

    def count_out(self, messages: int, size: int) -> None:
        """Count messages that are not delayed any more."""
        self.messages -= messages
        self.shrink(size)
