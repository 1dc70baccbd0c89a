"""Expiry: messages end within the second in which their time to live or to reach their queue ends.

The disk keeps an index of the times.  When a second of the queue manager's clock begins, the expiry
reads the first entry of the index.  If a hundred thousand messages expire together, it ends them in
pieces and waits for the commit of each, so that other work has its turn in between and memory holds
one piece.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from storage.tables import expiry

if TYPE_CHECKING:
    from qmd.runtime.services import Services
    from qmd.transfer.confirmation import Confirmations

# Messages that are ended in one piece: some 5 ms of the event loop.  With 500, other work waits
# four times as long, and all messages end hardly sooner.
EXPIRED_ROWS = 100


class Sweeper(Protocol):
    """A component that ends the expired messages of one kind of queue."""

    def sweep_express(self, now_s: int, rows_max: int) -> int:
        """End express messages, which only memory knows; return their number."""
        ...

    async def sweep_stored(self, now_s: int, rows_max: int) -> tuple[int, bool]:
        """End stored messages; return their number, and whether there may be more."""
        ...


class Expiry:
    """The expiry of all messages of one queue manager."""

    def __init__(
        self, services: Services, confirmations: Confirmations, sweepers: Sequence[Sweeper]
    ) -> None:
        """`sweepers` are called in this order."""
        self._services = services
        self._confirmations = confirmations
        self._sweepers = sweepers

    async def reap(self) -> bool:
        """End one piece of the messages that have expired; return whether there may be more."""
        now_s = self._services.clock.now_s
        ended = self._reap_express(now_s)
        may_be_more = ended >= EXPIRED_ROWS
        may_be_more |= await self._confirmations.expire(EXPIRED_ROWS)
        earliest = await self._services.storage.read(expiry.next_expiry)
        self._services.clock.look(is_needed=earliest is not None or self._confirmations.any)
        if earliest is not None and earliest < now_s:
            for sweeper in self._sweepers:
                count, is_part = await sweeper.sweep_stored(now_s, EXPIRED_ROWS)
                ended += count
                may_be_more |= is_part
        if ended:
            # An end takes two commits: one reads the messages, the next one removes them.
            await self._services.storage.batch.barrier()
            await self._services.storage.batch.barrier()
        return may_be_more

    def _reap_express(self, now_s: int) -> int:
        ended = 0
        for sweeper in self._sweepers:
            ended += sweeper.sweep_express(now_s, EXPIRED_ROWS - ended)
        return ended
