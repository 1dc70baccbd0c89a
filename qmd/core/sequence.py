"""Transactional sequences: every message once, in order.  [MS-MQQB] 3.1.1.5, 3.1.1.6.2

Two ends, one rule: *nothing is acknowledged before it is on disk*.

    receiver   offer ──► accepted ──(the storage commits)──► durable ──► order ack
    sender     append ──(the storage commits)──► transmit ──► acknowledged ──(commit)──► released

Each message has a number, which never changes, and is sent together with the
number of the message before it.  The receiver takes a message when it has
whatever came before it, and holds two integers for that.  A message that
expires at the sender is taken out of the chain, and the next one is linked to
what preceded it.  What nothing precedes any more is linked to 0, so that a
receiver which lost its state can go on from there.

Here are numbers only; packets, sessions and the disk belong to the callers.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import NamedTuple

ORDER_ACK_TIMEOUT_S = 0.5  # [MS-MQQB] 3.1.2.7, 3.1.3.2
ORDER_ACK_DELAY_MAX_S = 10.0  # [MS-MQQB] 3.1.3.2 MaximumOrderAckDelay
# [MS-MQQB] 3.1.3.1: 30 s, 5 min and 30 min three times each, then every 6 hours.
RESEND_INTERVALS_S = (30.0,) * 3 + (300.0,) * 3 + (1800.0,) * 3 + (21_600.0,)
RELINK_DELAY_S = 1.0  # ours: long enough for the refusals of a whole window to arrive

NUMBER_MAX = 0xFFFF_FFFF  # [MS-MQMQ] 2.2.20.5 TxSequenceNumber has 32 bits
SEQUENCE_ID_MAX = 0xFFFF_FFFF_FFFF_FFFF  # [MS-MQMQ] 2.2.18.1.2


class SequenceExhausted(Exception):
    """All numbers of the sequence are given; the next one begins once all are acknowledged."""


class ImpossibleOrderAck(Exception):
    """A peer acknowledged what was never sent to it.  It was ignored; the session may go on."""


class Position(NamedTuple):
    """A point in a peer's sequences; a later sequence sorts after an earlier one."""

    sequence_id: int = 0
    number: int = 0


@dataclass(frozen=True, slots=True)
class OrderAckSettings:
    """When a receiver acknowledges.  [MS-MQQB] 3.1.1.6.2

    With `at_once` an order ack leaves as soon as the commit that it speaks of
    has returned; the timer then only serves messages that were rejected.
    """

    timeout_s: float = ORDER_ACK_TIMEOUT_S
    delay_max_s: float = ORDER_ACK_DELAY_MAX_S
    at_once: bool = True


class IncomingSequence:
    """What one queue manager has sent to one of our queues.  [MS-MQQB] 3.1.5.8.6

    One for each source queue manager and each name by which it knows the queue,
    whatever session or router the messages come by.  `accepted` is ahead of `durable` while commits
    are under way; a daemon that starts has only the durable position.
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
        self.rejects = 0  # since a message was last accepted
        self.last_seen: float | None = None
        self._settings = settings
        self._ack_due: float | None = None
        self._last_ack_at = float("-inf")

    @property
    def durable(self) -> Position:
        """What the disk holds, and so what an order ack may speak of."""
        return Position(self.durable_id, self.durable_number)

    def is_next(self, sequence_id: int, number: int, previous: int) -> bool:
        """Whether `offer` would accept the message."""
        if sequence_id == self.accepted_id:
            return previous <= self.accepted_number < number
        return sequence_id > self.accepted_id and previous == 0 and number > 0

    def offer(self, sequence_id: int, number: int, previous: int, now: float) -> bool:
        """Whether the message is the next one.  Accepted ones must be stored, in this order.

        There is no way back, so this is the last thing to ask about a message: one
        that is refused after it (a full queue) still moves the stored position.  A
        rejected one is a duplicate, or something before it is missing: the sender
        hears where we are when the timer runs out, and sends again.
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
        """The disk holds what was accepted up to here.  True: send an order ack at once."""
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
        """True: send an order ack for the durable position now."""
        if self._ack_due is None or now < self._ack_due:
            return False
        self._ack_due = None
        self._last_ack_at = now
        return True

    def _owe_ack(self, now: float) -> None:
        """Wait a little for more messages, but never too long: order acks are cumulative."""
        if self.durable_number == 0:
            return  # nothing is there that could be acknowledged
        if self._ack_due is None or now - self._last_ack_at < self._settings.delay_max_s:
            self._ack_due = now + self._settings.timeout_s


class OutgoingSequence:
    """What was given to one outgoing queue, and is not known to have arrived.

    Numbers count from 1 within a sequence; `base + number` is the message's
    position in its queue and grows for ever.  A new sequence (the id plus one,
    numbers from 1) begins with the first message after everything before it was
    released.  The id's low half is the ordinal, its high half a time stamp: an
    ordinal that overflows carries into the time stamp, and the id still grows.

    The caller's part, without which the promise does not hold:

    * `sequence_id`, `base` and `next_number` are stored in the commit that
      stores the message; only then is it transmitted.
    * In one pass messages are transmitted in ascending order and none is passed
      over: one that is to be removed (expired, refused) is first removed on
      disk, then by `remove`, and only then do later ones go.
    * What `acknowledge` returns is released in a commit, then told by `released`.

    Memory holds the numbers in flight, nothing for the backlog behind them.
    """

    __slots__ = (
        "_due",
        "_first_new",
        "_fresh",
        "_highest_transmitted",
        "_intervals_s",
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
        """A new one, or as it was stored; `outstanding` messages of it are then on disk.

        Each of those may have been transmitted before, so that an order ack for
        any of them is believed, and the pass that begins is a retransmission.
        `unproven_from`: the `first_unproven` of an earlier start, if no order ack came until its
        end.
        """
        assert resend_intervals_s
        assert 0 <= outstanding < next_number
        self.sequence_id = sequence_id
        self.base = base
        self.next_number = next_number
        self.outstanding = outstanding  # appended, and neither released nor removed
        self.acknowledged = 0  # the highest number that the peer was heard to have
        self.in_flight: deque[int] = deque()  # transmitted in this pass, not acknowledged
        self.resend_count = 0  # expiries of the timer since everything was acknowledged
        self.ack_count = 0
        self.last_ack_at: float | None = None
        self.last_ack_count = 0  # how often the order ack for `acknowledged` came
        #: No order ack since the start has said that the peer knows nothing beyond what we do.
        self.is_unproven = outstanding > 0
        self._first_new = min(unproven_from or next_number, next_number)
        self._last_stored = next_number - 1 if self.is_unproven else 0
        self._highest_transmitted = self._first_new - 1
        self._fresh = True  # nothing was transmitted in this pass
        self._intervals_s = resend_intervals_s
        self._due: float | None = None
        self._relink_at: float | None = None

    def append(self, count: int = 1) -> int:
        """The number of the next message; it never changes.  Of `count` messages it is the first.

        Raises SequenceExhausted after 2**32 - 1 messages during which the queue
        was never empty; it is over as soon as all of them are released.
        """
        if self.outstanding == 0 and self.next_number > 1:
            self._begin_sequence()
        number = self.next_number
        if number + count - 1 > NUMBER_MAX:
            raise SequenceExhausted(
                f"sequence {self.sequence_id:#018x} has given all of its {NUMBER_MAX} numbers; "
                f"{self.outstanding} messages must be acknowledged before a new sequence begins"
            )
        self.next_number = number + count
        self.outstanding += count
        return number

    @property
    def first_unproven(self) -> int:
        """The first number that was given since the start while `is_unproven`, or will be."""
        return self._first_new

    def may_transmit(self, number: int) -> bool:
        """Whether the message may go in this pass, as far as backups are concerned.

        What is stored may be a backup, after which the peer took other messages at the numbers that
        follow: those would be released with its next order ack, and be lost.  So until one has
        come, only what was there at the start goes, or else a single message.
        """
        return not (self.is_unproven and number >= self._first_new and self.in_flight)

    def transmit(self, number: int, now: float) -> int:
        """The message is sent now.  Returns the previous number to put into its packet."""
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
        if number > self._highest_transmitted:
            self._highest_transmitted = number
        if self._due is None:
            self._due = now + self._interval_s()
        return previous

    def was_transmitted(self, number: int) -> bool:
        """Whether the message went before, in this pass or another; or perhaps before a start."""
        return number <= self._highest_transmitted

    def acknowledge(self, sequence_id: int, number: int, now: float) -> int | None:
        """An order ack arrived.  Returns the number up to which messages can be released.

        None when it tells nothing new or is of another sequence: numbers mean
        something within their sequence only.  Raises ImpossibleOrderAck when the
        number was never transmitted.
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
        """`count` messages were acknowledged and, durably, need not be kept any more."""
        assert 0 <= count <= self.outstanding
        self.outstanding -= count
        self._settle()

    def remove(self, number: int) -> bool:
        """One message expired or was refused, and the disk knows; later ones are linked around it.

        Only for a message that the commit really took out.  True when one in
        flight was sent as the successor of `number`: if the peer never accepted
        that, it waits for it in vain until the next pass (see `hasten`).
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

        Of a backup the peer may have all, also what did not go before that was made.
        """
        return max(self._highest_transmitted, self._last_stored)

    def begin_anew(self, sequence_id: int, after: int) -> None:
        """Go on as another sequence: what follows the number `after` is numbered from 1.

        Up to there everything is over, or its removal is being committed.  The caller stores the
        new state before anything of it is transmitted.
        """
        assert sequence_id > self.sequence_id
        assert self.acknowledged <= after < self.next_number
        self.restart()
        self._begin(sequence_id, after)
        self.resend_count = 0

    def restart(self) -> None:
        """A new pass: a new session, a resend.  Everything outstanding goes again, in order."""
        self.in_flight.clear()
        self._fresh = True
        self._stop_timer()

    def next_timer(self) -> float | None:
        """When the resend timer runs out; it runs while anything in flight lacks its ack."""
        if self._due is None or self._relink_at is None:
            return self._due
        return min(self._due, self._relink_at)

    def handle_timer(self, now: float) -> bool:
        """True: begin a new pass (see `restart`).  The wait after it may be longer."""
        due = self.next_timer()
        if due is None or now < due:
            return False
        if due == self._due:
            self.resend_count += 1
        self._stop_timer()
        return True

    def hasten(self, now: float) -> None:
        """The peer refused a message that later ones in flight are linked to: resend soon.

        Not at once, because the refusals of what follows are probably on their way.
        The peer is there, so this pass counts for none that it left unanswered.
        """
        if self._due is not None and self._relink_at is None:
            self._relink_at = now + RELINK_DELAY_S

    @property
    def resend_interval_s(self) -> float:
        """How long an order ack is waited for now; longer after each time in vain."""
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
        self.is_unproven = False
