"""The queue manager's own clock, used for all lifetimes of messages.

The wall clock can be set, and a monotonic clock restarts with the computer. This clock does
neither: it started as the wall clock at the first start, advances with the time since boot (which
includes suspended time), and continues after a restart. The downtime of the queue manager is taken

    from the same clock, if the computer was not restarted meanwhile;
    from the wall clock, if that moved forward by no more than `[delivery] downtime_max`;
    as zero otherwise: a message may expire late, but never too early.

Deadlines therefore need no adjustment: a change of the wall clock makes no message expire early and
keeps none for ever. Deadlines are seconds on this clock, and have no meaning outside this queue
manager.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import structlog

from storage.tables import clock as clock_rows
from storage.tables.clock import ClockRow

if TYPE_CHECKING:
    from qmd.runtime.environment import Environment
    from storage import Storage

log = structlog.get_logger()

SAVED_S = 60.0  # maximum age of the stored time while a deadline depends on it
SAVED_WITH_OTHERS_S = 10.0  # the same, when there is a commit anyway
TIMER_S = 0.002
STEP_S = 2.0  # deviation of the wall clock that is not logged


class Clock:
    """Clock of one queue manager; it runs after `start`."""

    def __init__(
        self, environment: Environment, storage: Storage, *, downtime_max_s: float
    ) -> None:
        self._environment = environment
        self._storage = storage
        self._downtime_max_s = downtime_max_s
        self._boot = environment.boot_id()
        self._ahead_s = 0.0  # relative to the time since boot
        self._wall_ahead_s = 0.0  # relative to this clock, at the last check
        self._saved_at = 0.0
        self.when_set: Callable[[], None] = lambda: None  # called when the wall clock was set

    async def start(self) -> None:
        """Continue from the stored time of the last run. Raises StorageError."""
        row = await self._storage.read(clock_rows.read)
        boot_s = self._environment.boot_time()
        self._ahead_s = self._time_now(row, boot_s) - boot_s
        self._wall_ahead_s = self._environment.time() - self.now
        await self._save()

    def _time_now(self, row: ClockRow | None, boot_s: float) -> float:
        wall = self._environment.time()
        if row is None:
            return wall
        at = row.at_ms / 1000
        if row.boot == self._boot and boot_s >= row.boot_ms / 1000:
            return at + boot_s - row.boot_ms / 1000
        downtime_s = wall - row.wall_ms / 1000
        if 0 <= downtime_s <= self._downtime_max_s:
            return at + downtime_s
        log.warning(
            "downtime_not_counted",
            wall_clock_moved_s=round(downtime_s),
            reason="after the restart of the computer its clock shows a downtime of the queue"
            " manager that is impossible, or longer than [delivery] downtime_max: lifetimes"
            " of messages continue without it",
        )
        return at

    @property
    def now(self) -> float:
        return self._environment.boot_time() + self._ahead_s

    @property
    def now_s(self) -> int:
        """The current time in whole seconds."""
        return int(self._environment.boot_time() + self._ahead_s)

    @property
    def next_second_in_s(self) -> float:
        """Seconds until the next second has begun, with a margin because timers may fire early."""
        return 1 - self.now % 1 + TIMER_S

    def deadline_s(self, time_left_s: int | None) -> int | None:
        """Return the last second of a lifetime of `time_left_s` seconds; None: no limit.

        Call this in the same turn of the event loop in which the result goes into the open batch:
        the batch then also stores the current time, so that a crash cannot lengthen the lifetime.
        """
        if time_left_s is None:
            return None
        now = self.now
        if now - self._saved_at > SAVED_WITH_OTHERS_S:
            self.save()
        return int(now) + time_left_s

    def compare(self, wall_s: int, now_s: int) -> None:
        """Compare the wall clock with this clock, and check for a step if they diverge.

        Callers that read both clocks may be the first to detect that the wall clock was set.
        """
        if abs(wall_s - now_s - self._wall_ahead_s) > STEP_S + 1:  # fractions are cut off
            self.look(is_needed=True)

    def save(self) -> None:
        """Store the current time with the open batch."""
        self._save()

    def look(self, *, is_needed: bool) -> None:
        """Check whether the wall clock was set, and whether the current time must be stored.

        `is_needed`: some message has a deadline.
        """
        now = self.now
        stepped_s = self._environment.time() - now - self._wall_ahead_s
        if abs(stepped_s) > STEP_S:
            self._wall_ahead_s += stepped_s
            log.warning(
                "clock_stepped",
                seconds=round(stepped_s, 1),
                reason="the computer's clock was set; times of messages are not affected",
            )
            self.save()  # the next start may have to use the wall clock
            self.when_set()
        elif is_needed and now - self._saved_at > SAVED_S:
            self.save()

    def _save(self) -> asyncio.Future[None]:
        boot_s = self._environment.boot_time()
        self._saved_at = boot_s + self._ahead_s
        row = ClockRow(
            at_ms=int(self._saved_at * 1000),
            wall_ms=int(self._environment.time() * 1000),
            boot_ms=int(boot_s * 1000),
            boot=self._boot,
        )
        return self._storage.batch.run(partial(clock_rows.write, row=row))
