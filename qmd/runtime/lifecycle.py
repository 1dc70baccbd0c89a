"""Lifecycle of a queue manager: running, stopping or failed."""

from __future__ import annotations

import asyncio


class Bug(Exception):
    """An internal error that stops the daemon; `__cause__` is the original error."""


class Lifecycle:
    """Lifecycle of one run, from its start to its end."""

    __slots__ = ("failed", "started_at", "stopping")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.started_at = loop.time()
        self.stopping = False
        #: Receives a Bug as its exception.
        self.failed: asyncio.Future[None] = loop.create_future()

    def fail(self, error: BaseException) -> None:
        """Report a bug: the task that waits for `failed` stops the daemon."""
        if not self.failed.done():
            bug = Bug(str(error))
            bug.__cause__ = error
            self.failed.set_exception(bug)
            self.failed.exception()  # marks the exception as retrieved, in case no task waits
