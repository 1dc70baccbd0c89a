"""Whose turn it is: many want the event loop, and none of them may keep it.

Who asks for little goes first.  Who has more than a turn is enough for goes on behind all others,
in a circle, and only when the disk has nothing to do: what it brings is committed for everybody who
waits, and a busy event loop keeps the thread that commits from its work.  (As fq_codel does with
packets, RFC 8290.)

    light ──► a turn ──► (is there more?) ──► heavy ──► a turn ──► (is there more?) ──┐
                                                ▲                                     │
                                                └─────────────────────────────────────┘

Time is CPU time of this thread: when others have the processor, nobody here has used up his turn.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from qmd.manager import QueueManager

LIGHT_S = 0.004  # in one turn of the loop, for all who ask for little
HEAVY_S = 0.001  # likewise for all who have more
DISK_WAITS_MAX = 4  # commits that those who have more wait for, if there is always another one
SHARED_PACKETS = 256  # of all who wait and ask for little, in one turn


class Member(Protocol):
    """Who takes turns."""

    def take_turn(self, now: float, packets_max: int) -> None:
        """Do some of what waits; then wait again, if there is more."""


class Turns:
    """Who waits for a turn.  A member waits once at most, and may have gone meanwhile."""

    def __init__(self, manager: QueueManager, *, beside_the_disk: bool) -> None:
        """`beside_the_disk`: those who have more need not wait until it has nothing to do."""
        self._manager = manager
        self._beside_the_disk = beside_the_disk
        self._light: deque[Member] = deque()
        self._heavy: deque[Member] = deque()
        #: Of the turn of the loop.  Its clock would not do: whoever sets a timer moves that on.
        self.serial = 0
        self._spent_s = 0.0  # in it
        self._due = False
        self._asked = False  # the disk, when its commit has returned
        self._waits = 0  # commits since those who have more had their last turn

    def has_time(self) -> bool:
        """Whether somebody who asks for little may have it at once."""
        self._run_soon()  # when the next turn begins
        return self._spent_s < LIGHT_S

    def spend(self, seconds: float) -> None:
        self._spent_s += seconds

    def wait(self, member: Member, *, heavy: bool) -> None:
        (self._heavy if heavy else self._light).append(member)
        self._plan()

    def _plan(self) -> None:
        if self._light:
            self._run_soon()
        elif self._heavy and not self._asked:
            if self._may_have_more():
                self._run_soon()
            else:
                self._asked = True
                self._manager.storage.batch.when_durable(self._told)

    def _run_soon(self) -> None:
        if not self._due:
            self._due = True
            self._manager.loop.call_soon(self._run)

    def _may_have_more(self) -> bool:
        return (
            self._beside_the_disk
            or self._manager.storage.pressure == 0
            or self._waits >= DISK_WAITS_MAX
        )

    def _told(self) -> None:
        self._asked = False
        self._waits += 1
        self._run_soon()

    def _run(self) -> None:
        self._due = False
        self.serial += 1
        self._spent_s = 0.0
        if not (self._light or self._heavy):
            return
        now = self._manager.loop.time()
        light = self._light
        packets_max = max(SHARED_PACKETS // (len(light) or 1), 1)
        for _ in range(len(light)):
            light.popleft().take_turn(now, packets_max)
            if self._spent_s >= LIGHT_S:
                break
        heavy = self._heavy
        if heavy and not self._asked and self._may_have_more():
            self._waits = 0
            busy_time = self._manager.environment.busy_time
            end = busy_time() + HEAVY_S
            for _ in range(len(heavy)):
                heavy.popleft().take_turn(now, SHARED_PACKETS)
                if busy_time() >= end:
                    break
        self._plan()
