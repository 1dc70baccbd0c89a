"""Whether the queue manager runs, stops or has failed."""

from __future__ import annotations

import asyncio


class Bug(Exception):
    """An error that cannot happen; `__cause__` is the error itself.  The daemon stops."""


class Lifecycle:
    """From the start of one run to its end."""

    __slots__ = ("failed", "started_at", "stopping")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.started_at = loop.time()
        self.stopping = False
        #: Gets a Bug as its exception.
        self.failed: asyncio.Future[None] = loop.create_future()

    def fail(self, error: BaseException) -> None:
        """Report a bug: the task that waits for `failed` stops the daemon."""
        if not self.failed.done():
            bug = Bug(str(error))
            bug.__cause__ = error
            self.failed.set_exception(bug)
            self.failed.exception()  # retrieved: perhaps no task waits
