"""Transactional sequences: exactly-once delivery in order. [MS-MQQB] 3.1.1.5, 3.1.1.6.2

Both ends follow one rule: *nothing is acknowledged before it is on disk*.

    receiver   offer ──► accepted ──(the storage commits)──► durable ──► order ack
    sender     append ──(the storage commits)──► transmit ──► acknowledged ──(commit)──► released

Each message has a number, which never changes, and is sent together with the number of the message
before it. The receiver accepts a message when it has all messages before it, and needs two integers
to know that. A message that expires at the sender is removed from the chain, and the next message
is linked to its predecessor. A message without a predecessor is linked to 0, so that a receiver
which lost its state can continue from there.

This module handles numbers only; packets, sessions and the disk belong to the callers.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import NamedTuple

ORDER_ACK_TIMEOUT_S = 0.5  # [MS-MQQB] 3.1.2.7, 3.1.3.2
ORDER_ACK_DELAY_MAX_S = 10.0  # [MS-MQQB] 3.1.3.2 MaximumOrderAckDelay
# [MS-MQQB] 3.1.3.1: 30 s, 5 min and 30 min three times each, then every 6 hours.
RESEND_INTERVALS_S = (30.0,) * 3 + (300.0,) * 3 + (1800.0,) * 3 + (21_600.0,)
RELINK_DELAY_S = 1.0  # of qmd: long enough for the rejections of a complete window to arrive

NUMBER_MAX = 0xFFFF_FFFF  # [MS-MQMQ] 2.2.20.5 TxSequenceNumber has 32 bits
SEQUENCE_ID_MAX = 0xFFFF_FFFF_FFFF_FFFF  # [MS-MQMQ] 2.2.18.1.2
# The high half of a sequence id is a time stamp: seconds since 1970. An id of the far future would
# exclude all later ones. The limit is generous, because the clock of a sender may be wrong, and its
# later ids follow the wrong time; and the clock of this computer may start in 1970.
AHEAD_MAX_S = 10 * 366 * 86_400
CLOCK_MIN_S = 1_767_225_600.0  # the year 2026


def is_plausible(sequence_id: int, wall_s: float, *, ahead_s: float = AHEAD_MAX_S) -> bool:
    """Return whether a sequence id may be one of a sender with a clock that is roughly right.

    wall_s: the wall clock of this computer, in seconds since 1970.
    """
    return sequence_id >> 32 <= max(wall_s, CLOCK_MIN_S) + ahead_s


class SequenceExhausted(Exception):
    """All numbers of the sequence are used; a new one begins once all are acknowledged."""


class ImpossibleOrderAck(Exception):
    """Order ack for a number that was never sent.

    The order ack was ignored, and the session may continue.
    """


class Position(NamedTuple):
    """A point in a peer's sequences; a later sequence sorts after an earlier one."""

    sequence_id: int = 0
    number: int = 0


@dataclass(frozen=True, slots=True)
class OrderAckSettings:
    """Timing of order acks at a receiver. [MS-MQQB] 3.1.1.6.2

    With `at_once` an order ack is sent as soon as its commit has returned; the timer then serves
    rejected messages only.
    """

    timeout_s: float = ORDER_ACK_TIMEOUT_S
    delay_max_s: float = ORDER_ACK_DELAY_MAX_S
    at_once: bool = True


class IncomingSequence:
    """Incoming sequence: messages from one queue manager to one of our queues. [MS-MQQB] 3.1.5.8.6

    There is one for each source queue manager and each name that it uses for the queue, independent
    of the session or router that delivers the messages. `accepted` is ahead of `durable` while
    commits are in progress; after a start only the durable position is known.
    """

    __slots__ = (
        "_ack_due",
        "_last_ack_at",
        "_settings",
        "accepted_id",
        "accepted_number",
        "durable_id",
        "durable_number",
        "last_seen",
        "rejects",
    )

    def __init__(
        self, durable_id: int = 0, durable_number: int = 0, *, settings: OrderAckSettings
    ) -> None:
        self.accepted_id = self.durable_id = durable_id
        self.accepted_number = self.durable_number = durable_number
        self.rejects = 0  # since the last accepted message
        self.last_seen: float | None = None
        self._settings = settings
        self._ack_due: float | None = None
        self._last_ack_at = float("-inf")

    @property
    def durable(self) -> Position:
        """The position on disk, the highest one that an order ack may name."""
        return Position(self.durable_id, self.durable_number)

    def is_next(self, sequence_id: int, number: int, previous: int) -> bool:
        """Return whether `offer` would accept the message."""
        if sequence_id == self.accepted_id:
            return previous <= self.accepted_number < number
        return sequence_id > self.accepted_id and previous == 0 and number > 0

    def offer(self, sequence_id: int, number: int, previous: int, now: float) -> bool:
        """Accept the message if it is the next one; store accepted ones in this order.

        An acceptance cannot be undone, so all other checks of a message must come first: a message
        that is refused afterwards (a full queue) still advances the stored position. A rejected
        message is a duplicate, or a message before it is missing: when the timer expires, an order
        ack reports our position to the sender, which then resends.
        """
        self.last_seen = now
        accepted = self.is_next(sequence_id, number, previous)
        if accepted:
            self.accepted_id = sequence_id
            self.accepted_number = number
            self.rejects = 0
        else:
            self.rejects += 1
            self._owe_ack(now)
        return accepted

    def mark_durable(self, sequence_id: int, number: int, now: float) -> bool:
        """Record that the disk holds the accepted messages up to here.

        Returns True if an order ack must be sent now.
        """
        position = (sequence_id, number)
        assert (self.durable_id, self.durable_number) < position
        assert position <= (self.accepted_id, self.accepted_number)
        self.durable_id = sequence_id
        self.durable_number = number
        if self._settings.at_once:
            self._ack_due = None
            self._last_ack_at = now
            return True
        self._owe_ack(now)
        return False

    def next_timer(self) -> float | None:
        return self._ack_due

    def handle_timer(self, now: float) -> bool:
        """Return True if an order ack for the durable position must be sent now."""
        if self._ack_due is None or now < self._ack_due:
            return False
        self._ack_due = None
        self._last_ack_at = now
        return True

    def _owe_ack(self, now: float) -> None:
        """Start the timer that delays a cumulative order ack, within the maximum delay."""
        if self.durable_number == 0:
            return  # there is no position to acknowledge
        if self._ack_due is None or now - self._last_ack_at < self._settings.delay_max_s:
            self._ack_due = now + self._settings.timeout_s


class OutgoingSequence:
    """Outgoing sequence: messages of one outgoing queue that are not known to have arrived.

    Numbers count from 1 within a sequence; `base + number` is the position of the message in its
    queue and grows without limit. When all messages of a sequence are released, the next message
    begins a new sequence (the id plus one, numbers from 1). The low half of the id is the ordinal,
    the high half a time stamp: an ordinal that overflows carries into the time stamp, and the id
    still grows.

    The guarantee depends on these duties of the caller:

    * `sequence_id`, `base` and `next_number` are stored in the commit that
      stores the message; the message is transmitted only after that commit.
    * In one pass, messages are transmitted in ascending order and none is
      skipped: a message that must be removed (expired, refused) is first removed
      on disk, then by `remove`, and only then are later ones transmitted.
    * Messages up to the result of `acknowledge` are released in a commit, and
      then reported by `released`.

    Memory holds the numbers in flight, and nothing for the backlog behind them.
    """

    __slots__ = (
        "_due",
        "_first_new",
        "_fresh",
        "_highest_transmitted",
        "_intervals_s",
        "_is_silent",
        "_last_stored",
        "_relink_at",
        "ack_count",
        "acknowledged",
        "base",
        "in_flight",
        "is_unproven",
        "last_ack_at",
        "last_ack_count",
        "next_number",
        "outstanding",
        "resend_count",
        "sequence_id",
    )

    def __init__(
        self,
        sequence_id: int,
        base: int = 0,
        next_number: int = 1,
        outstanding: int = 0,
        *,
        resend_intervals_s: tuple[float, ...] = RESEND_INTERVALS_S,
        unproven_from: int = 0,
    ) -> None:
        """Create a new sequence, or restore one with `outstanding` messages on disk.

        Each restored message may have been transmitted before. An order ack for any of them is
        therefore valid, and the pass that begins is a retransmission. `unproven_from` is the
        `first_unproven` of an earlier start, if no order ack arrived before that run ended.
        """
        assert resend_intervals_s
        assert 0 <= outstanding < next_number
        self.sequence_id = sequence_id
        self.base = base
        self.next_number = next_number
        self.outstanding = outstanding  # appended, and neither released nor removed
        self.acknowledged = 0  # the highest number that the peer has acknowledged
        self.in_flight: deque[int] = deque()  # transmitted in this pass, not acknowledged
        self.resend_count = 0  # timer expiries since everything was acknowledged
        self.ack_count = 0
        self.last_ack_at: float | None = None
        self.last_ack_count = 0  # number of order acks for `acknowledged`
        #: No order ack since the start has shown that the peer knows no later numbers than we do.
        self.is_unproven = outstanding > 0
        self._first_new = next_number
        if outstanding and unproven_from:
            self._first_new = min(unproven_from, next_number)
        self._last_stored = next_number - 1 if self.is_unproven else 0
        self._highest_transmitted = self._first_new - 1
        self._fresh = True  # nothing has been transmitted in this pass
        self._is_silent = self.is_unproven  # restored, and nothing was transmitted since
        self._intervals_s = resend_intervals_s
        self._due: float | None = None
        self._relink_at: float | None = None

    def append(self, count: int = 1) -> int:
        """Assign the number of the next message; return the first number if `count` is above 1.

        The number never changes. Raises SequenceExhausted after 2**32 - 1 messages during which the
        queue was never empty; that condition ends as soon as all of them are released.
        """
        if self.outstanding == 0 and self.next_number > 1:
            self._begin_sequence()
        number = self.next_number
        if number + count - 1 > NUMBER_MAX:
            raise SequenceExhausted(
                f"sequence {self.sequence_id:#018x} has used all of its {NUMBER_MAX} numbers; "
                f"{self.outstanding} messages must be acknowledged before a new sequence begins"
            )
        self.next_number = number + count
        self.outstanding += count
        return number

    @property
    def first_unproven(self) -> int:
        """The first number assigned, or to be assigned, since the start while `is_unproven`."""
        return self._first_new

    def may_transmit(self, number: int) -> bool:
        """Return whether the message may be sent in this pass, in case the database is a backup.

        If the database is a restored backup, the peer may have accepted other messages with the
        numbers that follow. Its next order ack would release the new messages with these numbers,
        which would be lost. So until an order ack has arrived, only the messages present at the
        start are sent, or else a single message. After the order ack nothing new is sent before
        the disk holds that fact: another start would take the order ack of a new message for a
        proof that the database is a backup.
        """
        if not self.is_unproven or number < self._first_new:
            return True
        return not (self.in_flight or self.acknowledged)

    def transmit(self, number: int, now: float) -> int:
        """Record that the message is sent now; return the previous number for its packet."""
        in_flight = self.in_flight
        if in_flight:
            previous = in_flight[-1]
        elif number > self._highest_transmitted and not self._fresh:
            previous = self.acknowledged
        else:
            previous = 0  # nothing that could still be missing precedes it
        assert previous < number < self.next_number
        assert number > self.acknowledged
        in_flight.append(number)
        self._fresh = False
        self._is_silent = False
        if number > self._highest_transmitted:
            self._highest_transmitted = number
        if self._due is None:
            self._due = now + self._interval_s()
        return previous

    def transmit_run(self, first: int, count: int) -> None:
        """Record that `count` messages are sent now, each for the first time, after the one before
        `first`: that is the last one in flight."""
        last = first + count - 1
        assert self.in_flight
        assert self.in_flight[-1] == first - 1 == self._highest_transmitted
        assert last < self.next_number
        self.in_flight.extend(range(first, first + count))
        self._highest_transmitted = last

    def continues(self, number: int) -> bool:
        """Return whether `transmit_run` may begin with this number."""
        in_flight = self.in_flight
        return bool(
            in_flight
            and in_flight[-1] == number - 1 == self._highest_transmitted
            and not self.is_unproven
        )

    def was_transmitted(self, number: int) -> bool:
        """Return whether the message was sent before, in any pass, or possibly before the start."""
        return number <= self._highest_transmitted

    def may_answer_earlier_run(self, sequence_id: int, number: int) -> bool:
        """Return whether an order ack may be for the single message that an earlier run sent.

        The disk does not say which one that was (see `may_transmit`). Such an order ack proves
        nothing; the message is sent again, and the peer answers again.
        """
        is_later = sequence_id == self.sequence_id and number > self._highest_transmitted
        return is_later and self._is_silent

    def acknowledge(self, sequence_id: int, number: int, now: float) -> int | None:
        """Process an order ack; return the number up to which messages can be released.

        Returns None when the order ack contains nothing new or belongs to another sequence: numbers
        are valid only within their sequence. Raises ImpossibleOrderAck when the number was never
        transmitted.
        """
        if sequence_id != self.sequence_id:
            return None
        if number > self._highest_transmitted:
            raise ImpossibleOrderAck(
                f"number {number} of sequence {sequence_id:#018x} was acknowledged, "
                f"but only {self._highest_transmitted} were sent"
            )
        self.ack_count += 1
        self.last_ack_at = now
        if number <= self.acknowledged:
            self.last_ack_count += 0 < number == self.acknowledged
            return None
        self.acknowledged = number
        self.last_ack_count = 1
        in_flight = self.in_flight
        while in_flight and in_flight[0] <= number:
            in_flight.popleft()
        if in_flight:
            self._due = now + self._interval_s()
        else:
            self._stop_timer()
        return number

    def released(self, count: int) -> None:
        """Record that `count` acknowledged messages no longer need to be kept on disk."""
        assert 0 <= count <= self.outstanding
        self.outstanding -= count
        self._settle()

    def remove(self, number: int) -> bool:
        """Remove a message that expired or was refused; later ones are linked to its predecessor.

        Call this only after the commit that removed it. Returns True if a message in flight was
        sent as the successor of `number`: if the peer never accepted `number`, it will not accept
        the successor before the next pass (see `hasten`).
        """
        assert number < self.next_number
        assert self.outstanding > 0
        self.outstanding -= 1
        is_linked = False
        in_flight = self.in_flight
        if in_flight and in_flight[0] <= number <= in_flight[-1] and number in in_flight:
            is_linked = number != in_flight[-1]
            in_flight.remove(number)
            if not in_flight:
                self._stop_timer()
        self._settle()
        return is_linked

    @property
    def last_in_doubt(self) -> int:
        """The last number that the peer may have; 0: it has none.

        If the database is a backup, the peer may have all stored messages, also those that had not
        been sent when the backup was made.
        """
        return max(self._highest_transmitted, self._last_stored)

    def begin_anew(self, sequence_id: int, after: int) -> None:
        """Continue as another sequence: the messages after number `after` are renumbered from 1.

        All messages up to `after` are finished, or their removal is being committed. The caller
        stores the new state before any message of it is transmitted.
        """
        assert sequence_id > self.sequence_id
        assert self.acknowledged <= after < self.next_number
        self.restart()
        self._begin(sequence_id, after)
        self.resend_count = 0

    def restart(self) -> None:
        """Begin a new pass (a new session, a resend): resend all outstanding messages in order."""
        self.in_flight.clear()
        self._fresh = True
        self._stop_timer()

    def next_timer(self) -> float | None:
        """Return when the resend timer expires; it runs while a message in flight lacks its ack."""
        if self._due is None or self._relink_at is None:
            return self._due
        return min(self._due, self._relink_at)

    def handle_timer(self, now: float) -> bool:
        """Return True if a new pass must begin (see `restart`); the wait after it may be longer."""
        due = self.next_timer()
        if due is None or now < due:
            return False
        if due == self._due:
            self.resend_count += 1
        self._stop_timer()
        return True

    def hasten(self, now: float) -> None:
        """Resend soon: the peer refused a message that later ones in flight are linked to.

        The resend is delayed because the refusals of the following messages are probably on their
        way. The peer has answered, so this pass does not count as unanswered.
        """
        if self._due is not None and self._relink_at is None:
            self._relink_at = now + RELINK_DELAY_S

    @property
    def resend_interval_s(self) -> float:
        """The current wait for an order ack, in seconds; longer after each unanswered pass."""
        return self._interval_s()

    def _interval_s(self) -> float:
        return self._intervals_s[min(self.resend_count, len(self._intervals_s) - 1)]

    def _stop_timer(self) -> None:
        self._due = self._relink_at = None

    def _settle(self) -> None:
        if self.outstanding == 0:
            self.resend_count = 0

    def _begin_sequence(self) -> None:
        assert not self.in_flight
        assert self.sequence_id < SEQUENCE_ID_MAX
        self._begin(self.sequence_id + 1, self.next_number - 1)

    def _begin(self, sequence_id: int, after: int) -> None:
        self.sequence_id = sequence_id
        self.base += after
        self.next_number -= after
        self.acknowledged = self.last_ack_count = 0
        self._highest_transmitted = 0
        self._last_stored = 0
        self.is_unproven = self._is_silent = False
