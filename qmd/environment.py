"""What the daemon gets from its surroundings, so that a simulator can stand in for them.

Durations are measured with the event loop's clock (`loop.time()`), which only
moves forward.  The wall clock here is for times that leave the process: the
sent time of a message, the arrival time shown to a person.  The two are never
compared with each other.
"""

from __future__ import annotations

import os
import time


class Environment:
    """The real surroundings."""

    def time(self) -> float:
        """Seconds since 1970 UTC; may jump."""
        return time.time()

    def urandom(self, size: int) -> bytes:
        return os.urandom(size)
