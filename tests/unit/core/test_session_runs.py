"""Runs of a session: like messages received and sent together, with the effects of single ones."""

from __future__ import annotations

import random

import pytest

from protocol import patch_sequence, transaction_offset
from qmd.core.session import Closed, Event, MessageReceived, RunReceived, Session
from qmd.core.session_events import one_by_one
from tests.unit.core.session_wire import message, open_session, session_ack, with_ack


def transactional(number: int, position: int, *, previous: int | None = None) -> bytes:
    packet = bytearray(message(number, "transactional"))
    at = transaction_offset(packet)
    assert at is not None
    patch_sequence(packet, at, 1 << 32, position, position - 1 if previous is None else previous)
    return bytes(packet)


def receiver(*, takes_runs: bool) -> Session:
    session = open_session()
    session.takes_runs = takes_runs
    return session


def received(events: list[Event]) -> list[MessageReceived]:
    return one_by_one([each for each in events if isinstance(each, MessageReceived | RunReceived)])


def plain_messages(count: int, first: int) -> list[bytes]:
    """Return recoverable messages with successive numbers."""
    return [message(number, "recoverable") for number in range(first, first + count)]


def drawn_stream(draw: random.Random) -> list[bytes]:
    """Return packets of which most follow each other in one sequence."""
    stream: list[bytes] = []
    position = recoverable = 0
    for number in range(1, 60):
        kind = draw.choices(
            ["next", "gap", "again", "plain", "plain run", "ack", "with ack"],
            [20, 1, 1, 1, 1, 1, 1],
        )
        if kind == ["ack"]:
            stream.append(session_ack(sent=len(counted(stream)), recoverable_sent=recoverable))
            continue
        if kind == ["plain run"]:
            count = draw.randint(2, 12)
            stream += plain_messages(count, 100 * number)
            recoverable += count
            continue
        recoverable += 1
        if kind == ["plain"]:
            stream.append(message(number, "recoverable"))
            continue
        position += {"gap": 2, "again": 0}.get(kind[0], 1)
        packet = transactional(number, max(position, 1))
        if kind == ["with ack"]:
            sent = len(counted(stream)) + 1
            packet = with_ack(packet, sent=sent, recoverable_sent=recoverable)
        stream.append(packet)
    return stream


def counted(stream: list[bytes]) -> list[bytes]:
    return [packet for packet in stream if not packet[2] & 8]


@pytest.mark.parametrize("seed", range(30))
def test_messages_of_runs_are_those_of_a_session_without_runs(seed: int) -> None:
    draw = random.Random(seed)
    stream = drawn_stream(draw)
    one, other = receiver(takes_runs=False), receiver(takes_runs=True)
    found, expected = [], []
    while stream:
        some, stream = stream[: (count := draw.randint(1, 20))], stream[count:]
        expected += one.receive(some, 0.0)
        found += other.receive(some, 0.0)
    assert not any(isinstance(each, Closed) for each in expected)
    assert received(found) == received(expected)
    runs = [each for each in found if isinstance(each, RunReceived)]
    assert {run.message.transaction is not None for run in runs} >= {True}
    assert other.incoming.received_count == one.incoming.received_count
    assert other.incoming.recoverable_received_count == one.incoming.recoverable_received_count
    assert other.next_timer() == one.next_timer()


def test_recoverable_messages_are_a_run() -> None:
    session = receiver(takes_runs=True)

    first, run, other, *rest = session.receive(
        [*plain_messages(6, 11), *plain_messages(4, 30), message(7)], 0.0
    )

    assert isinstance(first, MessageReceived)
    assert isinstance(run, RunReceived)
    assert list(run.run.message_numbers) == [12, 13, 14, 15, 16]
    assert [each.recoverable_number for each in run.singles()] == [2, 3, 4, 5, 6]
    assert isinstance(other, MessageReceived)
    assert other.recoverable_number == 7
    assert received(rest)[-1].recoverable_number == 0, "an express message is in no run"
    assert session.incoming.recoverable_received_count == 10


def test_a_packet_that_breaks_the_rules_ends_the_session_behind_a_run() -> None:
    session = receiver(takes_runs=True)
    broken = bytearray(transactional(6, 6))
    broken[60] |= 0x40  # a delivery that does not exist
    stream = [*(transactional(number, number) for number in range(1, 6)), bytes(broken)]

    first, run, end = session.receive(stream, 0.0)

    assert isinstance(first, MessageReceived)
    assert isinstance(run, RunReceived)
    assert len(run.run.packets) == 4
    assert isinstance(end, Closed)


def test_a_run_is_sent_as_its_messages_would_be_one_by_one() -> None:
    one, other = open_session(), open_session()
    packets = [transactional(number, number) for number in range(1, 20)]
    for packet in packets:
        one.send(packet, recoverable=True, token=None, now=1.0)
    other.send_run(packets, 1.0)
    assert other.data_to_send() == one.data_to_send() == b"".join(packets)
    assert (other.room(), other.next_timer()) == (one.room(), one.next_timer())
    ack = session_ack(19, 1, (1 << 19) - 1)
    for session in (one, other):
        assert session.outgoing.outstanding
        assert session.receive([ack], 2.0) == []
        assert not session.outgoing.outstanding
        assert session.room() == 64


def test_a_run_carries_an_acknowledgment_that_is_almost_due() -> None:
    one, other = open_session(), open_session()
    packets = [transactional(number, number) for number in range(1, 4)]
    for session in (one, other):
        session.receive([message(1, "recoverable")], 0.0)
        session.mark_stored([1], 0.0)
        session.receive([message(2)], 1.0)
        session.data_to_send()
    now = one.incoming.piggyback_after + 0.001
    for packet in packets:
        one.send(packet, recoverable=True, token=None, now=now)
    other.send_run(packets, now)
    sent = one.data_to_send()
    assert other.data_to_send() == sent
    assert len(sent) == sum(map(len, packets)) + 16
