"""Packet reader: large packets have turns of their own, and are stored ahead."""

from __future__ import annotations

from qmd.peers.packet_reader import (
    TURN_PACKETS_MAX,
)
from qmd.runtime.bulk_turns import LARGE_BYTES, TURN_BYTES
from qmd.runtime.fair_scheduler import Class
from tests.unit.peers.reader import Setup, packet


def test_large_packets_take_turns_of_their_own() -> None:
    setup = Setup()
    small, large = packet(), packet(LARGE_BYTES + 1)

    setup.read(small * 2)
    for start in range(0, len(large), 16_384):
        setup.read(large[start : start + 16_384])
    assert setup.processed == [2]

    assert setup.turns.serve() is Class.BULK
    assert setup.processed == [2, 1]
    assert setup.transport.is_read


def test_large_packets_explain_small_ones_of_their_session() -> None:
    setup = Setup()
    setup.read(packet() * 2)
    assert not setup.reader.large.explains(100.0)

    read_large(setup)
    setup.turns.serve(100.0)

    assert setup.reader.large.explains(100.0)


def test_large_packets_that_are_not_too_large_together_have_one_turn() -> None:
    setup = Setup()
    size = LARGE_BYTES + 1
    setup.reader.pause()
    for _ in range(TURN_BYTES // size + 1):
        setup.transport.is_read = True
        read_large(setup)
    setup.reader.resume()

    while setup.turns.waiting:
        assert setup.turns.serve() is Class.BULK

    assert setup.processed == [TURN_BYTES // size, 1]


def test_a_session_of_large_packets_alone_goes_on_after_a_turn_of_packets() -> None:
    setup = Setup()
    setup.connection.session.announced_window = 10 * TURN_PACKETS_MAX

    for _ in range(2 * TURN_PACKETS_MAX):
        read_large(setup)
        assert setup.turns.serve() is Class.BULK
        assert not setup.turns.waiting

    assert sum(setup.processed) == 2 * TURN_PACKETS_MAX


def read_large(setup: Setup, size: int = LARGE_BYTES + 1) -> bytes:
    """Let the peer send a large packet; return it."""
    large = packet(size)
    for start in range(0, len(large), 16_384):
        setup.read(large[start : start + 16_384])
    return large


def test_a_large_packet_is_processed_when_its_end_is_stored() -> None:
    setup = Setup()
    setup.connection.ahead.stores_ahead = True
    large = read_large(setup)

    assert setup.turns.serve() is Class.BULK
    [(ahead, on_end)] = setup.connection.ahead.stored
    assert ahead == large
    assert setup.processed == []
    assert not setup.turns.waiting

    on_end()
    assert setup.processed == []
    assert setup.turns.serve() is Class.BULK
    assert setup.processed == [1]
    assert setup.connection.ahead.forgotten_count == 1
    assert setup.transport.is_read
    assert len(setup.connection.ahead.stored) == 1


def test_the_end_of_a_packet_is_kept_while_it_is_decided_about() -> None:
    setup = Setup()
    setup.connection.ahead.stores_ahead = True
    setup.connection.on_process = lambda packets: setup.reader.pause()
    read_large(setup)
    setup.turns.serve()
    setup.connection.ahead.stored[0][1]()

    setup.turns.serve()
    assert setup.processed == [1]
    assert setup.connection.ahead.forgotten_count == 0

    setup.reader.resume()
    assert setup.connection.ahead.forgotten_count == 1


def test_an_end_that_is_stored_after_the_connection_has_closed_wakes_nothing() -> None:
    setup = Setup()
    setup.connection.ahead.stores_ahead = True
    read_large(setup)
    setup.turns.serve()

    setup.reader.close()
    assert setup.connection.ahead.forgotten_count == 1
    setup.connection.ahead.stored[0][1]()

    assert not setup.turns.waiting
    assert setup.processed == []


def test_a_lost_connection_ends_when_the_end_of_its_packet_is_stored() -> None:
    setup = Setup(is_trusted=False)
    setup.connection.ahead.stores_ahead = True
    read_large(setup)
    setup.turns.serve()

    setup.reader.connection_lost("the peer closed the connection")
    assert setup.connection.closed == []
    setup.connection.ahead.stored[0][1]()
    setup.turns.serve()

    assert setup.processed == [1]  # it had arrived before
    assert setup.connection.closed == ["the peer closed the connection"]


def test_the_next_packet_is_read_while_the_end_of_a_large_one_is_stored() -> None:
    setup = Setup()
    setup.connection.ahead.stores_ahead = True
    read_large(setup, TURN_BYTES + 1)
    assert not setup.transport.is_read
    setup.turns.serve()

    assert setup.transport.is_read
    assert not setup.reader.is_read  # it would be processed later
    read_large(setup, TURN_BYTES + 1)
    assert not setup.transport.is_read  # no third one
    assert setup.processed == []
    assert not setup.turns.waiting

    setup.connection.ahead.stored[0][1]()
    setup.turns.serve()
    assert setup.processed == [1]
    assert len(setup.connection.ahead.stored) == 1
    setup.turns.serve()
    assert setup.processed == [1]
    assert len(setup.connection.ahead.stored) == 2
    assert setup.transport.is_read


def test_small_packets_behind_a_large_one_wait_until_it_is_decided_about() -> None:
    setup = Setup()
    setup.connection.ahead.stores_ahead = True
    read_large(setup)
    setup.turns.serve()

    setup.read(packet() * 3)
    assert setup.processed == []
    assert not setup.transport.is_read

    setup.connection.ahead.stored[0][1]()
    setup.turns.serve()
    assert sum(setup.processed) == 4
    assert setup.transport.is_read


def test_nothing_is_read_ahead_while_others_have_work() -> None:
    setup = Setup()
    setup.connection.ahead.stores_ahead = True
    setup.turns.is_shared = True
    read_large(setup)
    setup.turns.serve()

    assert not setup.transport.is_read


def test_reading_ahead_stops_when_its_share_of_the_time_is_used() -> None:
    setup = Setup()
    setup.connection.ahead.stores_ahead = True
    read_large(setup)
    setup.turns.serve()
    setup.turns.has_time_to_read = lambda: False  # type: ignore[method-assign]

    setup.read(packet(LARGE_BYTES + 1)[:16_384])
    assert not setup.transport.is_read
    assert not setup.turns.waiting

    setup.connection.ahead.stored[0][1]()
    setup.turns.serve()
    assert setup.processed == [1]
    assert setup.transport.is_read


def test_a_connection_that_is_lost_while_it_reads_ahead_has_its_packets_processed() -> None:
    setup = Setup()
    setup.connection.ahead.stores_ahead = True
    read_large(setup)
    setup.turns.serve()

    setup.reader.connection_lost("the peer closed the connection")
    assert setup.connection.closed == []
    setup.connection.ahead.stored[0][1]()
    setup.turns.serve()

    assert setup.processed == [1]
    assert setup.connection.closed == ["the peer closed the connection"]
