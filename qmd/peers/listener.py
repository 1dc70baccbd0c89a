"""Listener: accepts the connections of peers, a few at a time (qmd/runtime/acceptor.py).

A connection from an address that may not connect is closed before any object is made for it.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, cast

from qmd.runtime.acceptor import Acceptor
from qmd.runtime.host_names import encoded

if TYPE_CHECKING:
    from qmd.peers.sessions import Peers
    from qmd.runtime.fair_scheduler import FairScheduler
    from qmd.runtime.services import Services


class Listener:
    """One listening socket."""

    def __init__(
        self,
        services: Services,
        peers: Peers,
        turns: FairScheduler,
        factory: Callable[[], asyncio.BaseProtocol],
        listening: socket.socket,
    ) -> None:
        """Begin to accept at once; the listener owns `listening`, a non-blocking socket."""
        self._services = services
        self._peers = peers
        self._factory = factory
        self._accepting: set[asyncio.Task[None]] = set()
        self._acceptor = Acceptor(services, turns, listening, self._take)

    @property
    def address(self) -> tuple[str, int]:
        """The address and the port at which it listens."""
        return self._acceptor.address

    def close(self) -> None:
        """Stop listening; accepted connections stay open."""
        self._acceptor.close()

    def _take(self, taken: socket.socket, address: object) -> None:
        peer = cast(tuple[str, int], address)
        if self._peers.may_connect(peer[0].removeprefix("::ffff:")):
            task = self._services.loop.create_task(self._connect(taken))
            self._accepting.add(task)
            task.add_done_callback(self._accepting.discard)
        else:
            taken.close()

    async def _connect(self, taken: socket.socket) -> None:
        try:
            await self._services.loop.connect_accepted_socket(self._factory, taken)
        except OSError as error:  # the peer has disconnected
            taken.close()
            self._services.log_limited("socket_fault", "socket", reason=str(error))


async def listen(
    services: Services,
    peers: Peers,
    turns: FairScheduler,
    factory: Callable[[], asyncio.BaseProtocol],
    *,
    at: tuple[str, int] | socket.socket,
    backlog: int,
) -> list[Listener]:
    """Return listeners for all addresses of a host name, or for a given socket.

    `at` is a host and a port, or a socket; `backlog` is the number of connections that wait in the
    operating system for each listener.  Raises OSError.
    """
    create = partial(services.loop.create_server, factory, start_serving=False)
    if isinstance(at, socket.socket):
        server = await create(sock=at)
    else:
        host, port = at
        # Bytes alone would be taken for several hosts.
        server = await create(cast(list[str], [encoded(host)]), port)
    listeners = []
    try:
        for bound in server.sockets:
            listening = socket.socket(fileno=socket.dup(bound.fileno()))
            listening.setblocking(False)
            listening.listen(backlog)
            listeners.append(Listener(services, peers, turns, factory, listening))
    except OSError:
        for each in listeners:
            each.close()
        raise
    finally:
        server.close()
    return listeners
