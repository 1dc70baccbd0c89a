"""Due times of delayed messages, on two clocks.

A message with an absolute time is due by the wall clock: if that is set, the message follows it.
A message with a delay is due by the queue manager's own clock, which is never set, so its delay
neither grows nor shrinks when the computer's clock is set.  docs/delayed.md
"""

from __future__ import annotations

from typing import NamedTuple

WALL, OWN = 0, 1


class Now(NamedTuple):
    """The present time by both clocks, in milliseconds since 1970."""

    wall_ms: int
    own_ms: int


class Due(NamedTuple):
    """The time from which on a message may be delivered, in milliseconds by one of the clocks."""

    clock: int
    at_ms: int

    def wall_ms(self, now: Now) -> int:
        """Return the time by the wall clock, as that is now."""
        return self.at_ms if self.clock == WALL else self.at_ms - now.own_ms + now.wall_ms


def due_of(deliver_at_ms: int, delay_ms: int, now: Now) -> Due | None:
    """Return the due time of a message that is sent now; None: it is due at once.

    Of `deliver_at_ms` (wall clock) and `delay_ms`, one is 0.
    """
    if delay_ms > 0:
        return Due(OWN, now.own_ms + delay_ms)
    if deliver_at_ms > now.wall_ms:
        return Due(WALL, deliver_at_ms)
    return None


def wait_s(next_wall_ms: int | None, next_own_ms: int | None, now: Now) -> float | None:
    """Return the seconds until the first of two due times; None: nothing is delayed."""
    waits = []
    if next_wall_ms is not None:
        waits.append(next_wall_ms - now.wall_ms)
    if next_own_ms is not None:
        waits.append(next_own_ms - now.own_ms)
    return max(min(waits), 0) / 1000 if waits else None
