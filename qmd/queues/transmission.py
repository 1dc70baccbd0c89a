"""Transmission: the messages of an outgoing queue that are handed to a session in one turn.

Most messages of a sequence are handed for the first time, each after the one before it.  They are
handed as a run: the checks, the lists and the counts are for all of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from qmd.core.packet_fields import is_express, may_be_confirmed, message_number
from qmd.message.shared_packet import Packet
from storage.tables.keys import ARRIVAL_BITS, OUTGOING_TRANSACTIONAL_LEVEL

if TYPE_CHECKING:
    from collections import deque
    from collections.abc import Collection

    from qmd.core.ready_window import ReadyWindow
    from qmd.core.sequence import OutgoingSequence
    from qmd.core.session import Session

IN_FLIGHT_ENTRIES_MAX = 4096  # transactional messages sent and not order-acknowledged
TRACING_BIT = 0x01  # TR of BaseHeader.Flags, in its second byte
TRANSACTIONAL_FIRST = OUTGOING_TRANSACTIONAL_LEVEL << ARRIVAL_BITS
_new = tuple.__new__

#: A packet and the last second of its lifetime, by the queue manager's own clock.
Waiting = tuple[Packet, int | None]


class InFlight(NamedTuple):
    """A transactional message that was sent in this pass."""

    number: int
    key: int
    size: int
    message_number: int
    confirms: bool  # it asks for confirmation: it is kept until it was received


class Handed:
    """Messages that were handed to a session, as parallel lists for the event log."""

    __slots__ = ("numbers", "positions", "sizes", "sources")

    def __init__(self) -> None:
        self.sources: list[bytes] = []  # of relayed messages; empty in other queues
        self.numbers: list[int] = []
        self.positions: list[int] = []  # in the sequence; 0: not transactional
        self.sizes: list[int] = []

    def add(self, number: int, position: int, size: int) -> None:
        """Add a message: its number, its position in the sequence, and its bytes."""
        self.numbers.append(number)
        self.positions.append(position)
        self.sizes.append(size)


class Transmission:
    """The result of one call of `OutgoingQueue.transmit`."""

    __slots__ = ("again", "bytes", "expired", "first", "messages", "too_large", "traced")

    def __init__(self) -> None:
        self.messages = 0  # number of messages that were handed to the session
        self.bytes = 0  # of their packets
        self.first = Handed()  # messages that were handed for the first time
        self.again = Handed()  # all others
        self.expired: list[int] = []  # keys of messages that expired and were not handed
        self.too_large: list[int] = []  # keys of messages that the peer does not take
        self.traced: list[bytes] = []  # packets that ask for reports


class TransmitLimits(NamedTuple):
    """The limits of one transmission."""

    messages: int
    bytes: int  # a transmission ends when this many were handed
    packet_bytes: int  # the largest packet that the peer takes


class Moment(NamedTuple):
    """The present time by three clocks, in seconds."""

    loop_s: float  # by the event loop
    own_s: int  # by the queue manager's own clock, which deadlines refer to
    wall_s: int  # by the wall clock of the computer


def transmit_run(
    window: ReadyWindow[Waiting],
    sequence: OutgoingSequence,
    transmitted: deque[InFlight],
    session: Session,
    done: Transmission,
    limits: TransmitLimits,
    at: Moment,
    *,
    renumbered_to: int,
) -> tuple[int, int]:
    """Hand a run of transactional messages to the session; return their number and bytes.

    They are whole, not expired, not traced, follow the last message in flight without gaps, and
    were never sent before.  All others are left to `OutgoingQueue.transmit`.  `renumbered_to` is
    that of the queue.
    """
    bytes_max, packet_bytes_max, now_s = limits.bytes, limits.packet_bytes, at.own_s
    room = min(limits.messages, IN_FLIGHT_ENTRIES_MAX - len(transmitted))
    entry = window.peek()
    if entry is None or room <= 0:
        return 0, 0
    first_key = entry[0]
    first = (first_key ^ TRANSACTIONAL_FIRST) - sequence.base
    if first_key <= max(TRANSACTIONAL_FIRST, renumbered_to) or not sequence.continues(first):
        return 0, 0
    entries = window.pop_run(room, bytes_max)
    packets: list[bytes] = []
    sizes: list[int] = []
    size = 0
    for key, (packet, expires_at_s), packet_bytes in entries:
        if (
            type(packet) is not bytes
            or key != first_key + len(packets)
            or packet_bytes > packet_bytes_max
            or (expires_at_s is not None and now_s > expires_at_s)
            or packet[3] & TRACING_BIT
        ):
            break
        packets.append(packet)
        sizes.append(packet_bytes)
        size += packet_bytes
    count = len(packets)
    for key, item, packet_bytes in reversed(entries[count:]):
        window.put_back(key, item, packet_bytes)
    if not count:
        return 0, 0
    numbers = range(first, first + count)
    messages = [message_number(packet) for packet in packets]
    confirms = [may_be_confirmed(packet) for packet in packets]
    keys = range(first_key, first_key + count)
    transmitted.extend(
        [
            _new(InFlight, fields)
            for fields in zip(numbers, keys, sizes, messages, confirms, strict=True)
        ]
    )
    done.first.numbers += messages
    done.first.positions += numbers
    done.first.sizes += sizes
    sequence.transmit_run(first, count)
    session.send_run(packets, at.loop_s)
    return count, size


def transmit_recoverable_run(
    window: ReadyWindow[Waiting],
    in_flight: dict[int, Packet],
    again: Collection[int],
    owner: object,
    session: Session,
    done: Transmission,
    limits: TransmitLimits,
    at: Moment,
) -> tuple[int, int]:
    """Hand a run of recoverable messages to the session; return their number and bytes.

    They are whole, not expired, not traced, and none of them is in `again`: were never sent before.
    All others are left to `OutgoingQueue.transmit`.  The tokens are (`owner`, key).
    """
    entry = window.peek()
    if entry is None:
        return 0, 0
    key, (packet, _) = entry
    if type(packet) is not bytes or is_express(packet) or key in again:
        return 0, 0
    packet_bytes_max, now_s = limits.packet_bytes, at.own_s
    entries = window.pop_run(limits.messages, limits.bytes)
    keys: list[int] = []
    packets: list[bytes] = []
    sizes: list[int] = []
    for key, (packet, expires_at_s), packet_bytes in entries:
        if (
            type(packet) is not bytes
            or packet_bytes > packet_bytes_max
            or (expires_at_s is not None and now_s > expires_at_s)
            or packet[3] & TRACING_BIT
            or key in again
        ):
            break
        keys.append(key)
        packets.append(packet)
        sizes.append(packet_bytes)
    count = len(keys)
    for key, item, packet_bytes in reversed(entries[count:]):
        window.put_back(key, item, packet_bytes)
    if not count:
        return 0, 0
    in_flight.update(zip(keys, packets, strict=True))
    done.first.numbers += [message_number(packet) for packet in packets]
    done.first.positions += [0] * count
    done.first.sizes += sizes
    session.send_run(packets, at.loop_s, [(owner, key) for key in keys])
    return count, sum(sizes)
