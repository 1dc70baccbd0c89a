"""The maintenance loop: expiry in each second, retention and vacuum in each minute."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from qmd.events.log_limits import EventLogLimits
    from qmd.maintenance.expiry import Expiry
    from qmd.maintenance.housekeeping import Housekeeping
    from qmd.maintenance.retention import Retention
    from qmd.runtime.services import Services

INTERVAL_S = 1.0  # times to live are in whole seconds
RETENTION_INTERVAL_S = 60.0
VACUUM_STEPS_MAX = 64  # some 3 ms each
ROOM_COMMITS_MAX = 8  # in a row


class MaintenanceLoop:
    """The periodic work of one queue manager."""

    def __init__(
        self,
        services: Services,
        housekeeping: Housekeeping,
        expiry: Expiry,
        retention: Retention,
        event_log_limits: EventLogLimits,
    ) -> None:
        self._services = services
        self._housekeeping = housekeeping
        self._expiry = expiry
        self._retention = retention
        self._event_log_limits = event_log_limits
        self._retention_due = 0.0

    async def run(self) -> None:
        """Run until cancelled.  Raises StorageError when the storage has failed.

        All other failures are logged, and the task is tried again.
        """
        attempt = self._housekeeping.attempt
        while True:
            may_be_more = await attempt(
                "end expired messages", self._expiry.reap, otherwise=False, is_strict=True
            )
            now = self._services.loop.time()
            await attempt("make room", partial(self._make_room, now), otherwise=None)
            if now >= self._retention_due:
                self._retention_due = now + RETENTION_INTERVAL_S
                for name, task in self._retention.tasks.items():
                    await attempt(name, task, otherwise=None)
                await attempt("give pages back", self._give_back, otherwise=None)
            interval_s = min(INTERVAL_S, self._services.clock.next_second_in_s)
            await asyncio.sleep(0 if may_be_more else interval_s)

    async def _make_room(self, now: float) -> None:
        """Shrink the event log while the disk has no room for new messages.

        Deleted rows make room only when the database returns their pages to the file system.  On a
        full disk each commit returns some of them, and this task may be the only one to commit.
        """
        for _ in range(ROOM_COMMITS_MAX):
            if self._services.storage.room(now):
                break
            await self._event_log_limits.make_room()

    async def _give_back(self) -> None:
        """Return empty pages of the database to the file system while there is no other work."""
        storage = self._services.storage
        for _ in range(VACUUM_STEPS_MAX):
            if storage.pressure or not storage.room(self._services.loop.time()):
                return
            if await storage.vacuum() == 0:
                return
