"""Session acks, the receiving side of a session: contents and due times. [MS-MQQB] 3.1.5.8.7

    received ──► stored (after the commit) ──► acknowledged as stored
        └──────► acknowledged as received: only opens the peer's window

A recoverable message is acknowledged as stored only after `mark_stored`, and only when all
recoverable messages before it are stored too: the peer releases everything up to the number that an
acknowledgment begins with (3.1.5.5.3). Internal numbers count from 1 and never wrap.
"""

from __future__ import annotations

from collections.abc import Iterable

from protocol import SessionHeader
from qmd.core.session_events import NEVER, SessionOver

FLAGS_MAX = 32  # recoverable messages that one acknowledgment can name, [MS-MQMQ] 2.2.20.4
PIGGYBACK_AFTER = 0.75  # of the timer's duration, [MS-MQQB] 3.1.7.11


class SessionAcks:
    """Counts of received, stored and acknowledged messages of one session.

    When `pending` is False, all received and stored messages are acknowledged. `due` is when the
    Session Ack Send Timer expires (3.1.2.5), `piggyback_after` when a sent message should carry the
    acknowledgment. A session counts from zero; the counts are parameters so that tests can begin at
    the 16-bit limit.
    """

    __slots__ = (
        "_stored_early",
        "acknowledged_count",
        "due",
        "is_cumulative",
        "piggyback_after",
        "received_count",
        "recoverable_received_count",
        "stored_acknowledged_count",
        "stored_count",
    )

    def __init__(self, *, received_count: int = 0, recoverable_received_count: int = 0) -> None:
        self.received_count = received_count
        self.recoverable_received_count = recoverable_received_count
        self.acknowledged_count = received_count
        self.stored_count = recoverable_received_count  # this message and all before it are on disk
        self.stored_acknowledged_count = recoverable_received_count
        self._stored_early: set[int] = set()  # on disk, but an earlier message is not
        self.due = NEVER
        self.piggyback_after = NEVER
        #: One acknowledgment covers any number of stored messages, instead of at most 32.  The
        #: specification permits it (3.1.5.5.3); it is used only where the other end is qmd too.
        self.is_cumulative = False

    @property
    def unacknowledged(self) -> int:
        """Number of messages without an acknowledgment of receipt."""
        return self.received_count - self.acknowledged_count

    @property
    def stored_unacknowledged(self) -> int:
        """Number of stored recoverable messages without an acknowledgment of storage."""
        return self.stored_count - self.stored_acknowledged_count

    @property
    def pending(self) -> bool:
        return (
            self.received_count != self.acknowledged_count
            or self.stored_count != self.stored_acknowledged_count
        )

    def count(self, *, recoverable: bool) -> int:
        """Count a message that arrived; return its recoverable number, 0 if it is express."""
        self.received_count += 1
        if not recoverable:
            return 0
        self.recoverable_received_count += 1
        return self.recoverable_received_count

    def count_run(self, messages: int) -> int:
        """Count recoverable messages; return the recoverable number of the first."""
        first = self.recoverable_received_count + 1
        self.received_count += messages
        self.recoverable_received_count += messages
        return first

    def check_counts(self, header: SessionHeader) -> None:
        """Raise SessionOver if the peer's sent counts differ from our received counts. 3.1.5.5.5"""
        if (
            header.sent_number != self.received_count & 0xFFFF
            or header.recoverable_sent_number != self.recoverable_received_count & 0xFFFF
        ):
            raise SessionOver(
                f"the counts do not match: the peer has sent {header.sent_number} messages"
                f" ({header.recoverable_sent_number} recoverable),"
                f" {self.received_count & 0xFFFF} were received"
                f" ({self.recoverable_received_count & 0xFFFF} recoverable)"
            )

    def mark_stored(self, numbers: Iterable[int]) -> None:
        """Record that the disk holds these messages, or the decision to refuse them."""
        stored, early = self.stored_count, self._stored_early
        for number in numbers:
            assert 0 < number <= self.recoverable_received_count, "only received messages"
            if number == stored + 1:
                stored = number
                while early and stored + 1 in early:
                    stored += 1
                    early.remove(stored)
            elif number > stored:
                early.add(number)
        self.stored_count = stored

    def acknowledge_with_next(self, now: float) -> None:
        """Let the next message that is sent carry all acknowledgments, or go after them."""
        if self.pending:
            self.due = min(self.due, now)
            self.piggyback_after = -NEVER

    def acknowledge_within(self, delay_s: float, now: float) -> None:
        """Start the timer, or shorten it if it expires later."""
        if now + delay_s < self.due:
            self.due = now + delay_s
            self.piggyback_after = now + PIGGYBACK_AFTER * delay_s

    def take(self) -> tuple[int, int, int]:
        """Return the next acknowledgment, as sent: AckSequenceNumber, RecoverableMsgAckSeqNumber,
        flags.

        The timer stops when nothing is left to acknowledge.
        """
        self.acknowledged_count = self.received_count
        number = flags = 0
        if stored := min(self.stored_unacknowledged, FLAGS_MAX):
            number = self.stored_acknowledged_count + 1
            flags = (1 << stored) - 1
            if self.is_cumulative and self.stored_unacknowledged > FLAGS_MAX:
                stored = self.stored_unacknowledged
                number, flags = self.stored_count, 1
            self.stored_acknowledged_count += stored
        if not self.pending:
            self.due = self.piggyback_after = NEVER
        return self.received_count & 0xFFFF, number & 0xFFFF, flags
