"""Send window, the sending side of a session: unacknowledged messages. [MS-MQQB] 3.1.5.5

Receipt and storage are acknowledged separately. *Receipt* (AckSequenceNumber) opens the window
again and releases express messages. *Storage* (the recoverable number and its 32 flags) releases
recoverable messages, and may come much later or out of order.

Internal numbers count from 1 and never wrap; only the numbers on the wire have 16 bits.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import repeat

from protocol import SessionHeader
from qmd.core.session_events import IN_DOUBT_MAX, SessionOver

Released = tuple[int, object]  # number of a message in this session, and its token


class SendWindow:
    """The messages sent in one session and not released yet; `acknowledge` releases them.

    `size` is how many messages may lack the acknowledgment of their receipt. It begins at `usual`
    and doubles, up to the agreed limit, each time that an acknowledgment arrives while it is full:
    a path with a long round trip, or a peer with slow commits, gets the window that it needs, and
    no other has thousands of messages in flight that a new session would send again. A session
    counts from zero; the counts are parameters so that tests can begin at the 16-bit limit.
    """

    __slots__ = (
        "_express",
        "_grown",
        "_probe_at",
        "_probe_number",
        "_recoverable",
        "_stored_through",
        "acknowledged_count",
        "recoverable_sent_count",
        "round_trip_s",
        "sent_count",
        "size",
        "was_useful",
    )

    def __init__(
        self, size: int, *, usual: int = 0, sent_count: int = 0, recoverable_sent_count: int = 0
    ) -> None:
        self.size = size
        self._grown = usual or size  # the size without the limit
        self.sent_count = sent_count
        self.recoverable_sent_count = recoverable_sent_count
        self.acknowledged_count = sent_count  # received by the peer
        self._express: deque[Released] = deque()
        self._recoverable: dict[int, Released] = {}  # by recoverable number
        #: The last measured time from a transmission to the acknowledgment of its receipt.
        self.round_trip_s: float | None = None
        self.was_useful = False  # the peer has taken a message other than an acknowledgment
        self._probe_at = 0.0
        self._probe_number = 0  # of the message whose acknowledgment is measured; 0: none
        # The peer has this message and all before it on disk.
        self._stored_through = recoverable_sent_count

    @property
    def unacknowledged(self) -> int:
        """Number of messages without an acknowledgment of receipt; the window limits it."""
        return self.sent_count - self.acknowledged_count

    @property
    def outstanding(self) -> bool:
        """Whether an acknowledgment, of receipt or of storage, is still to come."""
        return self.sent_count != self.acknowledged_count or bool(self._recoverable)

    def room(self) -> int:
        """Return how many messages may be sent now."""
        # A peer that acknowledges receipt but never storage must not make the 16-bit numbers
        # ambiguous.
        in_doubt = self.recoverable_sent_count - self._stored_through
        return max(min(self.size - self.unacknowledged, IN_DOUBT_MAX - in_doubt), 0)

    def limit(self, limit: int) -> None:
        """Set the agreed limit; it does not undo the growth.  [MS-MQQB] 3.1.1.6.1"""
        self.size = min(limit, self._grown)

    def grow(self, limit: int) -> None:
        """Double the size, up to the agreed limit."""
        self._grown = min(2 * self._grown, max(limit, self._grown))
        self.limit(limit)

    @property
    def is_full(self) -> bool:
        """Whether it was the size that kept further messages back."""
        return self.sent_count - self.acknowledged_count >= self.size

    def add(self, token: object, *, recoverable: bool) -> None:
        """Count a message that is being sent."""
        self.sent_count = number = self.sent_count + 1
        if recoverable:
            self.recoverable_sent_count = recoverable_number = self.recoverable_sent_count + 1
            self._recoverable[recoverable_number] = number, token
        else:
            self._express.append((number, token))

    def add_run(self, count: int, tokens: Sequence[object] = ()) -> None:
        """Count recoverable messages that are being sent, as `add` does; without tokens if there
        are none."""
        sent, recoverable = self.sent_count + 1, self.recoverable_sent_count + 1
        self.sent_count += count
        self.recoverable_sent_count += count
        numbers = range(recoverable, recoverable + count)
        released = zip(range(sent, sent + count), tokens or repeat(None, count), strict=True)
        self._recoverable.update(zip(numbers, released, strict=True))

    def begin_probe(self, now: float) -> None:
        """Measure the time to the acknowledgment of the last message, unless one is measured."""
        if not self._probe_number:
            self._probe_number, self._probe_at = self.sent_count, now

    def end_probe(self, now: float) -> None:
        """Note the measured time, if the acknowledgment has arrived."""
        if self._probe_number and self.acknowledged_count >= self._probe_number:
            self.round_trip_s = now - self._probe_at
            self._probe_number = 0

    def acknowledge(self, header: SessionHeader) -> list[Released]:
        """Process an acknowledgment; return the messages it releases, in no particular order.

        An acknowledgment without news is harmless. Raises SessionOver, and changes nothing, if it
        names messages that were never sent.
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
        if released and not self.was_useful:
            self.was_useful = self._stored_through > 0 or any(token for _, token in released)
        return released

    def _release_stored(self, first: int, flags: int) -> list[Released]:
        """Release all up to `first`, and those that the flags name after it. [MS-MQQB] 3.1.5.5.3"""
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
            # The number should be that of a stored message, but its flag says that it is not
            # stored: release only the messages before it.
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
    """Return the highest count not above `sent_count` that has this 16-bit number.

    Raises SessionOver if no such count is possible.
    """
    behind = (sent_count - number) & 0xFFFF
    if behind > min(IN_DOUBT_MAX, sent_count):
        raise SessionOver(
            f"the peer acknowledged {number} {what}, but only {sent_count & 0xFFFF} were sent"
        )
    return sent_count - behind
