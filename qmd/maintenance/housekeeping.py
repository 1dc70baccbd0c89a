"""Housekeeping: tasks that can wait; a failed one is logged and retried, and stops nothing else.

Only a failure that endangers messages may stop the daemon.  A failed storage stops it by itself
(`Storage.failed`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

import structlog

from storage.errors import StorageError, StoredError

if TYPE_CHECKING:
    from qmd.runtime.services import Services

log = structlog.get_logger()

T = TypeVar("T")

#: Failures of the environment, not of qmd.
PASSING = (StoredError, StorageError, OSError, MemoryError)
LOGGED_S = 60.0  # between two lines of the log for a task that fails repeatedly


class Housekeeping:
    """The housekeeping of one queue manager."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._logged_at: dict[str, float] = {}
        #: The reason of the last failure of each failing task, by its name.
        self.failing: dict[str, str] = {}

    async def attempt(
        self, name: str, act: Callable[[], Awaitable[T]], *, otherwise: T, is_strict: bool = False
    ) -> T:
        """Return the result of `act`, or `otherwise` if it fails.

        `is_strict` is for tasks that end messages: an unexpected error in one is raised, because
        memory and disk may disagree from then on.

        Raises StorageError if the storage has failed.
        """
        try:
            result = await act()
        except PASSING as error:
            if self._services.storage.failed.done():
                raise
            self._failed(name, error, is_bug=False)
            return otherwise
        except Exception as bug:
            if is_strict or not self._services.environment.forgives_bugs:
                raise
            self._failed(name, bug, is_bug=True)
            return otherwise
        if self.failing.pop(name, None) is not None:
            self._logged_at.pop(name, None)
            log.info("housekeeping_done", act=name, reason="it had failed before")
        return result

    def _failed(self, name: str, error: Exception, *, is_bug: bool) -> None:
        self.failing[name] = str(error) or type(error).__name__
        now = self._services.loop.time()
        if now - self._logged_at.get(name, float("-inf")) < LOGGED_S:
            return
        self._logged_at[name] = now
        log.error(
            "housekeeping_failed",
            act=name,
            reason=self.failing[name],
            remedy="It is tried again; no message depends on it."
            + (" Report this: it is a defect of qmd." if is_bug else ""),
            exc_info=error if is_bug else None,
        )
