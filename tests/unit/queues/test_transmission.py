"""Transmission: runs of messages, against the same messages handed one by one."""

from __future__ import annotations

from collections import deque

import pytest

from protocol import patch_sequence, transaction_offset
from qmd.core.ready_window import ReadyWindow
from qmd.core.sequence import OutgoingSequence
from qmd.core.session import Acknowledged, Session
from qmd.message.shared_packet import Packet
from qmd.queues.transmission import (
    TRANSACTIONAL_FIRST,
    InFlight,
    Moment,
    Transmission,
    TransmitLimits,
    Waiting,
    transmit_recoverable_run,
    transmit_run,
)
from tests.unit.core.session_wire import message, open_session, session_ack

ID = 0x65000000_00000001
NOW_S = 1000
AT = Moment(5.0, NOW_S, 0)
LIMITS = TransmitLimits(64, 1 << 20, 4096)


class Way:
    """The parts of an outgoing queue with `count` messages, of which the first one was sent."""

    def __init__(self, count: int, *, body_size: int = 3) -> None:
        self.window: ReadyWindow[Waiting] = ReadyWindow(entries_max=1000, bytes_max=1 << 20)
        self.sequence = OutgoingSequence(ID)
        self.sequence.append(count)
        self.transmitted: deque[InFlight] = deque()
        self.session: Session = open_session()
        self.done = Transmission()
        self.packets = [placed(number, body_size) for number in range(1, count + 1)]
        self.add(*range(2, count + 1))
        self.sequence.transmit(1, 0.0)

    def add(self, *numbers: int, expires_at_s: int | None = None) -> None:
        for number in numbers:
            packet = self.packets[number - 1]
            key = TRANSACTIONAL_FIRST | number
            self.window.add(key, (packet, expires_at_s), len(packet), stored=True)

    def run(self, limits: TransmitLimits = LIMITS, *, renumbered_to: int = 0) -> int:
        before = len(self.done.first.numbers)
        count, size = transmit_run(
            *(self.window, self.sequence, self.transmitted, self.session, self.done, limits, AT),
            renumbered_to=renumbered_to,
        )
        assert size == sum(self.done.first.sizes[before:])
        return count


def placed(number: int, body_size: int = 3) -> bytes:
    packet = bytearray(message(100 + number, "transactional", body_size=body_size))
    at = transaction_offset(packet)
    assert at is not None
    patch_sequence(packet, at, ID, number, number - 1)
    return bytes(packet)


def test_a_run_has_the_effects_of_its_messages() -> None:
    way = Way(20)

    assert way.run() == 19

    assert way.session.data_to_send() == b"".join(way.packets[1:])
    assert list(way.sequence.in_flight) == list(range(1, 21))
    assert way.sequence.was_transmitted(20)
    sizes = [len(packet) for packet in way.packets[1:]]
    assert list(way.transmitted) == [
        InFlight(number, TRANSACTIONAL_FIRST | number, size, 100 + number, False)
        for number, size in zip(range(2, 21), sizes, strict=True)
    ]
    assert way.done.first.numbers == list(range(102, 121))
    assert way.done.first.positions == list(range(2, 21))
    assert way.done.again.numbers == []
    assert way.window.pop() is None
    assert way.run() == 0


@pytest.mark.parametrize(
    "limits",
    [
        LIMITS._replace(messages=5),
        LIMITS._replace(bytes=5 * len(placed(1))),
        LIMITS._replace(bytes=6 * len(placed(1)) - 1),
    ],
)
def test_a_run_ends_at_the_limits(limits: TransmitLimits) -> None:
    way = Way(20)
    assert way.run(limits) == 5
    assert way.run() == 14


def test_a_message_that_needs_a_look_ends_the_run() -> None:
    for spoil in ("gap", "expired", "large", "traced"):
        way = Way(20)
        way.window.remove(TRANSACTIONAL_FIRST | 11)
        if spoil == "expired":
            way.add(11, expires_at_s=NOW_S - 1)
        elif spoil == "large":
            way.packets[10] = placed(11, 5000)
            way.add(11)
        elif spoil == "traced":
            traced = bytearray(way.packets[10])
            traced[3] |= 1
            way.packets[10] = bytes(traced)
            way.add(11)
        assert way.run() == 9, spoil
        assert way.run() == 0, spoil


def test_a_message_that_expires_later_is_no_end() -> None:
    way = Way(20)
    way.window.remove(TRANSACTIONAL_FIRST | 11)
    way.add(11, expires_at_s=NOW_S)
    assert way.run() == 19


def test_there_is_no_run_where_messages_are_sent_again_or_linked() -> None:
    nothing_in_flight = Way(20)
    nothing_in_flight.sequence.acknowledge(ID, 1, 0.0)
    again = Way(20)
    again.sequence.transmit(2, 0.0)
    again.sequence.transmit(3, 0.0)
    again.sequence.restart()
    again.sequence.transmit(1, 0.0)
    for way in (nothing_in_flight, again):
        assert way.run() == 0
    assert Way(20).run(renumbered_to=TRANSACTIONAL_FIRST | 2) == 0
    unproven = Way(20)
    unproven.sequence.is_unproven = True
    assert unproven.run() == 0


class Plain:
    """The parts of an outgoing queue with `count` recoverable messages."""

    def __init__(self, count: int) -> None:
        self.window: ReadyWindow[Waiting] = ReadyWindow(entries_max=1000, bytes_max=1 << 20)
        self.in_flight: dict[int, Packet] = {}
        self.again: set[int] = set()
        self.session: Session = open_session()
        self.done = Transmission()
        self.packets = {key: message(100 + key, "recoverable") for key in range(1, count + 1)}
        for key in self.packets:
            self.add(key)

    def add(self, key: int, *, expires_at_s: int | None = None, stored: bool = True) -> None:
        packet = self.packets[key]
        self.window.add(key, (packet, expires_at_s), len(packet), stored=stored)

    def run(self, limits: TransmitLimits = LIMITS) -> int:
        before = len(self.done.first.numbers)
        count, size = transmit_recoverable_run(
            *(self.window, self.in_flight, self.again, self, self.session, self.done, limits, AT)
        )
        assert size == sum(self.done.first.sizes[before:])
        return count


def test_a_run_of_recoverable_messages_has_the_effects_of_its_messages() -> None:
    queue = Plain(20)

    assert queue.run(LIMITS._replace(messages=5)) == 5
    assert queue.run() == 15

    assert queue.session.data_to_send() == b"".join(queue.packets.values())
    assert queue.in_flight == queue.packets
    assert queue.done.first.numbers == list(range(101, 121))
    assert queue.done.first.positions == [0] * 20
    assert queue.window.pop() is None
    (acknowledged,) = queue.session.receive([session_ack(20, 1, (1 << 20) - 1)], 6.0)
    assert isinstance(acknowledged, Acknowledged)
    assert acknowledged.tokens == [(queue, key) for key in range(1, 21)]
    assert queue.run() == 0


def test_a_recoverable_message_that_needs_a_look_ends_the_run() -> None:
    for spoil in ("again", "expired", "large", "traced"):
        queue = Plain(20)
        queue.window.remove(11)
        if spoil == "again":
            queue.again.add(11)
        elif spoil == "large":
            queue.packets[11] = message(111, "recoverable", body_size=5000)
        elif spoil == "traced":
            traced = bytearray(queue.packets[11])
            traced[3] |= 1
            queue.packets[11] = bytes(traced)
        queue.add(11, expires_at_s=NOW_S - 1 if spoil == "expired" else NOW_S)
        assert queue.run() == 10, spoil
        assert queue.run() == 0, spoil
        assert queue.window.peek() == (11, (queue.packets[11], expiry_of(spoil))), spoil
        assert list(queue.in_flight) == list(range(1, 11))


def expiry_of(spoil: str) -> int:
    return NOW_S - 1 if spoil == "expired" else NOW_S


def test_an_express_message_is_in_no_run() -> None:
    queue = Plain(3)
    express = message(99)
    queue.window.add(0, (express, None), len(express), stored=False)
    assert queue.run() == 0
    assert queue.window.pop() == (0, (express, None))
    assert queue.run() == 3
