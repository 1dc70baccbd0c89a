"""The sending side of a session: what the peer has not acknowledged yet.  [MS-MQQB] 3.1.5.5

Two things are acknowledged, and apart from each other.  *Receipt* (AckSequenceNumber) opens the
window again and releases express messages.  *Storage* (the recoverable number and its 32 flags)
releases recoverable ones, and may come much later or out of order.

Inside, numbers count from 1 and never wrap; only those of the wire have 16 bits.
"""

from __future__ import annotations

from collections import deque

from protocol import SessionHeader
from qmd.core.session_events import IN_DOUBT_MAX, SessionOver

Released = tuple[int, object]  # the number of a message on this session, and its token


class SendWindow:
    """Finished with a message when `acknowledge` has released it.

    `size` is how many messages may lack the acknowledgment of their receipt.  A session counts
    from zero; the counts are parameters so that tests can begin where 16 bits end.
    """

    __slots__ = (
        "_express",
        "_recoverable",
        "_stored_through",
        "acknowledged_count",
        "recoverable_sent_count",
        "sent_count",
        "size",
    )

    def __init__(self, size: int, *, sent_count: int = 0, recoverable_sent_count: int = 0) -> None:
        self.size = size
        self.sent_count = sent_count
        self.recoverable_sent_count = recoverable_sent_count
        self.acknowledged_count = sent_count  # received by the peer
        self._express: deque[Released] = deque()
        self._recoverable: dict[int, Released] = {}  # by recoverable number
        self._stored_through = recoverable_sent_count  # the peer has these and all before on disk

    @property
    def unacknowledged(self) -> int:
        """Messages whose receipt is not acknowledged; the window limits these."""
        return self.sent_count - self.acknowledged_count

    @property
    def outstanding(self) -> bool:
        """Whether any acknowledgment, of receipt or of storage, is still to come."""
        return self.sent_count != self.acknowledged_count or bool(self._recoverable)

    def room(self) -> int:
        """How many messages may be sent now."""
        # A peer which acknowledges receipt but never stores must not make us lose count.
        in_doubt = self.recoverable_sent_count - self._stored_through
        return max(min(self.size - self.unacknowledged, IN_DOUBT_MAX - in_doubt), 0)

    def add(self, token: object, *, recoverable: bool) -> None:
        """Count a message that is being sent."""
        self.sent_count = number = self.sent_count + 1
        if recoverable:
            self.recoverable_sent_count = recoverable_number = self.recoverable_sent_count + 1
            self._recoverable[recoverable_number] = number, token
        else:
            self._express.append((number, token))

    def acknowledge(self, header: SessionHeader) -> list[Released]:
        """Take an acknowledgment; returns what it releases, in no particular order.

        One that says nothing new is harmless.  Raises SessionOver, and changes nothing, if it
        speaks of messages that were never sent.
        """
        received = _number_meant(header.ack_number, self.sent_count, "messages")
        first, flags = header.recoverable_ack_number, header.recoverable_ack_flags
        released: list[Released] = []
        if first or flags:  # both zero: nothing about recoverable messages
            released = self._release_stored(first, flags)
        if received > self.acknowledged_count:
            self.acknowledged_count = received
            express = self._express
            while express and express[0][0] <= received:
                released.append(express.popleft())
        return released

    def _release_stored(self, first: int, flags: int) -> list[Released]:
        """[MS-MQQB] 3.1.5.5.3: everything up to `first`, and what the flags name after it."""
        first = _number_meant(first, self.recoverable_sent_count, "recoverable messages")
        last = first + max(flags.bit_length() - 1, 0)
        if last > self.recoverable_sent_count:
            raise SessionOver(
                f"the peer acknowledged recoverable message {last},"
                f" but only {self.recoverable_sent_count} were sent"
            )
        through = first
        if flags & (flags + 1) == 0:
            through = last  # no hole among the flags
        elif not flags & 1:
            # The number is said to be that of a stored message, its flag says that it is not:
            # release only what is certain.
            through = first - 1
        waiting = self._recoverable
        released = []
        for number in range(self._stored_through + 1, through + 1):
            if (entry := waiting.pop(number, None)) is not None:
                released.append(entry)
        self._stored_through = max(self._stored_through, through)
        for number in range(through + 1, last + 1):
            if flags >> number - first & 1 and (entry := waiting.pop(number, None)) is not None:
                released.append(entry)
        return released


def _number_meant(number: int, sent_count: int, what: str) -> int:
    """The count that a 16-bit number stands for: the latest of those not above `sent_count`."""
    behind = (sent_count - number) & 0xFFFF
    if behind > min(IN_DOUBT_MAX, sent_count):
        raise SessionOver(
            f"the peer acknowledged {number} {what}, but only {sent_count & 0xFFFF} were sent"
        )
    return sent_count - behind
