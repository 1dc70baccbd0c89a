"""Packet reader: packets wait for their turn, for the disk and for memory, without a socket."""

from __future__ import annotations

import gc
import struct
import weakref
from types import SimpleNamespace
from typing import Any

import pytest

from protocol.headers import PACKET_BYTES_MAX, SIGNATURE, VERSION
from qmd.peers.packet_reader import (
    TINY_READS_MAX,
    TURN_PACKETS_MAX,
    TURN_PACKETS_MIN,
    PacketReader,
)
from qmd.peers.reputation import TRUST, Reputation
from qmd.runtime.bulk_turns import LARGE_BYTES
from qmd.runtime.fair_scheduler import Class


def packet(size: int = 100) -> bytes:
    """Return a packet of `size` bytes that is valid for the buffer."""
    return struct.pack("<BxHII", VERSION, 0, SIGNATURE, size).ljust(size, b"x")


class Turns:
    """A scheduler that always has time, and records the members that wait."""

    def __init__(self) -> None:
        self.serial = 0
        self.waiting: list[tuple[Any, Class]] = []

    def has_time(self) -> bool:
        return True

    def has_time_to_read(self) -> bool:
        return True

    def spend(self, seconds: float) -> None:
        pass

    def spend_reading(self, seconds: float) -> None:
        pass

    def wait(self, member: Any, kind: Class, owner: object = None) -> None:
        self.waiting.append((member, kind))

    def serve(self, now: float = 0.0) -> Class:
        """Give the first waiting member its turn; return its class.

        Turns of large packets come between those that the scheduler counts.
        """
        member, kind = self.waiting.pop(0)
        self.serial += kind is not Class.BULK
        member.take_turn(now, 1000)
        return kind


class Memory:
    """A budget that permits `room` bytes, and a probe without a limit."""

    def __init__(self) -> None:
        self.room = 10_000_000
        self.waiting: list[Any] = []
        self.packets = self.probe = self

    def allows(self, holder: Any, owner: str, more_bytes: int) -> bool:
        return more_bytes <= self.room

    def hold(self, holder: Any, owner: str, size: int) -> None:
        pass

    def wait(self, holder: Any, owner: str) -> None:
        self.waiting.append(holder)

    def leave(self, holder: Any) -> None:
        pass

    def look(self, size: int) -> None:
        pass


class Ahead:
    """The ends of packets that are stored ahead, if `stores_ahead` is set."""

    def __init__(self) -> None:
        self.stores_ahead = False
        self.stored: list[
            tuple[bytes, Any]
        ] = []  # packets, and the functions that await their ends
        self.forgotten_count = 0

    def store(self, session: Any, packet: bytes, on_end: Any) -> bool:
        if self.stores_ahead:
            self.stored.append((packet, on_end))
        return self.stores_ahead

    def forget(self) -> None:
        self.forgotten_count += 1


class Connection:
    """A connection that records its packets; `on_process` is called with each batch."""

    def __init__(self) -> None:
        self.handshake_done = True
        self.packet_bytes_max = PACKET_BYTES_MAX
        self.session: Any = SimpleNamespace(exchanged_count=0, announced_window=64)
        self.host, self.opened_at = "192.0.2.1", 0.0
        self.messages_of_a_packet = 1
        self.batches: list[list[bytes]] = []
        self.closed: list[str] = []
        self.on_process: Any = lambda packets: None
        self.ahead: Any = Ahead()

    def process(self, packets: list[bytes], now: float) -> None:
        self.batches.append(packets)
        self.session.exchanged_count += self.messages_of_a_packet * len(packets)
        self.on_process(packets)

    def flush_soon(self) -> None:
        pass

    def close(self, reason: str) -> None:
        self.closed.append(reason)


class Transport:
    """A transport that records whether it is read."""

    is_read = True

    def pause_reading(self) -> None:
        self.is_read = False

    def resume_reading(self) -> None:
        self.is_read = True


class Setup:
    """A reader with all its collaborators."""

    def __init__(self, *, is_trusted: bool = True) -> None:
        self.turns, self.memory = Turns(), Memory()
        self.proved_count = 0  # connections that became trusted
        self.connection, self.transport = Connection(), Transport()
        self.reputation = Reputation(is_trusted=is_trusted)
        services: Any = SimpleNamespace(
            loop=SimpleNamespace(time=lambda: 100.0),
            environment=SimpleNamespace(busy_time=lambda: 0.0),
            memory=self.memory,
            log_limited=lambda *args, **facts: None,
        )
        turns: Any = self.turns
        transport: Any = self.transport
        self.reader = PacketReader(
            services, self.connection, turns, self.reputation, self._proved_useful
        )
        self.reader.buffer.packet_bytes_max = PACKET_BYTES_MAX
        self.reader.start(transport, "192.0.2.1")

    def _proved_useful(self, _: object) -> None:
        self.proved_count += 1

    def read(self, data: bytes) -> None:
        """Deliver bytes as the event loop does."""
        self.reader.buffer.get_buffer()[: len(data)] = data
        self.reader.received(len(data))

    @property
    def processed(self) -> list[int]:
        """The number of packets in each batch."""
        return [len(batch) for batch in self.connection.batches]


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


def test_a_session_of_large_packets_alone_goes_on_after_a_turn_of_packets() -> None:
    setup = Setup()
    setup.connection.session.announced_window = 10 * TURN_PACKETS_MAX

    for _ in range(2 * TURN_PACKETS_MAX):
        read_large(setup)
        assert setup.turns.serve() is Class.BULK
        assert not setup.turns.waiting

    assert sum(setup.processed) == 2 * TURN_PACKETS_MAX


def read_large(setup: Setup) -> bytes:
    """Let the peer send a large packet; return it."""
    large = packet(LARGE_BYTES + 1)
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
    assert not setup.transport.is_read

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

    assert setup.connection.closed == ["the peer closed the connection"]
    assert setup.processed == []


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
