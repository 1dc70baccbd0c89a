"""Ctrl-C and SIGTERM as a request to stop at the next suitable point."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupt:
    """True after a signal; a second signal has its default effect."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def __bool__(self) -> bool:
        return self._event.is_set()

    def __enter__(self) -> Interrupt:
        self._loop = asyncio.get_running_loop()
        for each in SIGNALS:
            self._loop.add_signal_handler(each, self._interrupt)
        return self

    def __exit__(self, *exc_info: object) -> None:
        for each in SIGNALS:
            self._loop.remove_signal_handler(each)

    async def unless(self, work: Coroutine[Any, Any, T]) -> T | None:
        """Return the result of `work`, or None when the signal came first: then it is cancelled."""
        task = asyncio.create_task(work)
        signalled = asyncio.create_task(self._event.wait())
        try:
            await asyncio.wait((task, signalled), return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return task.result()
            return None
        finally:
            for each in (task, signalled):
                each.cancel()
            await asyncio.wait((task, signalled))

    def _interrupt(self) -> None:
        self._event.set()
        self.__exit__()
