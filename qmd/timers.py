"""Timers with a name: at most one for each, always the earliest that was asked for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from typing import TypeVar

Name = TypeVar("Name", bound=Hashable)


class Timers:
    """One set of timers on one event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._handles: dict[Hashable, asyncio.TimerHandle] = {}

    def at(self, when: float, name: Name, callback: Callable[[Name], None]) -> None:
        """Call `callback(name)` at `when` (loop time), unless it is to be called before that."""
        handle = self._handles.get(name)
        if handle is not None:
            if handle.when() <= when:
                return
            handle.cancel()
        self._handles[name] = self._loop.call_at(when, self._ring, name, callback)

    def cancel(self, name: Hashable) -> None:
        handle = self._handles.pop(name, None)
        if handle is not None:
            handle.cancel()

    def cancel_all(self) -> None:
        for handle in self._handles.values():
            handle.cancel()
        self._handles.clear()

    def _ring(self, name: Name, callback: Callable[[Name], None]) -> None:
        del self._handles[name]
        callback(name)
