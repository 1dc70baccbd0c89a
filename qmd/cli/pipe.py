"""The pipe of the standard output, and how much of it has been read."""

from __future__ import annotations

import array
import asyncio
import fcntl
import os
import select
import stat
import sys
import termios
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from qmd.cli.interrupt import Interrupt

PAUSE_STEP_S, PAUSE_MAX_S = 0.00005, 0.02  # between two checks of how much is read


class Pipe:
    """The writing end of a pipe."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._poll = select.poll()
        self._poll.register(descriptor, 0)

    @classmethod
    def of_output(cls) -> Pipe | None:
        """Return the pipe, or None when the standard output is not a pipe."""
        try:
            descriptor = sys.stdout.fileno()
        except OSError:  # a stream in memory
            return None
        return cls(descriptor) if stat.S_ISFIFO(os.fstat(descriptor).st_mode) else None

    def has_ended(self) -> bool:
        """Return whether its reader has ended."""
        return any(events & select.POLLERR for _, events in self._poll.poll(0))

    async def emptied(self, interrupt: Interrupt) -> bool:
        """Wait until everything is read; return False when the reader ended before.

        An interrupt ends the wait: printed messages then stay in the pipe for a reader that still
        runs.
        """
        pause_s = 0.0
        while self._unread_bytes():
            if self.has_ended():
                # It may have read everything between the two checks.
                return not self._unread_bytes()
            if interrupt:
                return True
            await asyncio.sleep(pause_s)
            pause_s = min(PAUSE_MAX_S, pause_s + PAUSE_STEP_S)
        return True

    def _unread_bytes(self) -> int:
        unread = array.array("i", [0])
        fcntl.ioctl(self._descriptor, termios.FIONREAD, unread)
        return unread[0]
