"""Work for a stream that goes on while Spark processes a batch.

    commit ──► consume the messages of the batch before        (if they leave the queue)
    partitions ──► reserve the messages of the next batch      (of shared readers with a backlog)

Spark calls its reader between two batches, and no row is processed before the answer.  Both works
may be interrupted at any time: the next consumption begins where one ended, and a request that
names the same start finds a reservation again.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")

Forgives = Callable[[BaseException], bool]


def _never(failure: BaseException) -> bool:
    return False


class Behind:
    """Works in one thread, one after the other."""

    def __init__(self) -> None:
        self._thread: ThreadPoolExecutor | None = None
        self._begun: list[tuple[Future[object], Forgives]] = []

    def start(self, work: Callable[[], T], forgives: Forgives = _never) -> Future[T]:
        """Begin a work; `forgives` is called by `wait` with its error, and may excuse it."""
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, "qmd-behind")
        found = self._thread.submit(work)
        self._begun.append((found, forgives))  # type: ignore[arg-type]
        return found

    def wait(self) -> None:
        """Wait until all works have ended.  Raises the first error that is not excused."""
        begun, self._begun = self._begun, []
        failures = [(one.exception(), forgives) for one, forgives in begun]
        for failure, forgives in failures:
            if failure is not None and not forgives(failure):
                raise failure

    def close(self) -> None:
        """Wait until all works have ended, also if they failed."""
        self._begun = []
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.shutdown()
