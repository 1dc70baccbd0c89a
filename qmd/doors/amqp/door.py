"""The door: its listening sockets, and the state that its clients share."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import structlog

from qmd.doors import handshakes
from qmd.doors.amqp.conditions import FORCED, AmqpFault
from qmd.doors.amqp.connection import ClientConnection
from qmd.doors.amqp.dynamic import DynamicQueues
from qmd.doors.amqp.limits import ClientLimits
from qmd.doors.amqp.login import Rules
from qmd.doors.attempts import Attempts
from qmd.doors.control import UserConnection
from qmd.doors.users import Users
from qmd.runtime.server_tls import server_context

if TYPE_CHECKING:
    from qmd.client.errors import NotConnected
    from qmd.config.settings import AmqpSettings

log = structlog.get_logger()

BACKLOG = 1024
ARRIVALS_MIN = 256  # connections that may be without a login, at least
THREADS = 2  # that check passwords
STOP_S = 5.0


class Door:
    """The door for AMQP."""

    def __init__(self, settings: AmqpSettings, control: Path, name: str) -> None:
        """`control`: the control socket; `name`: of this host, for clients."""
        self.settings = settings
        self.socket = control
        self.container = name
        self.version = metadata.version("qmd-msmq")
        self.users = Users(settings.users)
        self.rules = Rules(settings.anonymous, settings.passwords_on_loopback)
        self.attempts = Attempts(settings.login_failures_max)
        self.executor = ThreadPoolExecutor(THREADS, thread_name_prefix="passwords")
        self.login_s = settings.login_timeout_s
        self.connections_max = settings.connections_max
        self.limits = ClientLimits(
            frame_bytes=settings.frame_bytes,
            message_bytes=settings.message_bytes,
            sessions=settings.sessions_max,
            links=settings.links_max,
            credit=settings.credit,
            unsettled=settings.unsettled_max,
            unsettled_bytes=settings.unsettled_bytes,
            waiting_bytes=settings.waiting_bytes,
            idle_s=settings.idle_timeout_s,
        )
        #: The links by user, container, name and role: a name belongs to one link.
        self.names: dict[tuple[str, ...], Any] = {}
        self._arrivals: dict[ClientConnection, None] = {}
        self._clients: dict[ClientConnection, None] = {}
        self._servers: list[asyncio.Server] = []
        self._handshakes: handshakes.Handshakes | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.dynamic = DynamicQueues(control, settings)
        self._is_closing = False
        self._empty = asyncio.Event()  # no client is left after `close`
        self.addresses: list[tuple[str, int]] = []

    async def open(self) -> None:
        """Listen.  Raises OSError, ssl.SSLError."""
        settings = self.settings
        await self._listen(settings.port, None)
        if settings.certificate is not None:
            await self._listen(settings.tls_port, _context(settings))
        self._cleaning = asyncio.get_running_loop().create_task(self.dynamic.delete_left())

    async def _listen(self, port: int, context: ssl.SSLContext | None) -> None:
        address = self.settings.address
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        listening = socket.create_server((address, port), family=family, backlog=BACKLOG)
        accept = partial(ClientConnection, self)
        if context is None:
            loop = asyncio.get_running_loop()
            server = await loop.create_server(accept, sock=listening, backlog=BACKLOG)
            self._servers.append(server)
        else:
            most = max(ARRIVALS_MIN, self.connections_max)
            limits = handshakes.Limits(most, most // 2, self.login_s)
            self._handshakes = handshakes.Handshakes(context, limits, accept)
            self._handshakes.listen(listening, BACKLOG)
        bound = listening.getsockname()[:2]
        self.addresses.append(bound)
        log.info("amqp_door_open", address=f"{bound[0]}:{bound[1]}", tls=context is not None)

    async def close(self) -> None:
        """Close all connections; clients that settle or resume lose nothing."""
        self._cleaning.cancel()
        for server in self._servers:
            server.close()
        if self._handshakes is not None:
            self._handshakes.stop()
        for client in [*self._arrivals, *self._clients]:
            client.close(AmqpFault(FORCED, "the door is closing"))
        self._is_closing = True
        self._check_empty()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(STOP_S):
                await self._empty.wait()
        for client in [*self._arrivals, *self._clients]:
            client.abort()
        self.executor.shutdown(wait=False, cancel_futures=True)

    # Clients.

    @property
    def is_full(self) -> bool:
        """Whether there are more clients than allowed."""
        return len(self._clients) > self.connections_max

    def arrived(self, client: ClientConnection) -> None:
        """Note a new connection; the oldest that has not logged in may have to leave."""
        self._arrivals[client] = None
        if len(self._arrivals) > max(ARRIVALS_MIN, self.connections_max):
            oldest = next(iter(self._arrivals))
            self.not_logged_in(oldest.shown, "too many connections have not logged in")
            oldest.abort()

    def logged_in(self, client: ClientConnection) -> None:
        """Note that a client has logged in."""
        self._arrivals.pop(client, None)
        self._clients[client] = None

    def gone(self, client: ClientConnection) -> None:
        """Note the end of a connection."""
        self._arrivals.pop(client, None)
        self._clients.pop(client, None)
        self._check_empty()

    def _check_empty(self) -> None:
        if self._is_closing and not (self._clients or self._tasks):
            self._empty.set()

    def connect(
        self, principals: Sequence[str], lost: Callable[[NotConnected], None]
    ) -> UserConnection:
        """Return a connection to the daemon that acts for a user; it opens on its first use."""
        return UserConnection(self.socket, principals, lost)

    def not_logged_in(self, client: str, reason: str) -> None:
        """Log a failed login."""
        log.warning("amqp_login_failed", client=client, reason=reason)

    def delete_queues(self, principals: Sequence[str], queues: Sequence[str]) -> None:
        """Delete dynamic queues of a client that has left."""
        work = self.dynamic.delete(principals, queues)
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._deleted)

    def _deleted(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._check_empty()


def _context(settings: AmqpSettings) -> ssl.SSLContext:
    """Return the context of the port for TLS.  Raises OSError, ssl.SSLError."""
    assert settings.certificate is not None
    return server_context(settings.certificate, settings.key, settings.client_ca, ssl.CERT_OPTIONAL)
