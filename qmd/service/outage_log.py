"""The log of a service that cannot use its queue."""

from __future__ import annotations

import time

import structlog

from qmd.client import ClientError

REPEATED_S = 60.0  # a reason that stays is logged so often

log = structlog.get_logger()


class OutageLog:
    """Each new reason is logged at once, and again after a minute if it stays."""

    def __init__(self, queue: str) -> None:
        self._queue = queue
        self._logged: dict[str, float] = {}

    def write(self, error: ClientError) -> None:
        """Log the error unless its text was logged within the last minute."""
        reason, now = str(error), time.monotonic()
        if now - self._logged.get(reason, -REPEATED_S) < REPEATED_S:
            return
        if len(self._logged) >= 100:  # texts that differ each time
            self._logged.clear()
        self._logged[reason] = now
        log.warning("queue_manager_unreachable", queue=self._queue, reason=reason)
