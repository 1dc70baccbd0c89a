"""The queue manager's own clock, by which messages live.

The wall clock may be set, and a monotonic one begins anew with the computer.  This one does
neither: it began as the wall clock at the first start, advances with the time since the computer
was started (which counts its sleep as well), and goes on after a restart.  How long the queue
manager was down, it knows

    from the same clock, where the computer ran all the while;
    from the wall clock, where that moved forward by no more than `[delivery] downtime_max`;
    else it does not know, and the time is not counted: rather late than lost.

So deadlines, once given, need no care: nothing ends early, and nothing is kept for ever, because
somebody has corrected the time.  They are numbers of seconds on this clock, and mean nothing to
anybody else.
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

SAVED_S = 60.0  # what is on disk is not further behind where something depends on it
SAVED_WITH_OTHERS_S = 10.0  # where there is a commit anyway
TIMER_S = 0.002
STEP_S = 2.0  # by so much the wall clock may err without a word


class Clock:
    """`start` it; then it goes."""

    def __init__(
        self, environment: Environment, storage: Storage, *, downtime_max_s: float
    ) -> None:
        self._environment = environment
        self._storage = storage
        self._downtime_max_s = downtime_max_s
        self._boot = environment.boot_id()
        self._ahead_s = 0.0  # of the time since the computer was started
        self._wall_ahead_s = 0.0  # of this clock, when we last looked
        self._saved_at = 0.0
        self.when_set: Callable[[], None] = lambda: None  # somebody has set the wall clock

    async def start(self) -> None:
        """Go on where the last run has stopped.  Raises StorageError."""
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
            reason="since the computer was started anew its clock says that the queue manager was"
            " down for a time that cannot be or is longer than [delivery] downtime_max: times of"
            " messages go on where they stood",
        )
        return at

    @property
    def now(self) -> float:
        return self._environment.boot_time() + self._ahead_s

    @property
    def now_s(self) -> int:
        """The second that it is."""
        return int(self._environment.boot_time() + self._ahead_s)

    @property
    def next_second_in_s(self) -> float:
        """Not before: a timer may be a little early."""
        return 1 - self.now % 1 + TIMER_S

    def deadline_s(self, time_left_s: int | None) -> int | None:
        """The last second of a life that has so much left; None: it has no end.

        Ask in the turn of the loop in which the answer goes into the open batch: what the disk
        knows of this clock goes with it, so that a crash cannot lengthen that life.
        """
        if time_left_s is None:
            return None
        now = self.now
        if now - self._saved_at > SAVED_WITH_OTHERS_S:
            self.save()
        return int(now) + time_left_s

    def compare(self, wall_s: int, now_s: int) -> None:
        """Whoever goes by both clocks may be the first to see that one was set."""
        if abs(wall_s - now_s - self._wall_ahead_s) > STEP_S + 1:  # fractions are cut off
            self.look(is_needed=True)

    def save(self) -> None:
        """With the open batch."""
        self._save()

    def look(self, *, is_needed: bool) -> None:
        """Now and then: whether the wall clock was set, and whether the disk should be told.

        `is_needed`: something has a deadline.
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
            self.save()  # the next start may have to count by the wall clock
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
