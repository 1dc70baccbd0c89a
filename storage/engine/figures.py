"""Figures of the writer: how long commits and checkpoints take, and the size of the log."""

from __future__ import annotations

import sqlite3
from typing import TYPE_CHECKING

from storage.engine.histogram import Example, Histogram

if TYPE_CHECKING:
    from storage.engine.batch import Batch
    from storage.engine.disk import LogFile

SQLITE_VERSION = sqlite3.sqlite_version

#: Bounds in seconds: a commit takes from 0.1 ms on a fast disk to seconds on a failing one.
COMMIT_BOUNDS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
CHECKPOINT_BOUNDS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)


class WriterFigures:
    """The times of commits and checkpoints since the start, in seconds."""

    def __init__(self, log: LogFile) -> None:
        self.commits = Histogram(COMMIT_BOUNDS_S)
        self.checkpoints = Histogram(CHECKPOINT_BOUNDS_S)
        self._log = log

    def committed(self, took_s: float, batch: Batch) -> None:
        """Count a commit; a message of its batch is the example of its duration."""
        index = self.commits.add(took_s)
        event = batch.first_event
        if event is not None and event.numbers:
            self.commits.examples[index] = Example(took_s, event.source, event.numbers[0])

    @property
    def log_bytes(self) -> int:
        """The size of the write-ahead log, in bytes; 0 if that is unknown."""
        try:
            return self._log.size()
        except OSError:
            return 0
