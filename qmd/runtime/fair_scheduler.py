"""Whose turn it is: many want the event loop, and none of them may keep it.

Who asks for little, and is known for it, goes first.  Who is new, and who has more than a turn is
enough for or sends what is in vain, shares small pieces of time behind all others: as long as
somebody asks for little, a fifth of it, and otherwise all that there is.  What floods bring waits
for the commits of others, or shortly for one of its own, for a commit holds up everybody who comes
behind it, and a busy event loop keeps the thread that commits from its work.  (As fq_codel does
with packets, RFC 8290.)

    strangers ──► a piece ──► known ──► light ──► a turn ──► (is there more?) ──┐
                                                                                ▼
                                            heavy ──► a piece ──► (is there more?) ──┐
                                              ▲                                      │
                                              └──────────────────────────────────────┘

Time is CPU time of this thread: when others have the processor, nobody here has used up his turn.
"""

from __future__ import annotations

from collections import deque
from enum import Enum
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from qmd.runtime.services import Services

LIGHT_S = 0.002  # in one turn of the loop, for all who ask for little
READING_S = 0.0005  # likewise for parts of packets, which nobody waits for yet
READERS = 2  # of those that had to wait, in one turn
PIECE_S = 0.0003  # likewise for strangers and those who have more
REST = 4  # times as long as a piece took nobody of those has another one, while others ask
REST_MIN_S = 0.001  # a shorter timer is none
ACTIVE_S = 0.05  # for which who asked for little may ask again soon
# What those who have more may have waiting for a commit of others before they wait for it.  A row
# takes 10 µs, which is what others wait longer for their commit.
PATIENT_ROWS = 128
DISK_WAITS_MAX = 4  # commits that those who have more wait for, if there is always another one
SHARED_PACKETS = 256  # of all who wait and ask for little, in one turn


class Class(Enum):
    """Of those who wait for a turn."""

    LIGHT = 1
    READER = 2  # in the middle of a large packet, for which there was no time to be read on
    STRANGER = 3
    HEAVY = 4


class Member(Protocol):
    """Who takes turns."""

    def take_turn(self, now: float, packets_max: int) -> None:
        """Do some of what waits; then wait again, if there is more."""


class Light:
    """When somebody was last served who asks for little, of whatever kind."""

    def __init__(self) -> None:
        self.at = float("-inf")  # by the loop's clock


class Turns:
    """Who waits for a turn.  A member waits once at most, and may have gone meanwhile."""

    def __init__(self, services: Services, light: Light, *, beside_the_disk: bool) -> None:
        """`beside_the_disk`: those who have more need not wait until it has nothing to do, nor
        until others have rested."""
        self._services = services
        self._beside_the_disk = beside_the_disk
        self._last = light
        self._light: deque[Member] = deque()
        self._readers: deque[Member] = deque()
        self._strangers: deque[Member] = deque()
        self._heavy: deque[Member] = deque()
        #: Of the turn of the loop.  Its clock would not do: whoever sets a timer moves that on.
        self.serial = 0
        self._spent_s = 0.0  # in it
        self._due = False
        self._asked = False  # the disk, when its commit has returned
        self._waits = 0  # commits since those who have more had their last turn
        self._rest_until = 0.0  # no piece of time before that
        self._resting = False  # a timer runs
        self._stranger_is_next = True

    def has_time(self) -> bool:
        """Whether somebody who asks for little may have it at once."""
        self._last.at = self._services.loop.time()
        self._run_soon()  # when the next turn begins
        return self._spent_s < LIGHT_S

    def has_time_to_read(self) -> bool:
        """Whether somebody may read on in the middle of a packet."""
        self._run_soon()
        return self._spent_s < READING_S

    def spend(self, seconds: float) -> None:
        self._spent_s += seconds

    def wait(self, member: Member, kind: Class) -> None:
        if kind is Class.LIGHT:
            self._light.append(member)
        elif kind is Class.READER:
            self._readers.append(member)
        elif kind is Class.STRANGER:
            self._strangers.append(member)
        else:
            self._heavy.append(member)
        self._plan()

    @property
    def _is_shared(self) -> bool:
        """Whether somebody who asks for little was here just now, and may come again."""
        return self._services.loop.time() - self._last.at < ACTIVE_S and not self._beside_the_disk

    def _plan(self) -> None:
        if self._light or self._readers:
            self._run_soon()
        elif not (self._strangers or self._heavy):
            return
        elif (rest_s := self._rest_until - self._services.loop.time()) > 0 and self._is_shared:
            if not self._resting:
                self._resting = True
                self._services.loop.call_later(max(rest_s, REST_MIN_S), self._rested)
        elif self._strangers or self._may_have_more():
            self._run_soon()
        elif not self._asked:
            self._asked = True
            with self._services.storage.patience(self._is_shared):
                self._services.storage.batch.when_durable(self._told)

    def _run_soon(self) -> None:
        if not self._due:
            self._due = True
            self._services.loop.call_soon(self._run)

    def _rested(self) -> None:
        self._resting = False
        self._plan()

    def _may_have_more(self) -> bool:
        return not self._asked and (
            self._beside_the_disk
            or self._services.storage.pressure < (PATIENT_ROWS if self._is_shared else 1)
            or self._waits >= DISK_WAITS_MAX
        )

    def _told(self) -> None:
        self._asked = False
        self._waits += 1
        self._plan()

    def _run(self) -> None:
        self._due = False
        self.serial += 1
        self._spent_s = 0.0
        if not (self._light or self._readers or self._strangers or self._heavy):
            return
        now = self._services.loop.time()
        if self._light:
            self._serve_light(now)
        for _ in range(min(READERS, len(self._readers))):
            self._readers.popleft().take_turn(now, SHARED_PACKETS)
        if (self._strangers or self._heavy) and (now >= self._rest_until or not self._is_shared):
            self._serve_the_others(now)
        self._plan()

    def _serve_light(self, now: float) -> None:
        light, busy_time = self._light, self._services.environment.busy_time
        packets_max = max(SHARED_PACKETS // (len(light) or 1), 1)
        began_s = busy_time()
        for _ in range(len(light)):
            light.popleft().take_turn(now, packets_max)
            self._spent_s = max(self._spent_s, busy_time() - began_s)
            if self._spent_s >= LIGHT_S:
                break

    def _serve_the_others(self, now: float) -> None:
        """A piece of time, by turns for those who are new and those who have more."""
        strangers, heavy, busy_time = (
            self._strangers,
            self._heavy,
            self._services.environment.busy_time,
        )
        may_have_more = bool(heavy) and self._may_have_more()
        began_s = busy_time()
        with self._services.storage.patience(self._is_shared):
            for _ in range(len(strangers) + (len(heavy) if may_have_more else 0)):
                if strangers and (self._stranger_is_next or not (heavy and may_have_more)):
                    self._stranger_is_next = False
                    strangers.popleft().take_turn(now, SHARED_PACKETS)
                elif heavy and may_have_more:
                    self._stranger_is_next, self._waits = True, 0
                    heavy.popleft().take_turn(now, SHARED_PACKETS)
                if busy_time() - began_s >= PIECE_S:
                    break
        self._rest_until = self._services.loop.time() + REST * (busy_time() - began_s)
