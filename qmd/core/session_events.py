"""What a session is made with, where it stands, what it tells its owner.  [MS-MQQB] 3.1.1.3.1"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from protocol import UserMessage

NEVER = float("inf")  # when a timer that is not running expires

# Counters have 16 bits on the wire.  With at most half of them in doubt, every number that a
# peer can mean lies either in the past or in the future, and never in both.
IN_DOUBT_MAX = 0x7FFF


class SessionState(Enum):
    """Where a session stands; the values are for people.  [MS-MQQB] 3.1.1.3.1 SessionState"""

    NEW = "not started"
    WAITING_EC = "waiting for a connection request"
    WAITING_ECR = "waiting for the answer to its connection request"
    WAITING_CP = "waiting for the connection parameters"
    WAITING_CPR = "waiting for the answer to its connection parameters"
    OPEN = "open"
    CLOSED = "closed"


@dataclass(frozen=True, slots=True)
class SessionSettings:
    """What a session is told before it starts; the defaults are those of Windows.

    Raises ValueError for a window that 16-bit counters cannot carry.
    """

    window_size: int = 64  # messages that may be unacknowledged, [MS-MQQB] <50>
    ack_timeout_s: float = 20.0  # AckTimeout that an initiator proposes, [MS-MQQB] <51>
    recoverable_ack_min_s: float = 0.5  # [MS-MQQB] 2.2.2.1
    recoverable_ack_max_s: float = 120.0
    initialization_timeout_s: float = 60.0  # for the handshake, [MS-MQQB] <43>
    cleanup_timeout_s: float = 300.0  # without a user message, [MS-MQQB] <44>
    ack_wait_factor: float = 2.0  # times AckTimeout; 1 if no direct names are used, <46>
    window_regrowth_s: float = 30.0  # between two doublings after a pause, [MS-MQMQ] <15>
    receipt_ack_max_s: float = NEVER  # until receipt is acknowledged; the specification waits long
    ack_at_once: bool = True  # as soon as recoverable messages are stored, else by the timers

    def __post_init__(self) -> None:
        if not 1 <= self.window_size <= IN_DOUBT_MAX:
            raise ValueError(
                f"a window of {self.window_size} messages: it must be 1 to {IN_DOUBT_MAX}"
            )


class Opened(NamedTuple):
    """The handshake is done; messages may be sent.  `remote_id` is the peer's GUID (16 bytes)."""

    remote_id: bytes


class MessageReceived(NamedTuple):
    """A user message, counted and not yet acknowledged.

    `packet` has no SessionHeader.  `recoverable_number` is what `Session.mark_stored` wants once
    the message is durable, or its refusal is: it counts from 1 and never wraps; 0 is an express
    message, of which nothing needs to be reported.
    """

    message: UserMessage
    packet: bytes
    recoverable_number: int


class Acknowledged(NamedTuple):
    """The peer has these messages: express ones in its memory, recoverable ones on its disk.

    `tokens` are those given to `Session.send`, in the order of sending, each once; a token None
    is left out.  A transactional message is session-acknowledged only: it is released by its
    order acknowledgment.  [MS-MQQB] 3.1.5.5.3, 3.1.1.6.2
    """

    tokens: list[object]


class Closed(NamedTuple):
    """The last event.  Write what `data_to_send` still holds, then close the connection.

    `reason` is a sentence for people.  `whole` means that nothing went wrong: the session was
    idle, or its owner closed it.  Otherwise it was refused, broken or too slow.
    """

    reason: str
    whole: bool


Event = Opened | MessageReceived | Acknowledged | Closed


class SessionOver(Exception):
    """This session must end, and no other; the text is the reason, for people."""
