"""The server of the control socket: it accepts clients, as many as there are places."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from qmd.control.handler import Handler
from qmd.control.local_socket import remove_socket
from qmd.control.places import Places
from qmd.control.server import ControlConnection
from qmd.runtime.acceptor import Acceptor

if TYPE_CHECKING:
    from qmd.control.components import Components

CLIENTS_RESERVED = 32  # places beside clients_max, for operators
BACKLOG = 1024  # connections that wait in the operating system

#: The handler of each class of requests: qmd/control/verbs.py.
Handlers = Mapping[type, Handler]


class ControlServer:
    """The server on the Unix socket, with one `ControlConnection` for each client."""

    def __init__(self, components: Components, handlers: Handlers) -> None:
        self.components = components
        self.handlers = handlers
        self._acceptors: list[Acceptor] = []
        self._accepting: set[asyncio.Task[None]] = set()
        self.places: Places[ControlConnection] = Places(
            components.services.settings.control.clients_max,
            CLIENTS_RESERVED,
            components.services.loop.time,
        )
        self.connections: dict[ControlConnection, None] = {}
        self.connection_count = 0

    async def start(self, path: Path, mode: int, group: str) -> None:
        """Open the socket at `path`.

        Raises OSError, or LookupError for a group that does not exist.
        """
        remove_socket(path)
        environment = self.components.services.environment
        bound = environment.bind(path, mode, group)
        await environment.accept_clients(self.accept, self._connected, bound)

    def accept(self, listening: socket.socket) -> None:
        """Accept the connections of a bound socket; the server owns it.  Raises OSError."""
        try:
            listening.setblocking(False)
            listening.listen(BACKLOG)
        except OSError:
            listening.close()
            raise
        services, turns = self.components.services, self.components.busy_turns
        self._acceptors.append(Acceptor(services, turns, listening, self._take))

    async def stop(self, path: Path) -> None:
        self.stop_accepting()
        for connection in list(self.connections):
            connection.close()
        self.components.token_logins.watch.stop()
        remove_socket(path)

    def stop_accepting(self) -> None:
        """Close the listening sockets."""
        for acceptor in self._acceptors:
            acceptor.close()

    def _take(self, connected: socket.socket, _: object) -> None:
        task = self.components.services.loop.create_task(self._connect(connected))
        self._accepting.add(task)
        task.add_done_callback(self._accepting.discard)

    async def _connect(self, connected: socket.socket) -> None:
        try:
            await self.components.services.loop.connect_accepted_socket(self._connected, connected)
        except OSError:  # the client has disconnected
            connected.close()

    def _connected(self) -> ControlConnection:
        return ControlConnection(self.components, self)
