"""Fair scheduler: shares event-loop time between connections.

Trusted connections with little work (light) go first. Untrusted connections, and connections that
have more work than one turn allows or send useless packets (heavy), share small slices of time
after all others: a tenth of the time while light connections are active, otherwise all of it. So
do connections that read large packets, which has a tenth of its own. Heavy
connections also wait while many rows are not durable yet, for a limited number of commits. While
light connections are active, the changes of the others are not urgent: they join the next commit or
are committed shortly after. The reasons: a commit delays all work queued behind it, and a busy
event loop takes time from the thread that commits. (fq_codel does the same with packets, RFC 8290.)

    untrusted ──► a slice ──► trusted ──► light ──► a turn ──► (more work?) ──┐
                                                                              ▼
                                           heavy ──► a slice ──► (more work?) ──┐
                                             ▲                                  │
                                             └──────────────────────────────────┘

Time is CPU time of this thread, so that other processes on the processor do not use up a turn.
"""

from __future__ import annotations

from collections import deque
from enum import Enum
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Hashable

    from qmd.runtime.bulk_turns import BulkTurns, LargeExchange
    from qmd.runtime.services import Services

LIGHT_S = 0.002  # in one turn of the loop, for all light connections
READING_S = 0.0005  # the same for incomplete packets, which are less urgent
READING_SHARE = 0.1  # of the time, for more of them than `READING_S`, while others are active
INDIVISIBLE = 10  # weight of a read that takes longer than READING_S, and of a longer slice
INDIVISIBLE_REST_MAX_S = 0.4  # for which a slice with this weight rests
READERS = 2  # deferred readers served in one turn; one while others are active
SLICE_S = 0.0002  # duration of a slice for untrusted and heavy connections
LONG_SLICE_S = 0.001
REST = 9  # pause after a slice while light connections are active, as a multiple of its duration
REST_MIN_S = 0.001  # minimum duration of a timer
ACTIVE_S = 0.05  # a light connection counts as active for this time after its last work
# Rows that may wait for a commit of others before heavy connections have to wait for it. Each row
# delays that commit by 10 µs.
PATIENT_ROWS = 128
DISK_WAITS_MAX = 4  # limit of successive commits that heavy connections wait for
SHARED_PACKETS = 256  # for all waiting light connections, in one turn
SHARED_LEAST = 4  # of these for each of them: a turn costs as much as two packets
TIMED_MEMBERS = 4  # light connections between two readings of the clock: 2 µs, a system call


class Class(Enum):
    """Classes of connections that wait for a turn."""

    LIGHT = 1
    READER = 2  # has a large packet that is partly read, and had no time to read on
    UNTRUSTED = 3
    HEAVY = 4
    BULK = 5  # has a large packet: qmd/runtime/bulk_turns.py


class Member(Protocol):
    """A connection that takes turns."""

    def take_turn(self, now: float, packets_max: int) -> None:
        """Process part of the pending work; call `wait` again if there is more."""


class Light:
    """Time of the last work of a light connection, shared by several schedulers."""

    def __init__(self) -> None:
        self.at = float("-inf")  # by the loop's clock


class FairScheduler:
    """The connections that wait for a turn.

    A member waits at most once, and may be closed meanwhile.
    """

    def __init__(
        self, services: Services, light: Light, bulk: BulkTurns, *, beside_the_disk: bool
    ) -> None:
        """Create a scheduler; `bulk` has the turns of large packets.

        `beside_the_disk`: heavy connections need not wait until the disk is idle, nor for the pause
        after a slice.
        """
        self._services = services
        self._beside_the_disk = beside_the_disk
        self._last = light
        self._bulk = bulk
        self._light: deque[Member] = deque()
        self._readers: deque[Member] = deque()
        self._untrusted: deque[Member] = deque()
        self._heavy: deque[Member] = deque()
        #: Number of the turn of the loop. The loop's clock would not do, because setting a timer
        #: advances it.
        self.serial = 0
        self._spent_s = 0.0  # in this turn
        self._due = False
        self._awaits_commit = False  # a callback for the next commit is registered
        self._waits = 0  # commits since the last turn of a heavy connection
        self._rest_until = 0.0  # no slice before this time
        self._resting = False  # a timer is running
        self._reading_s = 0.0  # of incomplete packets, which flows off with READING_SHARE
        self._reading_at = 0.0
        self._readers_rest = False  # a timer is running
        self._untrusted_is_next = True
        self._charged_s = 0.0  # work that the members of a slice have started

    def has_time(self, large: LargeExchange) -> bool:
        """Return whether a light connection may be served at once.

        `large`: the large packets that it exchanges. They rest for others, and not for what follows
        from themselves.
        """
        now = self._services.loop.time()
        if not large.explains(now):
            self._last.at = now
        self._run_soon()  # starts the next turn
        return self._spent_s < LIGHT_S

    def has_time_to_read(self) -> bool:
        """Return whether a connection may read on in the middle of a packet."""
        self._run_soon()
        return self._spent_s < READING_S and self._readers_rest_s(self._services.loop.time()) <= 0

    @property
    def now(self) -> float:
        """The time of the loop."""
        return self._services.loop.time()

    def spend(self, seconds: float) -> None:
        """Count time that was used in this turn of the loop."""
        self._spent_s += seconds

    def charge(self, seconds: float) -> None:
        """Count time that a slice of untrusted and heavy connections will use after it."""
        self._charged_s += seconds

    def spend_reading(self, seconds: float) -> None:
        """Count time that was used in this turn of the loop to read a part of a packet."""
        self._spent_s += seconds
        if seconds > READING_S:
            seconds *= INDIVISIBLE  # all others had to wait for it
        now = self._services.loop.time()
        flown_s = READING_SHARE * (now - self._reading_at)
        self._reading_s = max(self._reading_s - flown_s, 0.0) + seconds
        self._reading_at = now

    def wait(self, member: Member, kind: Class, owner: Hashable = None) -> None:
        """Queue a member; its `take_turn` is called when it is its turn.

        Members with large packets take turns by their `owner`.
        """
        if kind is Class.BULK:
            self._bulk.wait(member, owner)
            return
        if kind is Class.LIGHT:
            self._light.append(member)
        elif kind is Class.READER:
            self._readers.append(member)
        elif kind is Class.UNTRUSTED:
            self._untrusted.append(member)
        else:
            self._heavy.append(member)
        self._plan()

    @property
    def is_shared(self) -> bool:
        """Whether a light connection was active recently, and may soon have work again."""
        return self._services.loop.time() - self._last.at < ACTIVE_S and not self._beside_the_disk

    def _readers_rest_s(self, now: float) -> float:
        """Return for how long no connection may read on in the middle of a packet."""
        if not self.is_shared:
            return 0.0
        return (self._reading_s - READING_S) / READING_SHARE - (now - self._reading_at)

    def _plan(self) -> None:
        if self._light:
            self._run_soon()
            return
        if self._readers and not self._readers_rest:
            rest_s = self._readers_rest_s(self._services.loop.time())
            if rest_s <= 0:
                self._run_soon()
                return
            self._readers_rest = True
            # The light connections may become idle before.
            self._services.loop.call_later(
                max(min(rest_s, ACTIVE_S), REST_MIN_S), self._readers_rested
            )
        if not (self._untrusted or self._heavy):
            return
        if (rest_s := self._rest_until - self._services.loop.time()) > 0 and self.is_shared:
            if not self._resting:
                self._resting = True
                self._services.loop.call_later(max(rest_s, REST_MIN_S), self._rested)
        elif self._untrusted or self._may_have_more():
            self._run_soon()
        elif not self._awaits_commit:
            self._awaits_commit = True
            with self._services.storage.patience(self.is_shared):
                self._services.storage.batch.when_durable(self._committed)

    def _run_soon(self) -> None:
        if not self._due:
            self._due = True
            self._services.loop.call_soon(self._run)

    def _rested(self) -> None:
        self._resting = False
        self._plan()

    def _readers_rested(self) -> None:
        self._readers_rest = False
        self._plan()

    def _may_have_more(self) -> bool:
        return not self._awaits_commit and (
            self._beside_the_disk
            or self._services.storage.pressure < (PATIENT_ROWS if self.is_shared else 1)
            or self._waits >= DISK_WAITS_MAX
        )

    def _committed(self) -> None:
        self._awaits_commit = False
        self._waits += 1
        self._plan()

    def _run(self) -> None:
        self._due = False
        self.serial += 1
        self._spent_s = 0.0
        if not (self._light or self._readers or self._untrusted or self._heavy):
            return
        now = self._services.loop.time()
        if self._light:
            self._serve_light(now)
        if self._readers and self._readers_rest_s(now) <= 0:
            for _ in range(min(1 if self.is_shared else READERS, len(self._readers))):
                self._readers.popleft().take_turn(now, SHARED_PACKETS)
        if (self._untrusted or self._heavy) and (now >= self._rest_until or not self.is_shared):
            self._serve_the_others(now)
        self._plan()

    def _serve_light(self, now: float) -> None:
        light, busy_time = self._light, self._services.environment.busy_time
        least = min(SHARED_LEAST, SHARED_PACKETS)
        packets_max = max(SHARED_PACKETS // (len(light) or 1), least)
        spent_s, began_s = self._spent_s, busy_time()
        for number in range(1, len(light) + 1):
            light.popleft().take_turn(now, packets_max)
            # Members with few packets count an estimate, which is mostly too long.
            if number % TIMED_MEMBERS == 0 or self._spent_s >= LIGHT_S:
                self._spent_s = spent_s + busy_time() - began_s
                if self._spent_s >= LIGHT_S:
                    break

    def _serve_the_others(self, now: float) -> None:
        """Serve a slice of time, alternating between untrusted and heavy connections."""
        untrusted, heavy, busy_time = (
            self._untrusted,
            self._heavy,
            self._services.environment.busy_time,
        )
        may_have_more = bool(heavy) and self._may_have_more()
        began_s = busy_time()
        with self._services.storage.patience(self.is_shared):
            for _ in range(len(untrusted) + (len(heavy) if may_have_more else 0)):
                if untrusted and (self._untrusted_is_next or not (heavy and may_have_more)):
                    self._untrusted_is_next = False
                    untrusted.popleft().take_turn(now, SHARED_PACKETS)
                elif heavy and may_have_more:
                    self._untrusted_is_next, self._waits = True, 0
                    heavy.popleft().take_turn(now, SHARED_PACKETS)
                if busy_time() - began_s + self._charged_s >= SLICE_S:
                    break
        took_s, self._charged_s = busy_time() - began_s + self._charged_s, 0.0
        rest_s = REST * took_s
        if took_s > LONG_SLICE_S:  # all others had to wait for one packet or request
            rest_s = max(rest_s, min(INDIVISIBLE * rest_s, INDIVISIBLE_REST_MAX_S))
        self._rest_until = self._services.loop.time() + rest_s
