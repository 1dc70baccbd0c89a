"""An outgoing queue: what waits for one remote destination, or is not acknowledged yet.

The disk holds every recoverable and transactional message until the peer's
acknowledgment releases it; here is the bounded window on them and what is in
flight.  One pass walks the stored messages in order and hands them to a
session; a new session, or the resend timer, begins a new pass at the first
message that is still there.

Keys order the queue: by priority, then age; transactional messages come last
and in the order of their sequence, at `base + number` of their level.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from protocol import patch_sequence, transaction_offset
from qmd.core.deadlines import Deadlines
from qmd.core.packet_fields import (
    is_express,
    may_be_confirmed,
    message_number,
    reach_time_s,
    sent_time_s,
    source_of,
    with_sent_time,
)
from qmd.core.ready_window import ReadyWindow
from qmd.core.sequence import OutgoingSequence
from qmd.core.session import Session
from qmd.message.build import QueueAddress
from qmd.message.shared_packet import Packet, SharedPacket, express_added, express_removed, whole
from qmd.queues.usage import Measured, Usage
from storage.tables.keys import ARRIVAL_BITS, OUTGOING_TRANSACTIONAL_LEVEL
from storage.tables.pages import EMPTY, Totals

if TYPE_CHECKING:
    from qmd.queues.way import Way

WINDOW_ENTRIES_MAX = 4096
WINDOW_BYTES_MAX = 8 * 1024 * 1024
EXPIRED_MAX = 100  # ended in one turn of the loop
CLOCK_STEP_S = 2  # seconds are cut off at four places
IN_FLIGHT_ENTRIES_MAX = 4096  # transactional messages sent and not order-acknowledged

_TRACING_BIT = 0x01  # TR of BaseHeader.Flags, in its second byte

TRANSACTIONAL_FIRST = OUTGOING_TRANSACTIONAL_LEVEL << ARRIVAL_BITS


#: A packet and the last second of its life, by the queue manager's own clock.
Waiting = tuple[Packet, int | None]


class InFlight(NamedTuple):
    """A transactional message that was sent in this pass."""

    number: int
    key: int
    size: int
    message_number: int
    confirms: bool  # it is kept until somebody has received it


class Awaiting(Measured):
    """What has arrived at a destination and is kept until it was received there."""

    def __init__(self, usage: Usage, messages: int = 0, size: int = 0) -> None:
        super().__init__(usage, size)
        self.messages = messages

    def add(self, messages: int, size: int) -> None:
        self.messages += messages
        self.grow(size)


class Handed:
    """Messages that were just handed to a session, for the recorder to tell of."""

    __slots__ = ("numbers", "positions", "sizes", "sources")

    def __init__(self) -> None:
        self.sources: list[bytes] = []  # of messages for others; ours need no saying so
        self.numbers: list[int] = []
        self.positions: list[int] = []  # in the sequence; 0 for what is not transactional
        self.sizes: list[int] = []

    def add(self, number: int, position: int, size: int) -> None:
        self.numbers.append(number)
        self.positions.append(position)
        self.sizes.append(size)


class Transmission:
    """The result of one call of `OutgoingQueue.transmit`."""

    __slots__ = ("again", "bytes", "expired", "first", "messages", "too_large", "traced")

    def __init__(self) -> None:
        self.messages = 0  # that were handed to the session
        self.bytes = 0  # of them
        self.first = Handed()  # those that were handed for the first time
        self.again = Handed()  # the others
        self.expired: list[int] = []  # keys of messages that were not handed: their time is over
        self.too_large: list[int] = []  # keys of messages that the peer does not take
        self.traced: list[bytes] = []  # packets that ask for reports


class OutgoingQueue(Measured):
    """Everything for one destination; `key` is the destination's casefolded format name."""

    def __init__(
        self,
        *,
        id: int,
        destination: str,
        key: str,
        address: QueueAddress,
        link: Way,
        sequence: OutgoingSequence,
        paused: bool = False,
        usage: Usage,
        others: int = 0,
        size: int = 0,
        awaiting: Totals = EMPTY,
        others_usage: Usage | None = None,
    ) -> None:
        self.others_usage = others_usage
        self.for_others = others_usage is not None  # holds what others have sent: relaying.py
        super().__init__(usage, size)
        self.redirect: str | None = None  # where its messages go instead of to its name's address
        self.renumbered_to = 0  # up to this key packets bear a sequence that is over
        self.doubt = ""  # why its peer seems to know more of its sequence than we do
        self.is_stopped = False  # nothing transactional goes: its sequence is being begun anew
        self.hindrance = ""  # why its transactional messages stay, beside what its link says
        self.known_peer: bytes | None = None  # whom transactional messages were last handed to
        self.is_stored = False  # its row is on the disk
        self.used_at = 0.0  # by the loop's clock
        self.timestamps: set[int] = set()  # of its sequences that peers may speak of
        # Called before the first message since the start that begins a sequence: it gets its id.
        self.begin_sequence: Callable[[OutgoingQueue], None] | None = None
        self.awaiting = Awaiting(usage, *awaiting)
        self.id = id
        self.destination = destination
        self.key = key
        self.address = address
        self.link = link
        self.sequence = sequence
        self.stored_sequence_id = sequence.sequence_id  # what the open batch leaves on the disk
        self.paused = paused
        self.others = others  # what is not of our sequence: express, recoverable, others' own
        self.removing: set[int] = set()  # keys; what follows them in the sequence waits
        self.window: ReadyWindow[Waiting] = ReadyWindow(
            entries_max=WINDOW_ENTRIES_MAX, bytes_max=WINDOW_BYTES_MAX
        )
        if self.messages:
            self.window.clear_to_disk(0)
        self.express: dict[int, Waiting] = {}  # all of them: they are nowhere else
        self._express_deadlines = Deadlines()
        self.in_flight: dict[int, Packet] = {}  # recoverable, on the session, by key
        self.transmitted: deque[InFlight] = deque()
        # Acknowledged in order up to this key by what only the disk could count: it does so itself.
        self.known_to_disk = 0
        self.resent_count = 0
        self.why_again = "its queue manager was started"  # what began the pass
        self._again: set[int] = set()  # keys of recoverable ones that another session has had
        # Of some of its messages the sent time may be by a clock that was set since.
        self.may_be_misdated = False

    def grow(self, size: int) -> None:
        if not self.bytes:
            self.may_be_misdated = False
        super().grow(size)
        if self.others_usage is not None:
            self.others_usage.bytes += size

    def shrink(self, size: int) -> None:
        super().shrink(size)
        if self.others_usage is not None:
            self.others_usage.bytes -= size

    @property
    def peer(self) -> str:
        """The queue manager at the other end, or where it is while that is not known."""
        return self.link.peer

    @property
    def sequence_id(self) -> int:
        """That of its sequence, under way or ended."""
        return self.sequence.sequence_id

    @property
    def messages(self) -> int:
        return self.others + self.sequence.outstanding

    @property
    def has_sequence(self) -> bool:
        """Whether it ever had a transactional message of ours."""
        sequence = self.sequence
        return sequence.next_number > 1 or sequence.base > 0

    @property
    def is_order_queue(self) -> bool:
        """Whether final acks go there, to an address that only its name knows."""
        return " via " in self.destination

    @property
    def is_idle(self) -> bool:
        """Whether it holds nothing, waits for nothing, and has nothing that an operator has set."""
        return self.is_stored and not (
            self.messages
            or self.bytes
            or self.awaiting.messages
            or self.paused
            or self.redirect is not None
            or self.express
            or self.in_flight
            or self.transmitted
            or self.removing
        )

    def next_key(self) -> tuple[int, int]:
        """The number for the next transactional message, and the key of its row."""
        if self.begin_sequence is not None and not self.sequence.outstanding:
            self._begin_sequence()
        number = self.sequence.append()
        return number, TRANSACTIONAL_FIRST | (self.sequence.base + number)

    def next_keys(self, count: int) -> tuple[int, int]:
        """`next_key` for so many, which follow the first one."""
        if self.begin_sequence is not None and not self.sequence.outstanding:
            self._begin_sequence()
        number = self.sequence.append(count)
        return number, TRANSACTIONAL_FIRST | (self.sequence.base + number)

    def _begin_sequence(self) -> None:
        begin, self.begin_sequence = self.begin_sequence, None
        assert begin is not None
        begin(self)

    def number_of(self, key: int) -> int:
        """The sequence number of the transactional message at `key`."""
        return (key ^ TRANSACTIONAL_FIRST) - self.sequence.base

    def transmit(
        self,
        session: Session,
        room: int,
        bytes_max: int,
        now: float,
        now_s: int,
        wall_s: int,
        packet_bytes_max: int,
    ) -> Transmission:
        """Hand up to `room` messages to the session, until `bytes_max` is reached.

        No packet that is longer than `packet_bytes_max` is handed.  `now_s` is by the queue
        manager's own clock, `wall_s` by the computer's.
        """
        window, sequence = self.window, self.sequence
        done = Transmission()
        first, again = done.first, done.again
        sent = size = 0
        while sent < room and size < bytes_max and len(done.expired) < EXPIRED_MAX:
            entry = window.peek()
            if entry is None:
                break
            key, (kept, expires_at_s) = entry
            if len(kept) > packet_bytes_max:
                window.pop()
                done.too_large.append(key)
                if key >= TRANSACTIONAL_FIRST:
                    break  # what follows is linked around it, as below
                continue
            packet = kept.whole() if isinstance(kept, SharedPacket) else kept
            if expires_at_s is not None:
                if now_s > expires_at_s:
                    window.pop()
                    done.expired.append(key)
                    if key >= TRANSACTIONAL_FIRST:
                        break  # what follows is linked around it, once it is gone from the disk
                    continue
                if self.may_be_misdated and not self.for_others:
                    packet = _sent_by_this_clock(packet, expires_at_s, now_s, wall_s)
            if key >= TRANSACTIONAL_FIRST:
                number = self.number_of(key)
                if (
                    self.removing
                    or self.is_stopped
                    or len(self.transmitted) >= IN_FLIGHT_ENTRIES_MAX
                    or not sequence.may_transmit(number)
                ):
                    break
                window.pop()
                if number <= sequence.acknowledged:
                    window.remove(key)  # an order ack came after it was read, and its row goes
                    continue
                message = message_number(packet)
                self.transmitted.append(
                    InFlight(number, key, len(packet), message, may_be_confirmed(packet))
                )
                handed = again if sequence.was_transmitted(number) else first
                handed.add(message, number, len(packet))
                previous = sequence.transmit(number, now)
                if previous != number - 1 or key <= self.renumbered_to:
                    packet = self._linked(packet, number, previous)
                session.send(packet, recoverable=True, token=None, now=now)
            else:
                window.pop()
                handed = again if key in self._again else first
                handed.add(message_number(packet), 0, len(packet))
                if self.for_others:
                    handed.sources.append(source_of(packet))
                if is_express(packet):
                    session.send(packet, recoverable=False, token=(self, key), now=now)
                else:
                    self.in_flight[key] = kept if isinstance(kept, SharedPacket) else packet
                    session.send(packet, recoverable=True, token=(self, key), now=now)
            if packet[3] & _TRACING_BIT:
                done.traced.append(packet)
            sent += 1
            size += len(packet)
        done.messages, done.bytes = sent, size
        return done

    def new_pass(self, why: str, *, transactional_only: bool) -> None:
        """Send again, in order, whatever is still there.

        With `transactional_only` the session is alive and keeps what else is in
        flight on it; otherwise the session is gone, and all of it goes again.
        """
        self.why_again = why
        self.sequence.restart()
        self.resent_count += len(self.transmitted)
        self.transmitted.clear()
        if transactional_only:
            self.window.clear_to_disk(TRANSACTIONAL_FIRST)
            return
        self.resent_count += len(self.in_flight)
        self._again.update(self.in_flight)
        self.in_flight.clear()
        self.window.clear_to_disk(0)
        for key, waiting in self.express.items():
            self.window.put_back(key, waiting, len(waiting[0]))

    def forget_transmitted(self, number: int) -> list[InFlight] | None:
        """Messages up to `number` were acknowledged in order; those that it releases.

        None when this pass has not come that far: then only the disk knows.
        """
        transmitted = self.transmitted
        if not transmitted or transmitted[-1].number < number:
            for sent in transmitted:
                self.window.remove(sent.key)
            transmitted.clear()
            return None
        done = []
        while transmitted and transmitted[0].number <= number:
            done.append(transmitted.popleft())
        return done

    def begin_removal(self, key: int) -> bool:
        """A stored message is to be removed, and not sent any more; False if there is none."""
        if key in self.removing:
            return False
        if key >= TRANSACTIONAL_FIRST:
            number = self.number_of(key)
            if not self.sequence.acknowledged < number < self.sequence.next_number:
                return False
        self.removing.add(key)
        self.window.remove(key)
        return True

    def end_removal(self, key: int) -> None:
        """The commit of the removal has returned."""
        self.removing.discard(key)

    def find_transmitted(self, key: int) -> InFlight | None:
        """The transactional message at `key`, if it was sent in this pass."""
        return next((sent for sent in self.transmitted if sent.key == key), None)

    def forget_in_flight(self, key: int) -> InFlight | None:
        """An acknowledgment of the message at `key` tells nothing any more."""
        self._again.discard(key)
        self.in_flight.pop(key, None)
        sent = self.find_transmitted(key)
        if sent is not None:
            self.transmitted.remove(sent)
        return sent

    def take_acknowledged(self, key: int) -> bytes | None:
        """The recoverable message at `key` is the peer's now; None when it is not in flight."""
        self._again.discard(key)
        packet = self.in_flight.pop(key, None)
        return None if packet is None else whole(packet)

    def add_express(self, key: int, packet: Packet, expires_at_s: int | None) -> None:
        """A message that lives here, and nowhere else."""
        self.express[key] = packet, expires_at_s
        self.usage.express_bytes += express_added(packet)
        if expires_at_s is not None:
            self._express_deadlines.add(key, expires_at_s)

    def expired_express(self, now_s: int, messages_max: int) -> list[int]:
        """Keys of express messages whose time is over: all, or so many.  They have to be ended."""
        return self._express_deadlines.pop_over(now_s, messages_max)

    def is_busy_with(self, key: int) -> bool:
        """Whether a stored message is being removed already."""
        return key in self.removing

    def forget_express(self, key: int) -> bytes | None:
        """Drop an express message; None when `key` is none."""
        waiting = self.express.pop(key, None)
        if waiting is None:
            return None
        packet = whole(waiting[0])
        self._express_deadlines.discard(key)
        self.usage.express_bytes -= express_removed(waiting[0])
        self.window.remove(key)
        self.others -= 1
        self.shrink(len(packet))
        return packet

    def _linked(self, packet: bytes, number: int, previous: int) -> bytes:
        copy = bytearray(packet)
        offset = transaction_offset(packet)
        assert offset is not None, "a row of the transactional level has a transaction header"
        patch_sequence(copy, offset, self.sequence.sequence_id, number, previous)
        return bytes(copy)


def _sent_by_this_clock(packet: bytes, expires_at_s: int, now_s: int, wall_s: int) -> bytes:
    """The packet; if the wall clock was set since it was made, with the time of its sending by the
    clock as it is now, because receivers compare that with theirs.  [MS-MQMQ] 2.2.19.1"""
    time_s = reach_time_s(packet)
    assert time_s is not None, "what has a deadline has a time to reach its queue"
    sent_s = wall_s - (now_s - (expires_at_s - time_s))
    if abs(sent_s - sent_time_s(packet)) <= CLOCK_STEP_S:
        return packet
    return with_sent_time(packet, sent_s)
