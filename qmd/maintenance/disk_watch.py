"""The disk watch: reports that the disk is full when that begins, while it lasts and when it ends.

The reports go to the log of the daemon, to the event log (if the reserve has room for an event),
and to `qmd status`.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import structlog

from qmd.events.header import EventHeader, Kind

if TYPE_CHECKING:
    from qmd.events.recorder import Recorder
    from qmd.runtime.services import Services

log = structlog.get_logger()

INTERVAL_S = 1.0
REPEATED_S = 60.0  # between two lines of the log while the disk is full
#: The disk counts as full until it has had room for so long: new messages may fill it at once.
OVER_S = 10.0

REMEDY = (
    "Make room on the disk, or receive or purge messages. Nothing that was acknowledged is lost."
)


class DiskWatch:
    """The watch, which checks the disk once a second."""

    def __init__(self, services: Services, recorder: Recorder) -> None:
        self._services = services
        self._recorder = recorder
        self._full_since: float | None = None  # by the loop's clock, as the others
        self._last_full_at = 0.0
        self._logged_at = 0.0

    @property
    def full_s(self) -> int | None:
        """The number of seconds for which the disk has been full; None if it is not."""
        if self._full_since is None:
            return None
        return round(self._services.loop.time() - self._full_since)

    async def run(self) -> None:
        """Check the disk in each interval until cancelled."""
        while True:
            self.look()
            await asyncio.sleep(INTERVAL_S)

    def look(self) -> None:
        """Check the disk, and report its state if that has changed or the next report is due."""
        storage, now = self._services.storage, self._services.loop.time()
        if not storage.room(now) or storage.obstacle:
            self._last_full_at = now
            if self._full_since is None:
                self._full_since = now
                self._record(Kind.DISK_FULL, self._reason())
            elif now - self._logged_at < REPEATED_S:
                return
            self._logged_at = now
            log.error("disk_full", reason=self._reason(), full_s=self.full_s, remedy=REMEDY)
        elif self._full_since is not None and now - self._last_full_at >= OVER_S:
            full_s = round(self._last_full_at - self._full_since)
            self._full_since = None
            log.warning("disk_has_room", full_s=full_s, free_bytes=storage.free_bytes)
            self._record(Kind.DISK_HAS_ROOM, f"the disk was full for {full_s} s")

    def _reason(self) -> str:
        storage = self._services.storage
        reason = (
            f"{storage.free_bytes / 1e6:.1f} MB are free, and {storage.kept_free_bytes / 1e6:.1f}"
            " MB must stay free ([quotas] disk_reserve): new messages are refused"
        )
        if storage.obstacle:
            return f"{reason}; nothing can be written, and pending commits wait: {storage.obstacle}"
        return f"{reason}; the reserve is given up" if storage.full else reason

    def _record(self, kind: Kind, reason: str) -> None:
        recorder = self._recorder
        if recorder.enabled:
            recorder.group(EventHeader(kind, reason=reason), self._services.id)
            self._services.storage.batch.write_soon()
