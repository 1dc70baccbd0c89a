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
    from qmd.bulk.reservations import Reservations
    from qmd.bulk.staging import Staging
    from qmd.events.recorder import Recorder
    from qmd.queues.message_id_history import KnownMessages
    from qmd.queues.named_dead_letter_queue import NamedDeadLetterQueues
    from qmd.runtime.services import Services
    from qmd.transfer.confirmation import Confirmations

FORGOTTEN_ROWS = 4096  # outcomes, in one commit


class Retention:
    """Drops it."""

    def __init__(
        self,
        services: Services,
        confirmations: Confirmations,
        known_messages: KnownMessages,
        own_dead_letters: NamedDeadLetterQueues,
        recorder: Recorder,
        reservations: Reservations,
        staging: Staging,
    ) -> None:
        self._services = services
        self._confirmations = confirmations
        self._known_messages = known_messages
        self._own_dead_letters = own_dead_letters
        self._recorder = recorder
        self._reservations = reservations
        self._staging = staging

    @property
    def acts(self) -> dict[str, Callable[[], Awaitable[None]]]:
        """Each by a name for people."""
        return {
            "forget message ids": self._forget_message_ids,
            "forget own dead-letter queues": self._own_dead_letters.forget_gone,
            "forget readers": self._reservations.forget_gone,
            "forget stages": self._staging.forget_old,
            "forget unconfirmed messages": self._forget_unconfirmed,
            "forget outcomes": self._forget_outcomes,
            "trim the events": self._recorder.forget_old,
        }

    async def forget_old(self) -> None:
        """All of them; the first that fails ends it."""
        for act in self.acts.values():
            await act()

    async def _forget_message_ids(self) -> None:
        self._known_messages.forget_old()  # goes to disk with the open batch

    async def _forget_unconfirmed(self) -> None:
        await self._confirmations.forget_old(self._services.clock.now_s)

    async def _forget_outcomes(self) -> None:
        age_s = int(self._services.settings.transactions.outcome_age_s)
        forget = partial(
            outcome_rows.forget,
            before_s=self._services.clock.now_s - age_s,
            rows_max=FORGOTTEN_ROWS,
        )
        while await self._services.storage.batch.run(forget, can_wait=True) == FORGOTTEN_ROWS:
            pass  # one commit for so many, because everybody waits for it
