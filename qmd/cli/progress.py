"""A progress bar on standard error, with the time that is left; it appears after one second."""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from qmd.cli.configuration import Configuration

if TYPE_CHECKING:
    from qmd.client import Choice, QueueManager

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

    @property
    def done(self) -> int:
        """How much was done so far."""
        return self._done

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


def expected(
    configuration: Configuration, queues: Sequence[str], choice: Choice, limit: int | None = None
) -> int | None:
    """Return how many messages an operation on all messages of queues has; None: only some."""
    from qmd.control_protocol.messages import EVERY_MESSAGE

    if choice != EVERY_MESSAGE:
        return None

    async def present(qm: QueueManager) -> int:
        return sum([int((await qm.show_queue(each))["messages"]) for each in queues])

    count = configuration.ask(present)
    return count if limit is None else min(count, limit)


@contextmanager
def backlog(label: str, length: int | None, done: str, *, enabled: bool) -> Iterator[Progress]:
    """Show the progress of an operation on many messages that is done in steps.

    After Ctrl-C, say how many messages are `done`: each step is complete or has not happened.
    """
    progress = Progress(label, length, enabled=enabled)
    try:
        yield progress
    except KeyboardInterrupt:
        progress.finish()
        click.echo(
            f"interrupted: at least {progress.done} messages were {done}, with the step that was"
            " under way perhaps more; the others are unchanged, and the same command continues with"
            " them",
            err=True,
        )
        raise
    finally:
        progress.finish()
