"""The network between simulated hosts, and the Unix sockets within one: bytes in memory.

A connection keeps the promises of TCP: bytes arrive in order, each once, or the connection ends.
All else is drawn: how bytes are cut into pieces, and the time of each piece.  The faults are:

    cut         both ends get a reset, each in its own time; bytes under way are lost
    silence     nothing arrives any more, and no end is notified (half-open connection)
    slow        a host's line carries some hundred bytes a second
    cut after   a cut at any byte of a write
    block       nothing passes from one host to another, in one direction, for a while
    a process dies   its kernel ends the connection: after its last bytes (FIN), or at once (RST)
    power loss       silence, until the host is back and answers with a reset
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable
from typing import Any

from tests.simulation.loop import Handle, ProcessLoop, Scheduler, sleeping
from tests.simulation.transport import FIN, RST, Connection, Factory, Transport

FAR_S = 0.1
SYN_TIMEOUT_S = 127.0  # net.ipv4.tcp_syn_retries = 6
LOCAL_DELAY_S_MAX = 50e-6  # through a Unix socket
_NEXT = 1e-9  # the least time between two arrivals


class Interface:
    """A host's interface to the network; `files` are its Unix sockets."""

    def __init__(self, name: str, address: str) -> None:
        self.name = name
        self.address = address
        self.has_power = True
        self.is_fenced = False  # no connection can be opened, in either direction
        self.bytes_per_s: float | None = None  # in either direction; None: no limit
        self.ports: dict[int, Server] = {}
        self.files: dict[str, Server] = {}


class Server(asyncio.AbstractServer):
    """The result of `create_server`."""

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
    """The part of a listening socket that the daemon uses."""

    def __init__(self, address: str, port: Any) -> None:
        self._name = (address, port)

    def getsockname(self) -> tuple[str, Any]:
        return self._name


class Network:
    """All hosts and the connections between them.

    `delay_s` are the shortest and the longest delay of a piece.  `fragmentation` is the probability
    that a write is cut once more.
    """

    def __init__(
        self, scheduler: Scheduler, *, delay_s: tuple[float, float], fragmentation: float
    ) -> None:
        self.scheduler = scheduler
        self.random = scheduler.random
        self.fragmentation = fragmentation
        self.interfaces: dict[str, Interface] = {}  # by address, and by name
        self.connections: dict[Connection, None] = {}  # between hosts
        self.blocked_until: dict[tuple[str, str], float] = {}  # (from, to) -> time
        self.is_slow = False  # some host has a slow line
        self.delivered_count = 0
        #: Called for each write between hosts, after which the writer's host may lose its power.
        self.on_write: Callable[[Transport], None] = lambda transport: None
        #: Called for each end that its process has opened.
        self.on_open: Callable[[Transport], None] = lambda end: None
        #: Called for a connection between two hosts that have one already.
        self.on_second: Callable[[Interface, Interface], None] = lambda source, target: None
        self.note: Callable[..., None] = lambda *what: None
        self._delay_s = delay_s

    def add(self, name: str, address: str) -> Interface:
        interface = Interface(name, address)
        self.interfaces[address] = self.interfaces[name] = interface
        return interface

    def delay(self) -> float:
        """Draw a delay: mostly short, sometimes long."""
        shortest, longest = self._delay_s
        return shortest + (longest - shortest) * self.random.random() ** 3

    @property
    def is_far(self) -> bool:
        """Whether many pieces have a long delay."""
        return self._delay_s[1] > FAR_S

    def block(self, source: str, target: str, seconds: float) -> None:
        """Let nothing pass from one address to another for a while."""
        self.blocked_until[source, target] = self.scheduler.now + seconds

    def passable_at(self, source: str, target: str) -> float:
        """Return the time at which the way between two addresses is open."""
        return self.blocked_until.get((source, target), 0.0)

    # Calls of event loops.

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

    # Calls of connections.

    def send(self, end: Transport, data: bytes) -> None:
        """Send bytes to the other end, in pieces."""
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
        """Send one piece, or the end of the stream, after the earlier pieces."""
        connection, peer = end.connection, end.peer
        end.under_way += len(piece) if isinstance(piece, bytes) else 0
        if connection.is_silent:
            if connection.will_be_reset and not end.is_lost:
                self._notify(end, RST)  # the other host is back and does not know the connection
            return
        when = max(end.last_arrival + _NEXT, self.scheduler.now + self._way(connection))
        if not connection.is_local and self.is_slow and isinstance(piece, bytes):
            for host in (end.host, peer.host):
                if host.bytes_per_s is not None:
                    when += len(piece) / host.bytes_per_s
        if not connection.is_local and self.blocked_until:
            passable_at = self.passable_at(end.host.address, peer.host.address)
            if passable_at > self.scheduler.now:
                when = max(when, passable_at + self.delay())
        end.last_arrival = when
        arrival = Handle(peer.arrive, (piece, connection.epoch), peer.loop, peer.context)
        self.scheduler.wake(when, peer.loop, arrival)

    def _notify(self, end: Transport, event: str) -> None:
        """Notify an end of a FIN or RST from its own kernel."""
        connection = end.connection
        when = self.scheduler.now + self._way(connection)
        arrival = Handle(end.arrive, (event, connection.epoch), end.loop, end.context)
        self.scheduler.wake(when, end.loop, arrival)

    # Faults.

    def cut(self, connection: Connection) -> None:
        """Reset both ends of a connection."""
        connection.lose_bytes_under_way()
        connection.is_silent = True
        for end in connection.ends:
            self._notify(end, RST)

    def _cut_within(self, end: Transport, data: bytes) -> None:
        """Deliver the beginning of a write, and then the reset."""
        connection = end.connection
        connection.bytes_left = None
        if data:
            self.carry(end, data)
        self.carry(end, RST)
        connection.is_silent = True
        self._notify(end, RST)

    def silence(self, connection: Connection) -> None:
        """Lose everything that is sent over a connection."""
        connection.lose_bytes_under_way()
        connection.is_silent = True

    def process_died(self, loop: ProcessLoop) -> None:
        """Close the connections of a dead process, as its kernel does."""
        for end in loop.connections:
            connection, peer = end.connection, end.peer
            if connection.is_silent or end.is_lost:
                continue
            if self.random.random() < 0.5:
                self.carry(end, FIN)
                connection.is_silent = connection.will_be_reset = True
            else:
                connection.lose_bytes_under_way()
                connection.is_silent = True
                self._notify(peer, RST)

    def power_lost(self, loop: ProcessLoop) -> None:
        """Silence the connections of a process; bytes under way may still arrive."""
        for end in loop.connections:
            connection = end.connection
            if self.random.random() < 0.5:
                connection.lose_bytes_under_way()
            connection.is_silent = True

    def power_returned(self, interface: Interface) -> None:
        """Answer packets for connections of the host's earlier life with a reset."""
        for connection in self.connections:
            if connection.is_silent and any(
                end.host is interface and end.loop.is_dead for end in connection.ends
            ):
                connection.will_be_reset = True
