"""The limits of the event log: its oldest events are dropped by size and age."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from storage.tables.events import mark_shipped, size_bytes, trim

if TYPE_CHECKING:
    import sqlite3

    from qmd.runtime.services import Services

TRIMMED_BLOCKS = 256  # in one commit
SHORT_BYTES = 4 * 1024 * 1024  # kept of the log, however little room the disk has


class EventLogLimits:
    """The limits of the event log by size and age, and by the room on the disk."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self.short_bytes = SHORT_BYTES

    async def forget_old(self) -> None:
        """Drop the oldest events beyond the configured size and age.

        Each commit drops at most `TRIMMED_BLOCKS` blocks, because other changes wait for it.
        """
        kept = self._services.settings.events
        # A jump of the wall clock must not trim the history.
        now = min(self._services.environment.time(), self._services.clock.now)
        drop = partial(
            trim,
            size_max=kept.size_bytes,
            before_ms=int((now - kept.age_s) * 1000),
            blocks_max=TRIMMED_BLOCKS,
            shipped_only=kept.keep_unshipped,
        )
        while await self._services.storage.batch.run(drop, can_wait=True) == TRIMMED_BLOCKS:
            pass

    async def mark_shipped(self, block: int) -> int:
        """Record that another store has the log up to and including `block`.

        Return the highest such block so far.
        """
        return await self._services.storage.batch.run(partial(mark_shipped, block=block))

    async def make_room(self) -> None:
        """Drop an eighth of the log in one commit, to make room for messages on a full disk.

        The commit is needed even if there is nothing to drop: it gives freed pages back.
        """
        drop = partial(_drop_eighth, short_bytes=self.short_bytes)
        await self._services.storage.batch.run(drop, can_wait=True)


def _drop_eighth(db: sqlite3.Connection, short_bytes: int) -> None:
    size_max = max(size_bytes(db) * 7 // 8, short_bytes)
    trim(db, size_max=size_max, before_ms=0, blocks_max=TRIMMED_BLOCKS)
