"""When to try again to connect to an address, and where an outgoing queue stands.

[MS-MQQB] 3.1.2.3 waits the same time after each failure; here the wait doubles
up to a limit, so that a peer that is gone for days costs next to nothing.
"""

from __future__ import annotations

from collections import deque
from enum import Enum
from typing import NamedTuple

RETRY_FIRST_S = 5.0  # [MS-MQQB] 3.1.2.3, <45>
RETRY_MAX_S = 60.0
FACTOR = 2.0
HISTORY_ATTEMPTS_MAX = 20

CONNECTED = "connected"


class Attempt(NamedTuple):
    """How one attempt ended, or several that ended alike; times are of the clock of `now`."""

    at: float
    result: str
    address: str = ""  # where it led
    times: int = 1
    first_at: float | None = None  # of several


class Retry:
    """The back-off for one address.

    An attempt is over when the session is open, or when there will be none: a
    peer that takes the connection and then refuses the session is no success.
    """

    def __init__(self, *, first_s: float = RETRY_FIRST_S, max_s: float = RETRY_MAX_S) -> None:
        assert 0 < first_s <= max_s
        self.next_attempt = 0.0  # not before; the past means at once
        self.failures = 0  # one after another
        self.history: deque[Attempt] = deque(maxlen=HISTORY_ATTEMPTS_MAX)
        self._first_s = first_s
        self._max_s = max_s
        self._wait_s = first_s

    def failed(self, now: float, result: str, address: str = "") -> None:
        """No session came of it, or it has ended; `result` is a sentence for people."""
        self._note(now, result, address)
        self.failures += 1
        self.next_attempt = now + self._wait_s
        self._wait_s = min(self._wait_s * FACTOR, self._max_s)

    def succeeded(self, now: float, address: str = "") -> None:
        """The session is open."""
        self._note(now, CONNECTED, address)
        self.failures = 0
        self.next_attempt = now
        self._wait_s = self._first_s

    def noted(self, now: float, result: str, address: str = "") -> None:
        """Something to be told that changes nothing about the next attempt."""
        self._note(now, result, address)

    def kick(self, now: float) -> None:
        """Somebody wants it now; the next failure is waited for as after the first."""
        self.next_attempt = now
        self._wait_s = self._first_s

    def _note(self, now: float, result: str, address: str) -> None:
        """A peer that is gone for days must not push out what was before that."""
        if self.history and self.history[-1][1:3] == (result, address):
            last = self.history.pop()
            first_at = last.at if last.first_at is None else last.first_at
            self.history.append(Attempt(now, result, address, last.times + 1, first_at))
        else:
            self.history.append(Attempt(now, result, address))


class QueueState(Enum):
    """Where an outgoing queue stands.  [MS-MQDMPR] 3.1.1.2 State"""

    INACTIVE = "inactive"
    WAITING = "waiting"
    CONNECTED = "connected"
    PAUSED = "paused"

    @property
    def description(self) -> str:
        """One sentence for people."""
        return _DESCRIPTIONS[self]


_DESCRIPTIONS = {
    QueueState.INACTIVE: "Nothing waits to be sent, and there is no session.",
    QueueState.WAITING: "Messages wait until a session with the destination can be opened.",
    QueueState.CONNECTED: "A session with the destination is open, and messages are sent over it.",
    QueueState.PAUSED: "An operator has paused the queue: messages are kept and none is sent.",
}
