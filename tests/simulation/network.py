"""The network between simulated hosts, and the Unix sockets within one: bytes in memory.

A connection keeps what TCP promises: bytes arrive in order, each once, or the connection ends.
All else is drawn: how bytes are cut into pieces and how long each piece takes.  What can go wrong:

    cut         both ends learn of a reset, each in its own time; what was under way is lost
    silence     a black hole: nothing arrives any more, and nobody is told (half-open)
    slow        a host's line carries some hundred bytes a second
    cut after   as cut, in the middle of what is being written: at any byte
    wall        nothing passes from one host to another, in one direction, for a while; then it does
    a process dies   its kernel says so: after what was written (FIN), or at once (RST)
    the power goes   silence, until the host is back and answers with a reset
"""

from __future__ import annotations

import asyncio
import contextvars
import errno
from collections import deque
from collections.abc import Callable
from typing import Any

from tests.simulation.loop import Handle, ProcessLoop, Scheduler, sleeping

Factory = Callable[[], asyncio.BaseProtocol]

FAR_S = 0.1
SYN_TIMEOUT_S = 127.0  # net.ipv4.tcp_syn_retries = 6
LOCAL_DELAY_S_MAX = 50e-6  # through a Unix socket
_NEXT = 1e-9  # what comes after something else, at the earliest

FIN, RST = "end of stream", "reset"


class Interface:
    """A host's place in the network; `files` are its Unix sockets."""

    def __init__(self, name: str, address: str) -> None:
        self.name = name
        self.address = address
        self.has_power = True
        self.is_fenced = False  # nobody gets through, in either direction
        self.bytes_per_s: float | None = None  # in either direction; None: no limit
        self.ports: dict[int, Server] = {}
        self.files: dict[str, Server] = {}


class Server(asyncio.AbstractServer):
    """What `create_server` gives."""

    def __init__(self, loop: ProcessLoop, factory: Factory, place: dict[Any, Server], key: Any):
        self.loop = loop
        self.factory = factory
        self.sockets = [_Listener(loop.host.address, key)]
        self._place = place
        self._key = key
        place[key] = self

    def close(self) -> None:
        if self._place.get(self._key) is self:
            del self._place[self._key]

    async def wait_closed(self) -> None:
        pass

    def get_loop(self) -> ProcessLoop:
        return self.loop

    def is_serving(self) -> bool:
        return self._place.get(self._key) is self


class _Listener:
    """As much of a listening socket as the daemon asks for."""

    def __init__(self, address: str, port: Any) -> None:
        self._name = (address, port)

    def getsockname(self) -> tuple[str, Any]:
        return self._name


class Network:
    """All hosts and the connections between them.

    `delay_s` is the shortest and the longest way of a piece, `fragmentation` the probability that
    what is written is cut once more.
    """

    def __init__(
        self, scheduler: Scheduler, *, delay_s: tuple[float, float], fragmentation: float
    ) -> None:
        self.scheduler = scheduler
        self.random = scheduler.random
        self.fragmentation = fragmentation
        self.interfaces: dict[str, Interface] = {}  # by address, and by name
        self.connections: dict[Connection, None] = {}  # between hosts
        self.walls: dict[tuple[str, str], float] = {}  # (from, to) -> when it falls
        self.is_slow = False  # somewhere
        self.delivered_count = 0
        #: Asked about each write between hosts: whether the writer's host loses its power now.
        self.on_write: Callable[[Transport], None] = lambda transport: None
        #: Told of each end that its process has opened.
        self.on_open: Callable[[Transport], None] = lambda end: None
        #: Told of a connection between two hosts that have one already.
        self.on_second: Callable[[Interface, Interface], None] = lambda source, target: None
        self.note: Callable[..., None] = lambda *what: None
        self._delay_s = delay_s

    def add(self, name: str, address: str) -> Interface:
        interface = Interface(name, address)
        self.interfaces[address] = self.interfaces[name] = interface
        return interface

    def delay(self) -> float:
        """Mostly short, sometimes long."""
        shortest, longest = self._delay_s
        return shortest + (longest - shortest) * self.random.random() ** 3

    @property
    def is_far(self) -> bool:
        """Whether much of what is sent takes long."""
        return self._delay_s[1] > FAR_S

    def build_wall(self, source: str, target: str, seconds: float) -> None:
        self.walls[source, target] = self.scheduler.now + seconds

    def passable_at(self, source: str, target: str) -> float:
        return self.walls.get((source, target), 0.0)

    # What loops ask for.

    def listen(self, loop: ProcessLoop, factory: Factory, port: int) -> Server:
        if port in loop.host.ports:
            raise OSError(errno.EADDRINUSE, "address already in use")
        return Server(loop, factory, loop.host.ports, port)

    def listen_unix(self, loop: ProcessLoop, factory: Factory, bound: Any) -> Server:
        return Server(loop, factory, loop.host.files, bound.path)

    async def connect(
        self, loop: ProcessLoop, factory: Factory, host: str, port: int
    ) -> tuple[Transport, asyncio.BaseProtocol]:
        source = loop.host
        target = self.interfaces.get(host)
        if target is None:
            raise OSError(errno.ENOENT, f"the name {host} is not known")
        await sleeping(loop, 2 * self.delay())
        passable_at = max(
            self.passable_at(source.address, target.address),
            self.passable_at(target.address, source.address),
        )
        if not target.has_power or passable_at > self.scheduler.now:
            wait_s = passable_at - self.scheduler.now if target.has_power else SYN_TIMEOUT_S
            await sleeping(loop, min(wait_s + self.delay(), SYN_TIMEOUT_S))
            if wait_s >= SYN_TIMEOUT_S or not target.has_power:
                raise TimeoutError(errno.ETIMEDOUT, "connection timed out")
        server = target.ports.get(port)
        if server is None or source.is_fenced or target.is_fenced:
            raise ConnectionRefusedError(errno.ECONNREFUSED, "connection refused")
        return await self._join(loop, factory, server, source, target)

    async def connect_unix(
        self, loop: ProcessLoop, factory: Factory, path: str
    ) -> tuple[Transport, asyncio.BaseProtocol]:
        await sleeping(loop, self.random.random() * LOCAL_DELAY_S_MAX)
        host = loop.host
        server = host.files.get(path)
        if server is None:
            raise ConnectionRefusedError(errno.ECONNREFUSED, "connection refused")
        return await self._join(loop, factory, server, host, host)

    async def _join(
        self,
        loop: ProcessLoop,
        factory: Factory,
        server: Server,
        source: Interface,
        target: Interface,
    ) -> tuple[Transport, asyncio.BaseProtocol]:
        connection = Connection(self, loop, server.loop, source, target)
        if source is not target:
            if any(
                {end.host for end in each.ends} == {source, target} for each in self.connections
            ):
                self.on_second(source, target)
            self.connections[connection] = None
        near, far = connection.ends
        accept = Handle(far.open, (server.factory,), server.loop, far.context)
        self.scheduler.wake(self.scheduler.now + self._way(connection), server.loop, accept)
        opened = loop.create_future()
        loop.call_soon(near.open, factory, opened)
        await opened
        return near, near.get_protocol()

    def _way(self, connection: Connection) -> float:
        if connection.is_local:
            return self.random.random() * LOCAL_DELAY_S_MAX
        return self.delay()

    # What connections ask for.

    def send(self, end: Transport, data: bytes) -> None:
        """On its way to the other end, in pieces."""
        connection = end.connection
        if not connection.is_local:
            if connection.bytes_left is not None:
                connection.bytes_left -= len(data)
                if connection.bytes_left < 0:
                    self._cut_within(end, data[: connection.bytes_left])
                    return
            source = self.random
            while len(data) > 1 and source.random() < self.fragmentation:
                size = source.randrange(1, len(data))
                self.carry(end, data[:size])
                data = data[size:]
        self.carry(end, data)

    def carry(self, end: Transport, piece: bytes | str) -> None:
        """One piece, or the news of an end, behind what was sent before."""
        connection, peer = end.connection, end.peer
        end.under_way += len(piece) if isinstance(piece, bytes) else 0
        if connection.is_silent:
            if connection.will_be_reset and not end.is_lost:
                self._tell(end, RST)  # the other host is back, and knows no such connection
            return
        when = max(end.last_arrival + _NEXT, self.scheduler.now + self._way(connection))
        if not connection.is_local and self.is_slow and isinstance(piece, bytes):
            for host in (end.host, peer.host):
                if host.bytes_per_s is not None:
                    when += len(piece) / host.bytes_per_s
        if not connection.is_local and self.walls:
            passable_at = self.passable_at(end.host.address, peer.host.address)
            if passable_at > self.scheduler.now:
                when = max(when, passable_at + self.delay())
        end.last_arrival = when
        arrival = Handle(peer.arrive, (piece, connection.epoch), peer.loop, peer.context)
        self.scheduler.wake(when, peer.loop, arrival)

    def _tell(self, end: Transport, news: str) -> None:
        """An end's own kernel learns something; nothing is under way to it any more."""
        connection = end.connection
        when = self.scheduler.now + self._way(connection)
        arrival = Handle(end.arrive, (news, connection.epoch), end.loop, end.context)
        self.scheduler.wake(when, end.loop, arrival)

    # What goes wrong.

    def cut(self, connection: Connection) -> None:
        connection.forget_what_is_under_way()
        connection.is_silent = True
        for end in connection.ends:
            self._tell(end, RST)

    def _cut_within(self, end: Transport, data: bytes) -> None:
        """The beginning of what was written arrives, and then the news."""
        connection = end.connection
        connection.bytes_left = None
        if data:
            self.carry(end, data)
        self.carry(end, RST)
        connection.is_silent = True
        self._tell(end, RST)

    def silence(self, connection: Connection) -> None:
        """Whoever waits, waits."""
        connection.forget_what_is_under_way()
        connection.is_silent = True

    def process_died(self, loop: ProcessLoop) -> None:
        """Its kernel closes its connections."""
        for end in loop.connections:
            connection, peer = end.connection, end.peer
            if connection.is_silent or end.is_lost:
                continue
            if self.random.random() < 0.5:
                self.carry(end, FIN)
                connection.is_silent = connection.will_be_reset = True
            else:
                connection.forget_what_is_under_way()
                connection.is_silent = True
                self._tell(peer, RST)

    def power_lost(self, loop: ProcessLoop) -> None:
        """What is under way may still arrive; nothing follows."""
        for end in loop.connections:
            connection = end.connection
            if self.random.random() < 0.5:
                connection.forget_what_is_under_way()
            connection.is_silent = True

    def power_returned(self, interface: Interface) -> None:
        """It answers what comes for connections of its earlier life with a reset."""
        for connection in self.connections:
            if connection.is_silent and any(
                end.host is interface and end.loop.is_dead for end in connection.ends
            ):
                connection.will_be_reset = True


class Connection:
    """Two ends.  An epoch passes when what is under way is lost."""

    def __init__(
        self,
        network: Network,
        loop: ProcessLoop,
        server_loop: ProcessLoop,
        source: Interface,
        target: Interface,
    ) -> None:
        self.is_local = source is target
        self.is_silent = False  # what is sent gets lost
        self.bytes_left: int | None = None  # after so many it is cut
        self.will_be_reset = False  # ... and whoever sends is told
        self.epoch = 0
        near = Transport(self, network, loop, source, target)
        far = Transport(self, network, server_loop, target, source)
        near.peer, far.peer = far, near
        self.ends = (near, far)

    def forget_what_is_under_way(self) -> None:
        self.epoch += 1


class Transport(asyncio.Transport):
    """One end of a connection: what asyncio gives to a protocol."""

    def __init__(
        self,
        connection: Connection,
        network: Network,
        loop: ProcessLoop,
        host: Interface,
        peer_host: Interface,
    ) -> None:
        super().__init__({"peername": (peer_host.address, 50_000), "sockname": (host.address, 0)})
        self.connection = connection
        self.loop = loop
        self.host = host
        self.context = contextvars.Context()
        self.peer: Transport
        self.is_lost = False  # the protocol knows of the end
        self.under_way = 0  # bytes written that have not arrived
        self.last_arrival = 0.0  # of what was sent
        self._network = network
        self._protocol: Any = None
        self._closing = False
        self._reading_paused = False
        self._read_due = False
        self._received: deque[bytes | str] = deque()  # by the kernel, and not read
        self._writing_paused = False
        self._high, self._low = 65536, 16384
        loop.connections[self] = None

    def open(self, factory: Factory, opened: asyncio.Future[None] | None = None) -> None:
        """In the end's own process: make the protocol, and read what came meanwhile."""
        self._protocol = factory()
        self._protocol.connection_made(self)
        self._network.on_open(self)
        if opened is not None and not opened.done():
            opened.set_result(None)
        self._read_soon()

    # asyncio's surface.

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

    def _end(self, news: str) -> None:
        if self._closing or self.loop.is_dead:
            return
        self._closing = True
        self._network.carry(self, news)
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

    # What the network brings, in the end's own process.

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
            self._read_soon()  # others come first, and more may arrive meanwhile
        elif not self._read_due:
            self._read()  # as asyncio does: it reads where it learns that there is something

    def arrived(self, size: int) -> None:
        """What was written is there; whoever waits for room may go on."""
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
        """As after one `recv`: everything that is there, up to what the protocol takes."""
        self._read_due = False
        received = self._received
        while received and not self._reading_paused and not self._closing:
            piece = received.popleft()
            if isinstance(piece, str):
                self._hear(piece)
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

    def _hear(self, news: str) -> None:
        if news is RST:
            self._closing = True
            self._lose(ConnectionResetError(errno.ECONNRESET, "connection reset by peer"))
        elif not self._protocol.eof_received():
            self.close()
