"""Timers that know when they are due: at most one for each purpose, the earliest asked for.

The loop's own handles cannot be asked: uvloop calls what is due at once without making a timer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from functools import partial
from typing import TypeVar

Name = TypeVar("Name", bound=Hashable)


class Alarm:
    """One timer.

    It knows whom to call only while it runs: an owner that is its own callback is freed at once
    when it goes, and not when the collector comes by.
    """

    __slots__ = ("_handle", "_loop", "due_at")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._handle: asyncio.Handle | None = None
        self.due_at = 0.0  # loop time

    def at(self, when: float, ring: Callable[[], None]) -> None:
        """Call `ring` at `when` (loop time), unless it is to be called before that."""
        if self._handle is not None:
            if self.due_at <= when:
                return
            self._handle.cancel()
        self.due_at = when
        self._handle = self._loop.call_at(when, self._due, ring)

    def cancel(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _due(self, ring: Callable[[], None]) -> None:
        self._handle = None
        ring()


class Timers:
    """One set of timers on one event loop, each with a name."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._alarms: dict[Hashable, Alarm] = {}

    def at(self, when: float, name: Name, callback: Callable[[Name], None]) -> None:
        """Call `callback(name)` at `when` (loop time), unless it is to be called before that."""
        alarm = self._alarms.get(name)
        if alarm is None:
            alarm = self._alarms[name] = Alarm(self._loop)
        alarm.at(when, partial(self._ring, name, callback))

    def cancel(self, name: Hashable) -> None:
        alarm = self._alarms.pop(name, None)
        if alarm is not None:
            alarm.cancel()

    def cancel_all(self) -> None:
        for alarm in self._alarms.values():
            alarm.cancel()
        self._alarms.clear()

    def _ring(self, name: Name, callback: Callable[[Name], None]) -> None:
        del self._alarms[name]
        callback(name)
