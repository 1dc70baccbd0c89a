"""The database calls of a simulated daemon: aiosqlite without its thread.

A commit at once, on the daemon's loop, takes no time; those of its thread do.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import aiosqlite

from storage.vault import VaultConnection
from tests.simulation.loop import Handle, ProcessLoop

if TYPE_CHECKING:
    from tests.simulation.world import Host


class DatabaseCalls:
    """The calls of one connection, in place of the queue of aiosqlite's thread."""

    def __init__(
        self, host: Host, loop: ProcessLoop, connection: aiosqlite.Connection, *, writes: bool
    ) -> None:
        self._host = host
        self._connection = connection
        self._loop = loop
        self._writes = writes
        self._calls: deque[tuple[asyncio.Future[Any] | None, Callable[[], Any]]] = deque()
        self._is_busy = False

    def put_nowait(self, call: tuple[asyncio.Future[Any] | None, Callable[[], Any]]) -> None:
        self._calls.append(call)
        if not self._is_busy:
            self._begin()

    def _begin(self) -> None:
        """Begin a call; parts of its time pass before and after its change of the disk."""
        self._is_busy = True
        took = self._host.call_time_s(writes=self._writes)
        before = took * self._host.world.random.choice((0.0, 0.5, 1.0))
        self._later(before, self._do, took - before)

    def _do(self, rest_s: float) -> None:
        future, function = self._calls.popleft()
        result: Any = None
        error: Exception | None = None
        try:
            result = function()
        except Exception as caught:
            error = caught
        if self._host.disk.is_off:
            return  # the host loses its power
        if rest_s > 0:
            self._later(rest_s, self._finish, future, result, error)
        else:
            self._finish(future, result, error)

    def _finish(
        self, future: asyncio.Future[Any] | None, result: Any, error: Exception | None
    ) -> None:
        if future is not None and not future.done():
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(result)
        if self._calls:
            self._begin()
        else:
            self._is_busy = False

    def _later(self, delay_s: float, callback: Callable[..., None], *arguments: Any) -> None:
        scheduler = self._loop.scheduler
        handle = Handle(callback, arguments, self._loop, None)
        scheduler.wake(scheduler.now + delay_s, self._loop, handle)


class WatchedConnection(VaultConnection):
    """A connection of which the world sees each commit before it begins, on either thread."""

    host: Host

    def execute(self, sql: str, *values: Any) -> sqlite3.Cursor:
        if sql == "BEGIN IMMEDIATE":
            self.host.world.on_commit(self.host, self)
        return super().execute(sql, *values)


class NoThread:
    """The place of aiosqlite's thread."""

    daemon = False

    def start(self) -> None:
        pass

    def join(self, timeout: float | None = None) -> None:
        pass
