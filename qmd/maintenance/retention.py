"""What is kept for a while only, and dropped when that is over: once a minute, some at a time.

None of it is needed for the promise.  Each act stands for itself, and is left out where the disk
has no room for it (`Batch.run`, `can_wait`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING

from storage.tables import outcomes as outcome_rows

if TYPE_CHECKING:
    from qmd.manager import QueueManager

FORGOTTEN_ROWS = 4096  # outcomes, in one commit


class Retention:
    """Drops it."""

    def __init__(self, manager: QueueManager) -> None:
        self._manager = manager

    @property
    def acts(self) -> dict[str, Callable[[], Awaitable[None]]]:
        """Each by a name for people."""
        manager = self._manager
        return {
            "forget message ids": self._forget_message_ids,
            "forget own dead-letter queues": manager.own_dead_letters.forget_gone,
            "forget readers": manager.reserving.forget_gone,
            "forget stages": manager.staging.forget_old,
            "forget unconfirmed messages": self._forget_unconfirmed,
            "forget outcomes": self._forget_outcomes,
            "trim the events": manager.recorder.forget_old,
        }

    async def forget_old(self) -> None:
        """All of them; the first that fails ends it."""
        for act in self.acts.values():
            await act()

    async def _forget_message_ids(self) -> None:
        self._manager.known_messages.forget_old()  # goes to disk with the open batch

    async def _forget_unconfirmed(self) -> None:
        await self._manager.confirmations.forget_old(self._manager.clock.now_s)

    async def _forget_outcomes(self) -> None:
        manager = self._manager
        age_s = int(manager.settings.transactions.outcome_age_s)
        forget = partial(
            outcome_rows.forget, before_s=manager.clock.now_s - age_s, rows_max=FORGOTTEN_ROWS
        )
        while await manager.storage.batch.run(forget, can_wait=True) == FORGOTTEN_ROWS:
            pass  # one commit for so many, because everybody waits for it
