"""Retry times of connection attempts, and the states of an outgoing queue.

[MS-MQQB] 3.1.2.3 waits the same time after each failure. Here the wait doubles up to a limit, so
that a peer that is unreachable for days costs little.
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
    """The result of an attempt, or of successive attempts with the same result.

    Times are of the clock of `now`.
    """

    at: float
    result: str
    address: str = ""  # the address that was tried
    times: int = 1
    first_at: float | None = None  # time of the first one, if there were several


class Retry:
    """Back-off for one address.

    An attempt succeeds when the session is open. It fails when there will be no session: a peer
    that accepts the connection and then refuses the session counts as a failure.
    """

    def __init__(self, *, first_s: float = RETRY_FIRST_S, max_s: float = RETRY_MAX_S) -> None:
        assert 0 < first_s <= max_s
        self.next_attempt = 0.0  # earliest time; a past time means at once
        self.usual_attempt = 0.0  # the same without a longer pause
        self.failures = 0  # successive failures
        self.history: deque[Attempt] = deque(maxlen=HISTORY_ATTEMPTS_MAX)
        self._first_s = first_s
        self._max_s = max_s
        self._wait_s = first_s

    def failed(
        self, now: float, result: str, address: str = "", *, pause_min_s: float = 0.0
    ) -> None:
        """Record that no session was opened, or that it ended; `result` is for people.

        `pause_min_s` is a longer pause, if the attempt was for acknowledgments only.
        """
        self._note(now, result, address)
        self.failures += 1
        self.usual_attempt = now + self._wait_s
        self.next_attempt = now + max(self._wait_s, pause_min_s)
        self._wait_s = min(self._wait_s * FACTOR, self._max_s)

    def succeeded(self, now: float, address: str = "") -> None:
        """Record that the session is open."""
        self._note(now, CONNECTED, address)
        self.failures = 0
        self.next_attempt = self.usual_attempt = now
        self._wait_s = self._first_s

    def noted(self, now: float, result: str, address: str = "") -> None:
        """Record a result that does not change the next attempt."""
        self._note(now, result, address)

    def kick(self, now: float) -> None:
        """Allow an attempt now, and restart the back-off at its first interval."""
        self.next_attempt = self.usual_attempt = now
        self._wait_s = self._first_s

    def _note(self, now: float, result: str, address: str) -> None:
        """Add to the history, and merge equal successive results.

        A peer that is unreachable for days would otherwise displace the earlier history.
        """
        if self.history and self.history[-1][1:3] == (result, address):
            last = self.history.pop()
            first_at = last.at if last.first_at is None else last.first_at
            self.history.append(Attempt(now, result, address, last.times + 1, first_at))
        else:
            self.history.append(Attempt(now, result, address))


class QueueState(Enum):
    """State of an outgoing queue. [MS-MQDMPR] 3.1.1.2 State"""

    INACTIVE = "inactive"
    WAITING = "waiting"
    CONNECTED = "connected"
    PAUSED = "paused"

    @property
    def description(self) -> str:
        """A sentence that describes the state, for people."""
        return _DESCRIPTIONS[self]


_DESCRIPTIONS = {
    QueueState.INACTIVE: "Nothing waits to be sent, and there is no session.",
    QueueState.WAITING: "Messages wait until a session with the destination can be opened.",
    QueueState.CONNECTED: "A session with the destination is open, and messages are sent over it.",
    QueueState.PAUSED: "An operator has paused the queue: messages are kept and none is sent.",
}
