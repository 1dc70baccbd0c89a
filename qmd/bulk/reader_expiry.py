"""Readers that nobody uses any more: warned about, then released and forgotten."""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

if TYPE_CHECKING:
    from qmd.bulk.reader import Reader
    from qmd.bulk.readers import Readers
    from qmd.bulk.reservations import Reservations
    from qmd.runtime.services import Services

log = structlog.get_logger()

#: The warning comes this long before the end, or half of the age before it.
WARNING_S = 7 * 86_400.0


class ReaderExpiry:
    """The part that ends readers without requests for `reader_age`.

    The time since the last request counts, also across restarts.  A warning is always logged
    before, and the time between both is measured by the loop's clock: a wall clock that is set
    wrong ends no reader.
    """

    def __init__(self, services: Services, readers: Readers, reservations: Reservations) -> None:
        self._services = services
        self._readers = readers
        self._reservations = reservations
        self._warned_at: dict[int, float] = {}  # by the reader's id

    async def sweep(self) -> None:
        """Warn about readers that expire soon, and end those that were warned about."""
        age_s = self._services.settings.pipeline.reader_age_s
        if not age_s:
            return
        warning_s = min(WARNING_S, age_s / 2)
        now = self._services.loop.time()
        for reader in self._readers.all():
            idle_s = self._idle_s(reader)
            if idle_s < age_s - warning_s:
                self._warned_at.pop(reader.id, None)
                continue
            warned_at = self._warned_at.get(reader.id)
            if warned_at is None:
                self._warned_at[reader.id] = now
                log.warning(
                    "reader_expires",
                    reader=reader.name,
                    idle_s=int(idle_s),
                    in_s=int(max(age_s - idle_s, warning_s)),
                    remedy="Start its pipeline once, or allow more time: reader_age in the section"
                    " [pipeline]",
                )
            elif idle_s >= age_s and now - warned_at >= warning_s and not reader.lock.locked():
                del self._warned_at[reader.id]
                await self._end(reader)
        self._warned_at = {
            id: at
            for id, at in self._warned_at.items()
            if id in {r.id for r in self._readers.all()}
        }

    async def _end(self, reader: Reader) -> None:
        released = await self._reservations.release(reader.name, "", dry_run=False, forget=True)
        log.warning(
            "reader_expired",
            reader=reader.name,
            messages=released["messages"],
            remedy="Its messages are ready again. Its pipeline needs a new checkpoint.",
        )

    def _idle_s(self, reader: Reader) -> float:
        """Return the time since the reader's last request, as far as it is known."""
        since_request = self._services.loop.time() - reader.active_at
        if reader.was_used:
            return since_request
        stored_s = max(
            (reader.opened_at_s, *(held.reserved_at_s for held in reader.queues.values()))
        )
        return max(since_request, self._services.environment.time() - stored_s)
