"""Retention: data that is kept for a limited time is dropped once a minute, in pieces.

None of this data is needed to keep the promise to applications.  Each task stands alone, and is
left out while the disk has no room for it (`Batch.run`, `can_wait`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING

from storage.tables import outcomes as outcome_rows

if TYPE_CHECKING:
    from qmd.queues.message_id_history import KnownMessages
    from qmd.runtime.services import Services
    from qmd.transfer.confirmation import Confirmations

FORGOTTEN_ROWS = 4096  # outcomes, in one commit

Task = Callable[[], Awaitable[None]]


class Retention:
    """The tasks that drop old data of one queue manager."""

    def __init__(self, tasks: dict[str, Task]) -> None:
        """`tasks` are the tasks by their names for operators, in the order in which they run."""
        self.tasks = tasks

    async def forget_old(self) -> None:
        """Run all tasks once.  The first error of a task is raised, and ends the round."""
        for task in self.tasks.values():
            await task()


async def forget_message_ids(known_messages: KnownMessages) -> None:
    """Drop old ids of received messages; the open batch writes that to disk."""
    known_messages.forget_old()


async def forget_unconfirmed(services: Services, confirmations: Confirmations) -> None:
    """Drop the records of messages that were never confirmed."""
    await confirmations.forget_old(services.clock.now_s)


async def forget_outcomes(services: Services) -> None:
    """Drop the stored outcomes of requests that are older than the configured age."""
    age_s = int(services.settings.transactions.outcome_age_s)
    forget = partial(
        outcome_rows.forget, before_s=services.clock.now_s - age_s, rows_max=FORGOTTEN_ROWS
    )
    # Each commit drops a limited number of rows, because other changes wait for it.
    while await services.storage.batch.run(forget, can_wait=True) == FORGOTTEN_ROWS:
        pass
