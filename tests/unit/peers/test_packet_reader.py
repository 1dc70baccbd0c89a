"""Packet reader: packets wait for their turn, for the disk and for memory, without a socket."""

from __future__ import annotations

import gc
import weakref

import pytest

from qmd.peers.packet_reader import (
    TINY_READS_MAX,
    TURN_PACKETS_MAX,
    TURN_PACKETS_MIN,
)
from qmd.peers.reputation import TRUST
from qmd.runtime.fair_scheduler import Class
from tests.unit.peers.reader import Setup, packet


def test_the_packets_of_a_trusted_connection_are_processed_at_once() -> None:
    setup = Setup()

    setup.read(packet() * 5)

    assert setup.processed == [5]
    assert setup.transport.is_read
    assert setup.reader.bytes_received == 500


def test_more_than_a_turn_waits_as_heavy_and_is_not_read_meanwhile() -> None:
    setup = Setup()

    setup.read(packet() * (2 * TURN_PACKETS_MAX + 1))
    assert setup.processed == [TURN_PACKETS_MAX]
    assert not setup.transport.is_read

    while setup.turns.waiting:
        assert setup.turns.serve() is Class.HEAVY
    assert sum(setup.processed) == 2 * TURN_PACKETS_MAX + 1
    assert setup.transport.is_read


def test_a_trusted_peer_within_its_wide_window_waits_as_light() -> None:
    setup = Setup()
    setup.connection.session.announced_window = 10 * TURN_PACKETS_MAX
    count = 5 * TURN_PACKETS_MAX + 1

    setup.read(packet() * count)
    while setup.turns.waiting:
        assert setup.turns.serve() is Class.LIGHT

    assert sum(setup.processed) == count
    assert max(setup.processed) == TURN_PACKETS_MAX
    assert setup.reputation.floods_until <= 0
    assert setup.transport.is_read


def test_an_untrusted_peer_has_no_wide_window() -> None:
    setup = Setup(is_trusted=False)
    setup.connection.session.announced_window = 10 * TURN_PACKETS_MAX

    setup.read(packet() * (2 * TURN_PACKETS_MAX))

    assert setup.turns.serve() is Class.HEAVY
    assert setup.reputation.floods_until > 0


def test_a_peer_that_exceeds_its_wide_window_floods() -> None:
    setup = Setup()
    setup.connection.session.announced_window = 2 * TURN_PACKETS_MAX

    setup.read(packet() * (4 * TURN_PACKETS_MAX))

    assert setup.turns.serve() is Class.HEAVY
    assert setup.reputation.floods_until > 0


def test_packets_without_messages_make_no_connection_trusted() -> None:
    setup = Setup(is_trusted=False)
    setup.connection.messages_of_a_packet = 0

    setup.read(packet() * (2 * TRUST))
    while setup.turns.waiting:
        setup.turns.serve()

    assert not setup.reputation.is_trusted
    assert setup.proved_count == 0


def test_an_untrusted_connection_waits_for_its_turn_until_it_is_useful() -> None:
    setup = Setup(is_trusted=False)

    setup.read(packet() * TRUST)
    assert setup.processed == []

    while setup.turns.waiting:
        assert setup.turns.serve() is Class.UNTRUSTED
    assert setup.processed == [TURN_PACKETS_MIN] * (TRUST // TURN_PACKETS_MIN)
    assert setup.reputation.is_trusted

    setup.read(packet())
    assert setup.processed[-1] == 1


def test_useless_packets_do_not_make_a_connection_trusted() -> None:
    setup = Setup(is_trusted=False)
    setup.connection.on_process = lambda packets: setup.reputation.count_useless(1, 100.0)

    setup.read(packet() * TRUST)
    while setup.turns.waiting:
        setup.turns.serve()

    assert sum(setup.processed) == TRUST
    assert not setup.reputation.is_trusted


def test_packets_wait_for_the_disk() -> None:
    setup = Setup()

    setup.reader.pause()
    setup.read(packet())
    assert setup.processed == []
    assert not setup.transport.is_read

    setup.reader.resume()
    assert setup.processed == [1]
    assert setup.transport.is_read


def test_a_large_packet_waits_for_memory() -> None:
    setup = Setup()
    setup.memory.room = 0

    setup.read(packet(1_000_000)[:60_000])
    assert setup.memory.waiting == [setup.reader]
    assert not setup.reader.is_read

    setup.memory.room = 10_000_000
    setup.reader.memory_available()
    assert setup.reader.is_read


def test_packets_before_a_fault_are_processed_and_then_the_connection_is_closed() -> None:
    setup = Setup()

    setup.read(packet() + b"no packet at all")

    assert setup.processed == [1]
    assert setup.connection.closed[0].startswith("bytes that are not a packet")


def test_reads_of_few_bytes_wait_for_more() -> None:
    setup = Setup()

    for at in range(TINY_READS_MAX + 1):
        setup.read(packet()[at : at + 1])

    assert setup.turns.waiting == [(setup.reader, Class.UNTRUSTED)]
    assert not setup.transport.is_read
    setup.turns.serve()
    assert setup.transport.is_read


@pytest.mark.parametrize("is_trusted", [True, False])
def test_a_lost_connection_is_closed_at_once_only_if_it_is_trusted(is_trusted: bool) -> None:
    setup = Setup(is_trusted=is_trusted)

    setup.reader.connection_lost("the peer closed the connection")
    assert bool(setup.connection.closed) == is_trusted

    while setup.turns.waiting:
        setup.turns.serve()
    assert setup.connection.closed == ["the peer closed the connection"]


def test_nothing_is_processed_after_the_connection_was_closed_by_its_packets() -> None:
    setup = Setup()
    setup.connection.on_process = lambda packets: setup.reader.close()

    setup.read(packet() * (TURN_PACKETS_MAX + 1))
    setup.read(packet())

    assert setup.processed == [TURN_PACKETS_MAX]
    assert setup.turns.waiting == []


def test_a_closed_reader_does_not_keep_its_connection() -> None:
    setup = Setup()
    setup.read(packet())
    seen = weakref.ref(setup.connection)
    gc.disable()
    try:
        setup.reader.close()
        del setup.connection

        assert seen() is None
    finally:
        gc.enable()
