"""A strict host in the simulation: virtual time, so that its timers keep the values of Windows."""

from __future__ import annotations

import asyncio
from asyncio import events

from tests.simulation.host_environment import EPOCH_S, PORT
from tests.simulation.loop import Clock, ProcessLoop
from tests.simulation.world import World
from tests.strict_host.host import StrictHost
from tests.strict_host.manner import Manner
from tests.strict_host.session import NEVER, Session
from tests.strict_host.sockets import cut

NAME, ADDRESS = "windows", "10.0.0.90"


class _Link(asyncio.Protocol):
    """The connection of a session."""

    def __init__(self, owner: SimulatedHost, *, is_initiator: bool) -> None:
        self._owner, self._is_initiator = owner, is_initiator
        self.session: Session
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        host = self._owner.host
        if self._is_initiator:
            self.session = host.initiate(self._owner.server, own_address=ADDRESS)
        else:
            self.session = host.accept(own_address=ADDRESS)
        self._owner.links.append(self)
        self._owner.turn()

    def data_received(self, data: bytes) -> None:
        if not self.session.is_over:
            self.session.feed(data)
        self._owner.turn()

    def connection_lost(self, error: Exception | None) -> None:
        self.session.ended(by_kill=error is not None)
        self._owner.turn()


class SimulatedHost:
    """A strict host at `ADDRESS`; it sends to the host at `peer`."""

    def __init__(self, world: World, *, peer: str, manner: Manner, seed: int = 1) -> None:
        self._world = world
        self._loop = ProcessLoop(
            world.scheduler,
            NAME,
            clock=Clock(),
            network=world.network,
            host=world.network.add(NAME, ADDRESS),
        )
        self.host = StrictHost(
            now=self._loop.time, wall=lambda: EPOCH_S + world.now, seed=seed, manner=manner
        )
        self.host.peer_address = peer
        self.server = bytes(16)  # the ServerGuid of requests
        self._retry_at = 0.0
        self.links: list[_Link] = []
        self._timer: events.TimerHandle | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._loop.set_exception_handler(
            lambda _, context: world.fail(f"{NAME}: {context.get('exception')!r}")
        )
        self._loop.spawn(self._listen)

    async def _listen(self) -> None:
        loop: asyncio.AbstractEventLoop = self._loop
        await loop.create_server(lambda: _Link(self, is_initiator=False), ADDRESS, PORT)

    def turn(self) -> None:
        """Write all segments that wait, and set the timer of the next event."""
        host = self.host
        for link in list(self.links):
            session = link.session
            packets, session.output = session.output, []
            for piece in cut(packets, host.manner.cut, host.random):
                link.transport.write(piece)
            if session.is_over:
                self.links.remove(link)
                link.transport.abort()
        self._connect_if_wanted()
        if self._timer is not None:
            self._timer.cancel()
        due = host.due()
        self._timer = None if due == NEVER else self._loop.call_at(due, self._tick)

    def _tick(self) -> None:
        self.host.tick()
        self.turn()

    def act(self) -> StrictHost:
        """Return the host for a change of its state, after which it takes a turn."""
        self._loop.call_soon(self.turn)
        self._loop.become_ready()
        return self.host

    def _connect_if_wanted(self) -> None:
        is_wanted = any(item.only_on is None for item in self.host.sending.table)
        has_one = any(session.is_initiator for session in self.host.sessions)
        is_connecting = self._connecting is not None and not self._connecting.done()
        if is_wanted and not has_one and not is_connecting and not self.host.manner.sleeps:
            self._connecting = self._loop.create_task(self._connect())

    async def _connect(self) -> None:
        """Connect, at most once in the time of the Session Retry Connect Timer: QB 3.1.2.3."""
        loop: asyncio.AbstractEventLoop = self._loop
        await asyncio.sleep(self._retry_at - loop.time())
        self._retry_at = loop.time() + self.host.manner.times.retry_s
        try:
            await loop.create_connection(
                lambda: _Link(self, is_initiator=True), self.host.peer_address, PORT
            )
        except OSError:
            loop.call_at(self._retry_at, self.turn)
