"""Transmission: runs of messages, against the same messages handed one by one."""

from __future__ import annotations

from collections import deque

import pytest

from protocol import patch_sequence, transaction_offset
from qmd.core.ready_window import ReadyWindow
from qmd.core.sequence import OutgoingSequence
from qmd.core.session import Session
from qmd.queues.transmission import (
    TRANSACTIONAL_FIRST,
    InFlight,
    Moment,
    Transmission,
    TransmitLimits,
    Waiting,
    transmit_run,
)
from tests.unit.core.session_wire import message, open_session

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
