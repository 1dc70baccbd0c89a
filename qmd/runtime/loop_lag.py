"""Lag of the event loop: how late a timer runs, as a sample of the delay of all other work."""

from __future__ import annotations

import asyncio

from storage.engine.histogram import Histogram

PERIOD_S = 0.5
BOUNDS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)


class LoopLag:
    """The measured lags since the start, in seconds; `run` measures."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.lags = Histogram(BOUNDS_S)

    async def run(self) -> None:
        """Measure until it is cancelled."""
        while True:
            due = self._loop.time() + PERIOD_S
            await asyncio.sleep(PERIOD_S)
            self.lags.add(max(0.0, self._loop.time() - due))
