"""The dead-letter queues of the system, as values for units of work."""

from __future__ import annotations

from typing import NamedTuple


class SystemQueues(NamedTuple):
    """The dead-letter queues of the system, (id, name) of each, as values for units of work."""

    plain: tuple[int, str]
    transactional: tuple[int, str]
    has_named: bool  # applications have named other dead-letter queues
    # Queues that take no dead letter any more: their messages have ended, or are about to.
    being_deleted: frozenset[int] = frozenset()

    def of(self, *, is_transactional: bool) -> tuple[int, str]:
        """Return the queue for such a message."""
        return self.transactional if is_transactional else self.plain
