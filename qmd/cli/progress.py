"""A progress bar on standard error, which appears after one second."""

from __future__ import annotations

import itertools
import sys
import time
from typing import Any

import click

PATIENCE_S = 1.0


class Progress:
    """A progress bar; `length` is the expected count, or None if it is not known."""

    def __init__(self, label: str, length: int | None, *, enabled: bool) -> None:
        self._label = label
        self._length = length
        self._enabled = enabled and sys.stderr.isatty()
        self._started_at = time.monotonic()
        self._done = 0
        self._bar: Any = None

    def advance(self, count: int = 1) -> None:
        self._done += count
        if not self._enabled:
            return
        if self._bar is not None:
            self._bar.update(count)
        elif time.monotonic() - self._started_at > PATIENCE_S:
            self._bar = click.progressbar(
                itertools.count() if self._length is None else None,
                length=self._length,
                label=self._label,
                show_pos=True,
                file=sys.stderr,
                update_min_steps=100,
            )
            self._bar.__enter__()
            self._bar.update(self._done)

    def finish(self) -> None:
        if self._bar is not None:
            self._bar.__exit__(None, None, None)
