"""Settings, states and events of a session. [MS-MQQB] 3.1.1.3.1"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from protocol import UserMessage, parse_user_message
from protocol.like_packets import Run

NEVER = float("inf")  # expiry of a timer that is not running

# Counters have 16 bits on the wire. While at most half of the numbers are in doubt, a number from a
# peer is either in the past or in the future, and is never ambiguous.
IN_DOUBT_MAX = 0x7FFF
USUAL_WINDOW = 64  # of Windows, [MS-MQQB] <50>


class SessionState(Enum):
    """State of a session; the values are for people. [MS-MQQB] 3.1.1.3.1 SessionState"""

    NEW = "not started"
    WAITING_EC = "waiting for a connection request"
    WAITING_ECR = "waiting for the answer to its connection request"
    WAITING_CP = "waiting for the connection parameters"
    WAITING_CPR = "waiting for the answer to its connection parameters"
    OPEN = "open"
    CLOSED = "closed"


@dataclass(frozen=True, slots=True)
class SessionSettings:
    """Settings of a session; the defaults are those of Windows.

    Raises ValueError for a window that is too large for 16-bit counters, or below 1.
    """

    window_size: int = USUAL_WINDOW  # messages that may be unacknowledged
    wide_window_size: int = USUAL_WINDOW  # the same between two of qmd, if it is larger
    ack_timeout_s: float = 20.0  # AckTimeout that an initiator proposes, [MS-MQQB] <51>
    recoverable_ack_min_s: float = 0.5  # [MS-MQQB] 2.2.2.1
    recoverable_ack_max_s: float = 120.0
    initialization_timeout_s: float = 60.0  # for the handshake, [MS-MQQB] <43>
    cleanup_timeout_s: float = 300.0  # without a user message, [MS-MQQB] <44>
    ack_wait_factor: float = 2.0  # times AckTimeout; 1 if no direct names are used, <46>
    # Limit for acknowledging receipt; the specification allows long delays.
    receipt_ack_max_s: float = NEVER
    ack_at_once: bool = True  # as soon as recoverable messages are stored, else by the timers

    def __post_init__(self) -> None:
        for size in (self.window_size, self.wide_window_size):
            if not 1 <= size <= IN_DOUBT_MAX:
                raise ValueError(f"a window of {size} messages: it must be 1 to {IN_DOUBT_MAX}")

    def window_for(self, *, is_qmd: bool) -> int:
        """Return the window to announce to a queue manager; `is_qmd`: it is one of qmd."""
        return max(self.window_size, self.wide_window_size) if is_qmd else self.window_size


class Opened(NamedTuple):
    """The handshake is complete; messages may be sent. `remote_id`: the peer's GUID (16 bytes)."""

    remote_id: bytes


class MessageReceived(NamedTuple):
    """A user message, counted and not yet acknowledged.

    `packet` has no SessionHeader. Pass `recoverable_number` to `Session.mark_stored` once the
    message, or its refusal, is durable. It counts from 1 and never wraps; it is 0 for an express
    message, for which nothing needs to be reported.
    """

    message: UserMessage
    packet: bytes
    recoverable_number: int


class RunReceived(NamedTuple):
    """Messages that follow `message` and are like it, counted and not acknowledged.

    `message` is that of the event before; it differs from those of `run` in numbers and body only.
    `first_number` is the recoverable number of the first of them, and the others follow.
    """

    message: UserMessage
    run: Run
    first_number: int

    def singles(self) -> list[MessageReceived]:
        """Return the messages one by one."""
        packets, first = self.run.packets, self.first_number
        return [
            MessageReceived(parse_user_message(packet), packet, number)
            for number, packet in enumerate(packets, first)
        ]


Received = MessageReceived | RunReceived


def one_by_one(received: Iterable[Received]) -> list[MessageReceived]:
    """Return received messages without runs."""
    singles: list[MessageReceived] = []
    for each in received:
        singles += each.singles() if isinstance(each, RunReceived) else (each,)
    return singles


class Acknowledged(NamedTuple):
    """The peer has these messages: express ones in memory, recoverable ones on disk.

    `tokens` are those given to `Session.send`, in the order of sending, each once; a token None is
    left out. For a transactional message this is the session ack only: its order ack releases it.
    [MS-MQQB] 3.1.5.5.3, 3.1.1.6.2
    """

    tokens: list[object]


class Closed(NamedTuple):
    """The last event. Write the rest of `data_to_send`, then close the connection.

    `reason` is a sentence for people. `clean` means a normal end: the session was idle, or its
    owner closed it. Otherwise it was refused, broken or too slow.
    """

    reason: str
    clean: bool


Event = Opened | MessageReceived | RunReceived | Acknowledged | Closed


class SessionOver(Exception):
    """The session must end, others are not affected; the text is the reason, for people."""
