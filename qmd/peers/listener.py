"""Listener: accepts the connections of peers, a few at a time.

libuv would accept all waiting connections before it does anything else, and each costs a fifth of a
millisecond, even if it never sends anything. Here connections wait in the backlog of the operating
system, and accepting one takes a turn of the class UNTRUSTED (qmd/runtime/fair_scheduler.py). A
connection from an address that may not connect is closed before any object is made for it.
"""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from qmd.runtime.fair_scheduler import Class

if TYPE_CHECKING:
    from qmd.peers.connection import PeerConnection
    from qmd.peers.sessions import Peers
    from qmd.runtime.fair_scheduler import FairScheduler
    from qmd.runtime.services import Services

RETRY_S = 0.5  # pause after the system had no file descriptors or no memory left
_NO_FILES = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}


class Listener:
    """One listening socket."""

    def __init__(
        self,
        services: Services,
        peers: Peers,
        turns: FairScheduler,
        factory: Callable[[], PeerConnection],
        listening: socket.socket,
    ) -> None:
        """Begin to accept at once; the listener owns `listening`, a non-blocking socket."""
        self._services = services
        self._peers = peers
        self._turns = turns
        self._factory = factory
        self._socket = listening
        self._accepting: set[asyncio.Task[None]] = set()
        self._is_closed = False
        self._listen()

    @property
    def address(self) -> tuple[str, int]:
        """The address and the port at which it listens."""
        name = self._socket.getsockname()
        return str(name[0]), int(name[1])

    def close(self) -> None:
        """Stop listening; accepted connections stay open."""
        if not self._is_closed:
            self._is_closed = True
            self._services.loop.remove_reader(self._socket)
            self._socket.close()

    def take_turn(self, _: float, __: int) -> None:
        """Accept one connection."""
        if self._is_closed:
            return
        try:
            taken, peer = self._socket.accept()
        except (BlockingIOError, InterruptedError):
            self._listen()
            return
        except OSError as error:
            # The connection may have ended already, or the system has no resources. In both cases
            # the listener tries again.
            if error.errno in _NO_FILES:
                self._services.log_limited("socket_fault", "socket", reason=str(error))
                self._services.loop.call_later(RETRY_S, self._wait)
            else:
                self._wait()
            return
        if self._peers.may_connect(str(peer[0]).removeprefix("::ffff:")):
            taken.setblocking(False)
            task = self._services.loop.create_task(self._take(taken))
            self._accepting.add(task)
            task.add_done_callback(self._accepting.discard)
        else:
            taken.close()
        self._wait()

    def _listen(self) -> None:
        self._services.loop.add_reader(self._socket, self._on_readable)

    def _on_readable(self) -> None:
        self._services.loop.remove_reader(self._socket)
        self._wait()

    def _wait(self) -> None:
        if not self._is_closed:
            self._turns.wait(self, Class.UNTRUSTED)

    async def _take(self, taken: socket.socket) -> None:
        try:
            await self._services.loop.connect_accepted_socket(self._factory, taken)
        except OSError as error:  # the peer has disconnected
            taken.close()
            self._services.log_limited("socket_fault", "socket", reason=str(error))


async def listen(
    services: Services,
    peers: Peers,
    turns: FairScheduler,
    factory: Callable[[], PeerConnection],
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
        server = await create(*at)
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
