"""Notifications of systemd's watchdog: from the event loop, or while the loop waits for the disk.

A few rows are committed on the loop's thread (storage/engine/writer.py).  A disk that hangs then
holds the loop.  That is no reason to kill the daemon: it continues when the disk does.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

from qmd.runtime.systemd import ServiceManager


class Watchdog:
    """Notifies systemd three times in each period, in seconds, until `run` is cancelled.

    `waits_for_disk` returns whether the loop waits for the disk; another thread calls it.
    """

    def __init__(
        self, service: ServiceManager, period_s: float, waits_for_disk: Callable[[], bool]
    ) -> None:
        self._service = service
        self._interval_s = period_s / 3
        self._waits_for_disk = waits_for_disk
        self._has_ended = threading.Event()

    async def run(self) -> None:
        """Notify, as long as the event loop runs or waits for the disk."""
        threading.Thread(target=self._look, name="watchdog", daemon=True).start()
        try:
            while True:
                self._service.notify("WATCHDOG=1")
                await asyncio.sleep(self._interval_s)
        finally:
            self._has_ended.set()

    def _look(self) -> None:
        while not self._has_ended.wait(self._interval_s):
            if self._waits_for_disk():
                self._service.notify("WATCHDOG=1")
