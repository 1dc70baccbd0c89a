"""Timers with a known due time: at most one for each purpose, at the earliest requested time.

The handles of the loop do not provide the due time: uvloop calls a function that is due at once
without creating a timer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from functools import partial
from typing import TypeVar

Name = TypeVar("Name", bound=Hashable)


class Alarm:
    """One timer.

    It references its callback only while it is running. An owner that is its own callback is
    therefore freed as soon as it is dropped, without waiting for the garbage collector.
    """

    __slots__ = ("_handle", "_loop", "due_at")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._handle: asyncio.Handle | None = None
        self.due_at = 0.0  # loop time

    def at(self, when: float, ring: Callable[[], None]) -> None:
        """Call `ring` at `when` (loop time), unless an earlier call is scheduled."""
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
    """Named timers on one event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._alarms: dict[Hashable, Alarm] = {}

    def at(self, when: float, name: Name, callback: Callable[[Name], None]) -> None:
        """Call `callback(name)` at `when` (loop time), unless an earlier call is scheduled."""
        alarm = self._alarms.get(name)
        if alarm is None:
            alarm = self._alarms[name] = Alarm(self._loop)
        alarm.at(when, partial(self._ring, name, callback))

    def cancel(self, name: Hashable) -> None:
        """Cancel the timer with this name, if there is one."""
        alarm = self._alarms.pop(name, None)
        if alarm is not None:
            alarm.cancel()

    def cancel_all(self) -> None:
        """Cancel all timers; the queue manager stops."""
        for alarm in self._alarms.values():
            alarm.cancel()
        self._alarms.clear()

    def _ring(self, name: Name, callback: Callable[[Name], None]) -> None:
        del self._alarms[name]
        callback(name)
