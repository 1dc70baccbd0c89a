"""Progress: steps that coroutines can wait for, and a progress bar for the terminal."""

from __future__ import annotations

import asyncio
import sys
import time

BAR_CHARACTERS = 30
REDRAW_S = 0.1


class Progress:
    """Counter of `advance` calls up to `steps_max`."""

    def __init__(self, steps_max: int) -> None:
        self.steps = 0
        self.steps_max = steps_max
        self._waiting: list[tuple[float, asyncio.Future[None]]] = []

    @property
    def fraction(self) -> float:
        return self.steps / self.steps_max

    def advance(self) -> None:
        self.steps += 1
        for waiting in [one for one in self._waiting if one[0] <= self.steps]:
            self._waiting.remove(waiting)
            if not waiting[1].done():
                waiting[1].set_result(None)

    async def reach(self, fraction: float) -> None:
        """Wait until this fraction of the steps is done."""
        if self.fraction < fraction:
            reached = asyncio.get_running_loop().create_future()
            self._waiting.append((fraction * self.steps_max, reached))
            await reached


class Display:
    """Permanent lines with the time, and on a terminal a progress bar below them."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._started_at = time.monotonic()
        self._moves = sys.stdout.isatty()

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self._started_at

    def report(self, line: str) -> None:
        part = f"{self._progress.fraction:4.0%}"
        self._print(f"{self.elapsed_s:5.1f} s {part}  {line}\n")

    async def keep_drawing(self) -> None:
        """Redraw the bar until cancelled."""
        while self._moves:
            filled = int(self._progress.fraction * BAR_CHARACTERS)
            bar = "█" * filled + "░" * (BAR_CHARACTERS - filled)
            self._print(f"{self.elapsed_s:5.1f} s {self._progress.fraction:4.0%}  {bar}")
            await asyncio.sleep(REDRAW_S)

    def clear(self) -> None:
        self._print("")

    def _print(self, text: str) -> None:
        print(f"\r\x1b[K{text}" if self._moves else text, end="", flush=True)
