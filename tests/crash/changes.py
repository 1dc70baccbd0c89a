"""What tests change about a daemon, in its own process and before it starts."""

from __future__ import annotations

import os
import time
from pathlib import Path

import qmd.daemon
import qmd.reaper
from qmd.environment import Environment

CLOCK_RATE = 20
CLOCK_ORIGIN = "TEST_CLOCK_ORIGIN"  # seconds since 1970, the same for all daemons of a test


class Hurried(Environment):
    """A wall clock that runs twenty times as fast, and on through restarts."""

    def time(self) -> float:
        origin = float(os.environ[CLOCK_ORIGIN])
        return origin + (time.time() - origin) * CLOCK_RATE


def hurry() -> None:
    """What expires within a second is over in a twentieth of it."""
    qmd.daemon.Environment = Hurried  # type: ignore[misc]
    qmd.reaper.INTERVAL_S = 0.01  # type: ignore[misc]


def trust_the_log() -> None:
    """Leave out the remedy for failed syncs: the write-ahead log is not written again."""
    from storage import disk

    def only_look(path: Path) -> int:
        return path.stat().st_size if path.exists() else 0

    disk.rewrite_log = only_look
