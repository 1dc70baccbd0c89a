"""Retention: data that is kept for a limited time is dropped once a minute, in pieces.

None of this data is needed to keep the promise to applications.  Each task stands alone, and is
left out while the disk has no room for it (`Batch.run`, `can_wait`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING

from storage.tables import link_deliveries as link_rows
from storage.tables import outcomes as outcome_rows

if TYPE_CHECKING:
    from qmd.queues.message_id_history import KnownMessages
    from qmd.runtime.services import Services
    from qmd.transfer.confirmation import Confirmations

FORGOTTEN_ROWS = 4096  # outcomes, in one commit
LINK_ROWS_MAX = 20_000  # of each client: the deliveries of a link in one commit are one row

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
    await _forget_old(services, outcome_rows.forget)


async def forget_deliveries(services: Services) -> None:
    """Drop the recorded deliveries of links, as outcomes."""
    await _forget_old(services, link_rows.forget)
    read = partial(link_rows.clients_with_many, rows_max=LINK_ROWS_MAX)
    for owner, count in await services.storage.read(read):
        forget = partial(link_rows.forget_oldest, owner=owner)
        await _forget_oldest(services, forget, count - LINK_ROWS_MAX)


async def _forget_old(services: Services, forget: Callable[..., int]) -> None:
    """Drop the rows that are older than the configured age of outcomes."""
    before_s = services.clock.now_s - int(services.settings.transactions.outcome_age_s)
    piece = partial(forget, before_s=before_s, rows_max=FORGOTTEN_ROWS)
    # Each commit drops a limited number of rows, because other changes wait for it.
    while await services.storage.batch.run(piece, can_wait=True) == FORGOTTEN_ROWS:
        pass


async def _forget_oldest(services: Services, forget: Callable[..., int], count: int) -> None:
    """Drop so many of the oldest rows of a client."""
    while count > 0:
        piece = partial(forget, count=min(count, FORGOTTEN_ROWS))
        dropped = await services.storage.batch.run(piece, can_wait=True)
        if not dropped:
            return
        count -= dropped
