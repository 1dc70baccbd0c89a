"""Retry times of connection attempts, and the states of an outgoing queue.

[MS-MQQB] 3.1.2.3 waits the same time after each failure. Here the wait doubles up to a limit, so
that a peer that is unreachable for days costs little.
"""

from __future__ import annotations

from collections import deque
from enum import Enum
from typing import NamedTuple

from qmd.core.connection_status import ConnectionStatus, hresult

RETRY_FIRST_S = 5.0  # [MS-MQQB] 3.1.2.3, <45>
RETRY_MAX_S = 60.0
FACTOR = 2.0
NEVER = float("inf")
HISTORY_ATTEMPTS_MAX = 20

CONNECTED = "connected"
IN_PROCESS = "connecting"
ANSWERED = "the other queue manager has answered the connection request"
_STEPS = (ConnectionStatus.IN_PROCESS, ConnectionStatus.ESTABLISH_PACKET_RECEIVED)


class Attempt(NamedTuple):
    """The result of an attempt, or of successive attempts with the same result.

    Times are of the clock of `now`.  `status` and `error` are those of [MS-MQDMPR] 3.1.1.3.
    """

    at: float
    result: str
    address: str = ""  # the address that was tried
    times: int = 1
    first_at: float | None = None  # time of the first one, if there were several
    status: ConnectionStatus = ConnectionStatus.UNKNOWN_FAILURE
    error: int = hresult(ConnectionStatus.UNKNOWN_FAILURE)  # an HRESULT; 0: none


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

    def began(self, now: float, address: str = "") -> None:
        """Record that an attempt has begun.  [MS-MQQB] 3.1.5.2.3 InProcess"""
        self._end_steps()
        self._step(now, IN_PROCESS, address, ConnectionStatus.IN_PROCESS)

    def answered(self, now: float, address: str = "") -> None:
        """Record that the peer has answered the request.  [MS-MQQB] 3.1.5.3.2"""
        status = ConnectionStatus.ESTABLISH_PACKET_RECEIVED
        if not self.history or self.history[-1].status is not status:
            self._step(now, ANSWERED, address, status)

    def failed(
        self,
        now: float,
        result: str,
        address: str = "",
        *,
        pause_min_s: float = 0.0,
        pause_max_s: float = NEVER,
        status: ConnectionStatus = ConnectionStatus.UNKNOWN_FAILURE,
        error: int | None = None,
    ) -> None:
        """Record that no session was opened, or that it ended; `result` is for people.

        `pause_min_s` is a longer pause, if the attempt was for acknowledgments only, and
        `pause_max_s` a shorter one, if nothing answered.  `error` is an HRESULT; None: the usual
        one of `status`.
        """
        self._note(now, result, address, status, error)
        self.failures += 1
        # An operator that wants no attempt before `first_s` gets none.
        wait_s = min(self._wait_s, max(pause_max_s, self._first_s))
        self.usual_attempt = now + wait_s
        self.next_attempt = now + max(wait_s, pause_min_s)
        self._wait_s = min(self._wait_s * FACTOR, self._max_s)

    def succeeded(self, now: float, address: str = "", *, keeps_pause: bool = False) -> None:
        """Record that the session is open.

        With `keeps_pause` the pauses grow on if it ends: the last session was of no use.
        """
        self._note(now, CONNECTED, address, ConnectionStatus.ESTABLISHED)
        self.next_attempt = self.usual_attempt = now
        if not keeps_pause:
            self.proved_useful()

    def proved_useful(self) -> None:
        """Begin with the shortest pause after the next failure: the session was of use."""
        self.failures = 0
        self._wait_s = self._first_s

    def noted(
        self,
        now: float,
        result: str,
        address: str = "",
        *,
        status: ConnectionStatus = ConnectionStatus.UNKNOWN_FAILURE,
    ) -> None:
        """Record a result that does not change the next attempt."""
        self._note(now, result, address, status)

    def kick(self, now: float) -> None:
        """Allow an attempt now, and restart the back-off at its first interval."""
        self.next_attempt = self.usual_attempt = now
        self._wait_s = self._first_s

    @property
    def last(self) -> Attempt | None:
        """The last attempt that has ended, or None."""
        ended = (attempt for attempt in reversed(self.history) if attempt.status not in _STEPS)
        return next(ended, None)

    @property
    def step(self) -> Attempt | None:
        """The last step of the attempt that is under way, or None."""
        under_way = self.history and self.history[-1].status in _STEPS
        return self.history[-1] if under_way else None

    def _note(
        self,
        now: float,
        result: str,
        address: str,
        status: ConnectionStatus,
        error: int | None = None,
    ) -> None:
        """Add to the history, and merge equal successive results.

        A peer that is unreachable for days would otherwise displace the earlier history.  The steps
        of an attempt stay in the history only if it is the first one that led to a session.
        """
        error = hresult(status) if error is None else error
        steps = self._end_steps()
        if self.history and self.history[-1][1:3] == (result, address):
            last = self.history.pop()
            first_at = last.at if last.first_at is None else last.first_at
            self.history.append(
                Attempt(now, result, address, last.times + 1, first_at, status, error)
            )
            return
        if status is ConnectionStatus.ESTABLISHED:
            self.history.extend(steps)
        self.history.append(Attempt(now, result, address, status=status, error=error))

    def _step(self, now: float, result: str, address: str, status: ConnectionStatus) -> None:
        self.history.append(Attempt(now, result, address, status=status, error=hresult(status)))

    def _end_steps(self) -> list[Attempt]:
        """Remove the steps of the attempt that runs; return them."""
        steps: list[Attempt] = []
        while self.history and self.history[-1].status in _STEPS:
            steps.append(self.history.pop())
        return steps[::-1]


class QueueState(Enum):
    """State of an outgoing queue, with its name in MSMQ.

    [MS-MQDMPR] 3.1.1.3 State, [MS-MQMQ] 2.3.12.11.  LOCAL CONNECTION is missing: a queue of this
    computer has no outgoing queue.
    """

    INACTIVE = "inactive"
    WAITING = "waiting"
    NEED_VALIDATION = "need_validation"
    CONNECTED = "connected"
    DISCONNECTING = "disconnecting"
    DISCONNECTED = "disconnected"
    LOCKED = "locked"
    PAUSED = "paused"

    @property
    def description(self) -> str:
        """A sentence that describes the state, for people."""
        return _DESCRIPTIONS[self]

    @property
    def windows_name(self) -> str:
        """The name of the state in the management of MSMQ."""
        return "ONHOLD" if self is QueueState.PAUSED else self.name.replace("_", " ")


_DESCRIPTIONS = {
    QueueState.INACTIVE: "Nothing waits to be sent, and there is no session.",
    QueueState.WAITING: "Messages wait until a session with the destination can be opened.",
    QueueState.NEED_VALIDATION: "Messages wait until the address of the destination is found.",
    QueueState.CONNECTED: "A session with the destination is open, and messages are sent over it.",
    QueueState.DISCONNECTING: "The session with the destination ends, as this daemon stops.",
    QueueState.DISCONNECTED: "Nothing waits to be sent, and the last session has ended.",
    QueueState.LOCKED: "Messages wait, as the destination must use TLS and has not proven itself.",
    QueueState.PAUSED: "An operator has paused the queue: messages are kept and none is sent.",
}
