"""Outgoing queue: the messages for one remote destination that are not acknowledged yet.

The disk holds every recoverable and transactional message until an acknowledgment of the peer
releases it; this module keeps the bounded window on them and the messages in flight. One pass hands
the stored messages to a session in order. A new session, or the resend timer, begins a new pass at
the first message that is still stored. `qmd/queues/message_states.py` lists all states of a message
and the containers that hold it in each of them.

Keys order the queue: by priority, then age. Transactional messages come last, in the order of their
sequence, at `base + number` of their level.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from protocol import patch_sequence, transaction_offset
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
from qmd.message.addresses import QueueAddress
from qmd.message.shared_packet import Packet, SharedPacket, whole
from qmd.queues.express_messages import ExpressMessages
from qmd.queues.transmission import (
    IN_FLIGHT_ENTRIES_MAX,
    TRACING_BIT,
    TRANSACTIONAL_FIRST,
    InFlight,
    Moment,
    Transmission,
    TransmitLimits,
    Waiting,
    transmit_recoverable_run,
    transmit_run,
)
from qmd.queues.usage import Measured, Usage
from storage.tables.outgoing import OutgoingQueueRow
from storage.tables.pages import EMPTY, Totals

if TYPE_CHECKING:
    from qmd.queues.share import Share
    from qmd.queues.way import Way

WINDOW_ENTRIES_MAX = 4096
WINDOW_BYTES_MAX = 8 * 1024 * 1024
EXPIRED_MAX = 100  # ended in one turn of the loop
CLOCK_STEP_S = 2  # four times in the computation are truncated to seconds

VIA = " via "  # in the name of a queue, before the GUID over which it is reached


class Awaiting(Measured):
    """The messages of a queue that have arrived and wait for their final acks."""

    def __init__(self, usage: Usage, messages: int = 0, size: int = 0) -> None:
        super().__init__(usage, size)
        self.messages = messages

    def add(self, messages: int, size: int) -> None:
        """Count messages that arrived; `size` is the bytes of their packets."""
        self.messages += messages
        self.grow(size)


class StoredContents(NamedTuple):
    """The stored messages of an outgoing queue, counted at the start."""

    others: int = 0  # messages outside the queue's own sequence
    size: int = 0  # bytes of all packets
    awaiting: Totals = EMPTY  # messages that wait for their final acks


NOTHING_STORED = StoredContents()


class OutgoingQueue(Measured):
    """The messages for one destination; `key` is the casefolded format name of the destination."""

    def __init__(
        self,
        row: OutgoingQueueRow,
        *,
        address: QueueAddress,
        link: Way,
        sequence: OutgoingSequence,
        usage: Usage,
        others_usage: Usage | None = None,
        stored: StoredContents = NOTHING_STORED,
    ) -> None:
        """Create the queue of `row`.

        With `others_usage` the queue holds messages that other queue managers sent
        (qmd/transfer/relay.py), and their bytes count there too.
        """
        self.others_usage = others_usage
        self.for_others = others_usage is not None
        self.share: Share | None = None  # of the host that asks for its acknowledgments
        super().__init__(usage, stored.size)
        # The address that replaces the one in the destination's name; set by an operator.
        self.redirect = row.redirect
        self.renumbered_to = row.renumbered_to  # packets up to this key bear an ended sequence
        self.doubt = ""  # why its peer seems to know more of its sequence than is stored here
        self.is_stopped = False  # no transactional message is sent while its sequence begins anew
        self.hindrance = ""  # why transactional messages wait, besides the state of the link
        self.known_peer = row.peer  # the last peer that got transactional messages
        self.is_stored = False  # its row is on the disk
        self.used_at = 0.0  # by the loop's clock
        self.timestamps: set[int] = set()  # of its sequences that peers may refer to
        # Called before the first message since the start that begins a sequence, to assign its id.
        self.begin_sequence: Callable[[OutgoingQueue], None] | None = None
        self.awaiting = Awaiting(usage, *stored.awaiting)
        self.id = row.id
        self.destination = row.destination
        self.key = row.destination.casefold()
        self.address = address
        self.link = link
        self.sequence = sequence
        self.stored_sequence_id = sequence.sequence_id  # on the disk after the open batch
        self.paused = row.paused
        # Messages outside its own sequence: express, recoverable, and all relayed ones.
        self.others = stored.others
        self.removing: set[int] = set()  # keys; later messages of the sequence wait
        self.window: ReadyWindow[Waiting] = ReadyWindow(
            entries_max=WINDOW_ENTRIES_MAX, bytes_max=WINDOW_BYTES_MAX
        )
        if self.messages:
            self.window.clear_to_disk(0)
        self.express: ExpressMessages[Waiting] = ExpressMessages(usage)
        self.in_flight: dict[int, Packet] = {}  # recoverable, handed to the session, by key
        self.transmitted: deque[InFlight] = deque()
        # Order acks for an earlier pass released messages up to this key. Only the disk could count
        # those messages, and a unit of work does.
        self.known_to_disk = 0
        self.resent_count = 0
        self.handed_count = 0  # of messages that were handed to a session, also again
        self.why_again = "its queue manager was started"  # the reason of the present pass
        self._again: set[int] = set()  # keys of recoverable messages that an earlier session had
        # The sent time of some of its messages may be that of a clock that was set since.
        self.may_be_misdated = False

    def grow(self, size: int) -> None:
        """Count `size` more bytes."""
        if not self.bytes:
            self.may_be_misdated = False
        super().grow(size)
        if self.others_usage is not None:
            self.others_usage.bytes += size
        if self.share is not None:
            self.share.grow(size)

    def shrink(self, size: int) -> None:
        """Count `size` fewer bytes."""
        super().shrink(size)
        if self.others_usage is not None:
            self.others_usage.bytes -= size
        if self.share is not None:
            self.share.grow(-size)

    @property
    def peer(self) -> str:
        """The GUID of the queue manager at the other end; its address while that is not known."""
        return self.link.peer

    @property
    def sequence_id(self) -> int:
        """The id of its sequence, whether that is under way or ended."""
        return self.sequence.sequence_id

    @property
    def messages(self) -> int:
        """Number of its messages, without those that wait for final acks."""
        return self.others + self.sequence.outstanding

    @property
    def has_sequence(self) -> bool:
        """Whether it ever had a transactional message of this queue manager."""
        sequence = self.sequence
        return sequence.next_number > 1 or sequence.base > 0

    @property
    def is_order_queue(self) -> bool:
        """Whether final acks are sent there, to an address that only its name contains."""
        return VIA in self.destination

    @property
    def is_idle(self) -> bool:
        """Whether it holds no message, waits for none, and has no setting of an operator."""
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

    def next_key(self, count: int = 1) -> tuple[int, int]:
        """Assign the numbers of the next `count` transactional messages.

        Returns the first number, and the key of its row. The others follow.
        """
        if self.begin_sequence is not None and not self.sequence.outstanding:
            self._begin_sequence()
        number = self.sequence.append(count)
        return number, TRANSACTIONAL_FIRST | (self.sequence.base + number)

    def _begin_sequence(self) -> None:
        begin, self.begin_sequence = self.begin_sequence, None
        assert begin is not None
        begin(self)

    def number_of(self, key: int) -> int:
        """Return the sequence number of the transactional message at `key`."""
        return (key ^ TRANSACTIONAL_FIRST) - self.sequence.base

    def transmit(self, session: Session, limits: TransmitLimits, at: Moment) -> Transmission:
        """Hand messages to the session, in order, up to the limits."""
        room, bytes_max, packet_bytes_max = limits
        now, now_s, wall_s = at
        window, sequence = self.window, self.sequence
        done = Transmission()
        first, again = done.first, done.again
        sent = size = 0
        while sent < room and size < bytes_max and len(done.expired) < EXPIRED_MAX:
            rest = TransmitLimits(room - sent, bytes_max - size, packet_bytes_max)
            count, run_bytes = self._transmit_run(session, done, rest, at)
            if count:
                sent, size = sent + count, size + run_bytes
                continue
            entry = window.peek()
            if entry is None:
                break
            key, (kept, expires_at_s) = entry
            if len(kept) > packet_bytes_max or (expires_at_s is not None and now_s > expires_at_s):
                window.pop()
                (done.too_large if len(kept) > packet_bytes_max else done.expired).append(key)
                if key >= TRANSACTIONAL_FIRST:
                    break  # the next message is linked around it, once its row is removed
                continue
            packet = kept.whole() if isinstance(kept, SharedPacket) else kept
            if expires_at_s is not None and self.may_be_misdated and not self.for_others:
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
                    # An order ack came after the row was read; the row is being deleted.
                    window.remove(key)
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
                recoverable = not is_express(packet)
                if recoverable:
                    self.in_flight[key] = kept if isinstance(kept, SharedPacket) else packet
                session.send(packet, recoverable=recoverable, token=(self, key), now=now)
            if packet[3] & TRACING_BIT:
                done.traced.append(packet)
            sent += 1
            size += len(packet)
        done.messages, done.bytes = sent, size
        return done

    def _transmit_run(
        self, session: Session, done: Transmission, limits: TransmitLimits, at: Moment
    ) -> tuple[int, int]:
        """Hand messages that follow each other to the session; return their number and bytes."""
        entry = self.window.peek()
        if entry is None or self.may_be_misdated:
            return 0, 0
        if entry[0] < TRANSACTIONAL_FIRST:
            if self.for_others:
                return 0, 0
            return transmit_recoverable_run(
                self.window, self.in_flight, self._again, self, session, done, limits, at
            )
        if self.removing or self.is_stopped:
            return 0, 0
        return transmit_run(
            *(self.window, self.sequence, self.transmitted, session, done, limits, at),
            renumbered_to=self.renumbered_to,
        )

    def new_pass(self, why: str, *, transactional_only: bool) -> None:
        """Begin again to send, in order, all messages that are still stored.

        With `transactional_only` the session is alive and keeps the other messages in flight;
        otherwise the session has ended, and all messages are sent again.
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
        """Forget the messages up to `number`, which were acknowledged in order; return them.

        Returns None if this pass has not sent `number` yet; then only the disk can find them.
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
        """Mark a stored message as being removed, so that it is not sent; False: there is none."""
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
        """Remove the mark of `begin_removal`, after the commit."""
        self.removing.discard(key)

    def find_transmitted(self, key: int) -> InFlight | None:
        """Return the transactional message at `key` if this pass has sent it, or None."""
        return next((sent for sent in self.transmitted if sent.key == key), None)

    def forget_in_flight(self, key: int) -> InFlight | None:
        """Forget that the message at `key` is in flight, so that no acknowledgment counts it out.

        Returns a transactional message if this pass has sent it, or None.
        """
        self._again.discard(key)
        self.in_flight.pop(key, None)
        sent = self.find_transmitted(key)
        if sent is not None:
            self.transmitted.remove(sent)
        return sent

    def take_acknowledged(self, key: int) -> bytes | None:
        """Forget the recoverable message at `key`, which was acknowledged; return its packet.

        Returns None if it is not in flight.
        """
        self._again.discard(key)
        packet = self.in_flight.pop(key, None)
        return None if packet is None else whole(packet)

    def is_busy_with(self, key: int) -> bool:
        """Return whether the removal of a stored message is under way."""
        return key in self.removing

    def forget_express(self, key: int) -> bytes | None:
        """Remove an express message and return its packet; None: there is none at `key`."""
        waiting = self.express.get(key)
        if waiting is None:
            return None
        kept, expires_at_s = waiting
        packet = whole(kept)
        self.express.drop(key, kept, expires_at_s)
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
    """Return the packet with its sent time by the present wall clock.

    Receivers compare that time with their clocks, and the wall clock may have been set since the
    packet was built. [MS-MQMQ] 2.2.19.1
    """
    time_s = reach_time_s(packet)
    if time_s is None:
        return packet  # an acknowledgment, which only this queue manager limits
    sent_s = wall_s - (now_s - (expires_at_s - time_s))
    if abs(sent_s - sent_time_s(packet)) <= CLOCK_STEP_S:
        return packet
    return with_sent_time(packet, sent_s)
