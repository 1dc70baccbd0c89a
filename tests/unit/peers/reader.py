"""A packet reader without a socket, and its collaborators."""

from __future__ import annotations

import struct
from types import SimpleNamespace
from typing import Any

from protocol.headers import PACKET_BYTES_MAX, SIGNATURE, VERSION
from qmd.peers.packet_reader import (
    PacketReader,
)
from qmd.peers.reputation import Reputation
from qmd.runtime.bulk_turns import LargeExchange
from qmd.runtime.fair_scheduler import Class


def packet(size: int = 100) -> bytes:
    """Return a packet of `size` bytes that is valid for the buffer."""
    return struct.pack("<BxHII", VERSION, 0, SIGNATURE, size).ljust(size, b"x")


class Turns:
    """A scheduler that always has time, and records the members that wait."""

    def __init__(self) -> None:
        self.serial = 0
        self.is_shared = False
        self.waiting: list[tuple[Any, Class]] = []

    def has_time(self, large: LargeExchange) -> bool:
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
