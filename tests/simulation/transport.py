"""A connection of the simulated network and its two ends, which are asyncio transports."""

from __future__ import annotations

import asyncio
import contextvars
import errno
import os
import socket
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from qmd.access.local_users import SO_PEERGROUPS
from qmd.control_protocol.peer_credentials import CREDENTIALS
from tests.simulation.loop import ProcessLoop

if TYPE_CHECKING:
    from tests.simulation.network import Interface, Network

Factory = Callable[[], asyncio.BaseProtocol]

FIN, RST = "end of stream", "reset"


# Of each application: the log of requests names it, and a seed gives the same log always.
PROCESS = 4711


class Connection:
    """A connection with its two ends; its epoch changes when the bytes under way are lost."""

    def __init__(
        self,
        network: Network,
        loop: ProcessLoop,
        server_loop: ProcessLoop,
        source: Interface,
        target: Interface,
    ) -> None:
        self.is_local = source is target
        self.is_silent = False  # everything that is sent is lost
        self.bytes_left: int | None = None  # the connection is cut after them
        self.will_be_reset = False  # a send is answered with a reset
        self.epoch = 0
        near = Transport(self, network, loop, source, target)
        client = OwnProgram() if source is target else None
        far = Transport(self, network, server_loop, target, source, client)
        near.peer, far.peer = far, near
        self.ends = (near, far)

    def lose_bytes_under_way(self) -> None:
        self.epoch += 1


class OwnProgram:
    """A socket whose other end is a program of the daemon's own user, as the kernel states it."""

    def getsockopt(self, level: int, option: int, size: int = 0) -> bytes:
        if option == socket.SO_PEERCRED:
            return CREDENTIALS.pack(PROCESS, os.geteuid(), os.getegid())
        if option == SO_PEERGROUPS:
            return b""
        raise OSError(errno.ENOPROTOOPT, "the simulated kernel has no such option")


class Transport(asyncio.Transport):
    """One end of a connection, as asyncio gives it to a protocol."""

    def __init__(
        self,
        connection: Connection,
        network: Network,
        loop: ProcessLoop,
        host: Interface,
        peer_host: Interface,
        client: OwnProgram | None = None,
    ) -> None:
        super().__init__(
            {
                "peername": (peer_host.address, 50_000),
                "sockname": (host.address, 0),
                "socket": client,
            }
        )
        self.connection = connection
        self.loop = loop
        self.host = host
        self.context = contextvars.Context()
        self.peer: Transport
        self.is_lost = False  # the protocol was notified of the end
        self.under_way = 0  # bytes written that have not arrived
        self.last_arrival = 0.0  # of the pieces sent so far
        self._network = network
        self._protocol: Any = None
        self._closing = False
        self._reading_paused = False
        self._read_due = False
        self._received: deque[bytes | str] = deque()  # in the kernel, not read yet
        self._writing_paused = False
        self._high, self._low = 65536, 16384
        loop.connections[self] = None

    def open(self, factory: Factory, opened: asyncio.Future[None] | None = None) -> None:
        """Create the protocol in this end's process, and read bytes that arrived before."""
        self._protocol = factory()
        self._protocol.connection_made(self)
        self._network.on_open(self)
        if opened is not None and not opened.done():
            opened.set_result(None)
        self._read_soon()

    # The interface of asyncio.

    def get_protocol(self) -> asyncio.BaseProtocol:
        protocol: asyncio.BaseProtocol = self._protocol
        return protocol

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = protocol

    def is_closing(self) -> bool:
        return self._closing

    def is_reading(self) -> bool:
        return not self._reading_paused

    def pause_reading(self) -> None:
        self._reading_paused = True

    def resume_reading(self) -> None:
        self._reading_paused = False
        self._read_soon()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = 65536 if high is None else high
        self._low = self._high // 4 if low is None else low

    def get_write_buffer_size(self) -> int:
        return self.under_way

    def can_write_eof(self) -> bool:
        return True

    def write(self, data: Any) -> None:
        if self.loop.is_dead or self._closing or self.is_lost or not data:
            return
        if not self.connection.is_local:
            self._network.on_write(self)
        self._network.send(self, bytes(data))
        if self.under_way > self._high and not self._writing_paused:
            self._writing_paused = True
            self._protocol.pause_writing()

    def writelines(self, list_of_data: Any) -> None:
        self.write(b"".join(list_of_data))

    def close(self) -> None:
        self._end(FIN)

    def abort(self) -> None:
        self._end(RST)

    def _end(self, event: str) -> None:
        if self._closing or self.loop.is_dead:
            return
        self._closing = True
        self._network.carry(self, event)
        self.loop.call_soon(self._lose, None)

    def _lose(self, reason: Exception | None) -> None:
        if self.is_lost:
            return
        self.is_lost = self._closing = True
        self._received.clear()
        self.loop.connections.pop(self, None)
        if self.peer.is_lost or self.peer.loop.is_dead:
            self._network.connections.pop(self.connection, None)
        if self._protocol is not None:
            self._protocol.connection_lost(reason)

    # Calls of the network, in this end's process.

    def arrive(self, piece: bytes | str, epoch: int) -> None:
        if epoch != self.connection.epoch and piece is not RST:
            return
        if isinstance(piece, bytes):
            self._network.delivered_count += 1
            self.peer.arrived(len(piece))
            self._network.note("net", self.host.name, len(piece))
        if self.is_lost:
            return
        if self._closing:
            if isinstance(piece, bytes):
                self._network.carry(self, RST)
            return
        self._received.append(piece)
        if self.loop._ready or self._protocol is None:
            self._read_soon()  # after the ready callbacks; more bytes may arrive before
        elif not self._read_due:
            self._read()  # asyncio reads as soon as the selector reports bytes

    def arrived(self, size: int) -> None:
        """Count bytes that arrived at the other end, and resume writing if there is room."""
        self.under_way -= size
        if self._writing_paused and self.under_way <= self._low and not self.is_lost:
            self._writing_paused = False
            self.loop.call_soon(self._resume_writing)

    def _resume_writing(self) -> None:
        if not self.is_lost and not self._writing_paused:
            self._protocol.resume_writing()

    def _read_soon(self) -> None:
        if self._received and not self._read_due and self._protocol is not None:
            self._read_due = True
            self.loop.call_soon(self._read)

    def _read(self) -> None:
        """Read all received bytes, as one `recv` does, unless the protocol pauses."""
        self._read_due = False
        received = self._received
        while received and not self._reading_paused and not self._closing:
            piece = received.popleft()
            if isinstance(piece, str):
                self._handle_end(piece)
                return
            while received and isinstance(received[0], bytes):
                piece += received.popleft()
            self._give(piece)

    def _give(self, data: bytes) -> None:
        if not isinstance(self._protocol, asyncio.BufferedProtocol):
            self._protocol.data_received(data)
            return
        rest = memoryview(data)
        while rest and not self._closing:
            buffer = self._protocol.get_buffer(len(rest))
            size = min(len(buffer), len(rest))
            buffer[:size] = rest[:size]
            self._protocol.buffer_updated(size)
            rest = rest[size:]
            if rest and self._reading_paused:
                self._received.appendleft(bytes(rest))
                return

    def _handle_end(self, event: str) -> None:
        if event is RST:
            self._closing = True
            self._lose(ConnectionResetError(errno.ECONNRESET, "connection reset by peer"))
        elif not self._protocol.eof_received():
            self.close()
