"""The servers of a daemon: the sockets at which it listens, and its periodic tasks.

A socket that cannot be opened ends the start, with the setting to change.
"""

from __future__ import annotations

import asyncio
import errno
import socket
from functools import partial
from typing import TYPE_CHECKING

import structlog

from qmd.access.tokens import TokenFileError
from qmd.config.settings import Settings
from qmd.control.control_server import ControlServer
from qmd.control.verbs import HANDLERS
from qmd.errors import Refusal
from qmd.manager import QueueManager
from qmd.peers.listener import listen
from qmd.peers.ping import PingAnswers, bind_datagrams
from qmd.runtime.environment import Listening
from qmd.runtime.systemd import ServiceManager
from qmd.runtime.watchdog import Watchdog
from qmd.tls.errors import TlsFilesError

if TYPE_CHECKING:
    from qmd.control.remote import RemoteServer
    from qmd.peers.tls_handshakes import TlsHandshakes

log = structlog.get_logger()

BACKLOG = 512
# The error code of a failure to listen, by the number of the operating system.
_LISTENING = {
    errno.EADDRINUSE: "port_in_use",
    errno.EADDRNOTAVAIL: "address_not_here",
    errno.EACCES: "port_forbidden",
}
# Errors that need a change of the configuration: a restart does not create a folder or a right.
_OF_THE_CONFIGURATION = (FileNotFoundError, NotADirectoryError, PermissionError)


class CannotServe(Exception):
    """A condition of this host prevents the daemon from serving; the text names the remedy.

    `code` is that of the cause in `qmd.catalogue`.
    """

    def __init__(self, text: str, *, code: str) -> None:
        super().__init__(text)
        self.code = code


class Misconfigured(CannotServe):
    """The configuration must be changed first; a restart alone is useless."""


class Servers:
    """The sockets that the daemon serves, and its periodic tasks."""

    def __init__(self, manager: QueueManager, settings: Settings, service: ServiceManager) -> None:
        self._manager = manager
        self._settings = settings
        self._service = service
        self._listeners: list[Listening] = []
        self._ping: PingAnswers | None = None
        self._control = ControlServer(manager.assembly.components, HANDLERS)
        self._remote: RemoteServer | None = None
        self._tls_handshakes: TlsHandshakes | None = None
        self.tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Open every socket and start the tasks.  Raises CannotServe."""
        manager, settings = self._manager, self._settings
        self._listeners = await _listen(manager, settings, self._service)
        if settings.tls.enabled:
            self._listeners += await self._listen_for_tls()
        if settings.listen.ping:
            self._ping = _answer_pings(manager, settings)
        await _open_control(self._control, settings)
        if settings.remote.enabled:
            self._remote = await _open_remote(manager, settings)
        loop = manager.services.loop
        self.tasks = [
            loop.create_task(each.run())
            for each in (
                manager.assembly.loop_lag,
                manager.assembly.maintenance,
                manager.assembly.disk_watch,
                manager.assembly.row_watch,
                manager.assembly.delayed_release,
                manager.assembly.retry_release,
                *((manager.assembly.tls_watch,) if settings.tls.enabled else ()),
                *((manager.assembly.heartbeats,) if settings.delivery.heartbeat_s else ()),
            )
        ]
        if self._service.watchdog_s is not None:
            holds = manager.services.storage.holds_the_loop
            watchdog = Watchdog(self._service, self._service.watchdog_s, holds)
            self.tasks.append(loop.create_task(watchdog.run()))

    async def stop(self) -> None:
        """Close the sockets that are open, in any state, and cancel the tasks."""
        for listener in self._listeners:
            listener.close()
        if self._tls_handshakes is not None:
            self._tls_handshakes.close()
        if self._ping is not None:
            self._ping.close()
        for task in self.tasks:
            task.cancel()
        if self._remote is not None:
            await self._remote.close()
        await self._control.stop(self._settings.control.socket)

    def renew_certificate(self) -> None:
        """Read the certificate of remote control again; a faulty one changes nothing."""
        if self._remote is not None:
            try:
                self._remote.renew_certificate()
            except (OSError, Refusal) as error:  # ssl.SSLError is an OSError
                log.error("remote_certificate_not_renewed", reason=str(error))

    async def _listen_for_tls(self) -> list[Listening]:
        """Load the files of TLS and listen on its port.  Raises CannotServe."""
        from qmd.peers.tls_handshakes import TlsHandshakes

        assembly, chosen = self._manager.assembly, self._settings.tls
        services = self._manager.services
        try:
            assembly.tls.start()
        except TlsFilesError as error:
            raise Misconfigured(
                f"TLS cannot begin: {error}; see the section [tls]", code="tls_files_faulty"
            ) from error
        self._tls_handshakes = TlsHandshakes(
            services, assembly.tls, assembly.turns, partial(assembly.make_connection, None)
        )
        open_listeners = partial(listen, services, assembly.peers, assembly.turns)
        try:
            listeners = await services.environment.listen(
                open_listeners,
                self._tls_handshakes.make_channel,
                (chosen.address, chosen.port),
                BACKLOG,
            )
        except OSError as error:
            kind = Misconfigured if isinstance(error, PermissionError) else CannotServe
            raise kind(
                f"cannot listen for TLS at {chosen.address} port {chosen.port}:"
                f" {error.strerror or error}; see address and port in the section [tls]",
                code=_LISTENING.get(error.errno or 0, "cannot_listen"),
            ) from error
        assembly.tls.listening = listeners[0].address
        host, port = listeners[0].address
        log.info(
            "tls_listens",
            address=host,
            port=port,
            fingerprint=assembly.tls.credentials.certificate.fingerprint,
        )
        return list(listeners)


async def _listen(
    manager: QueueManager, settings: Settings, service: ServiceManager
) -> list[Listening]:
    open_listeners = partial(
        listen, manager.services, manager.assembly.peers, manager.assembly.turns
    )
    factory = partial(manager.assembly.make_connection, None)
    host, port = settings.listen.address, settings.listen.port
    places: list[tuple[str, int] | socket.socket] = [*service.sockets()]
    listeners: list[Listening] = []
    try:
        for place in places or [(host, port)]:
            listeners += await manager.services.environment.listen(
                open_listeners, factory, place, BACKLOG
            )
    except OSError as error:
        kind = Misconfigured if isinstance(error, PermissionError) else CannotServe
        raise kind(
            f"cannot listen at {host} port {port}: {error.strerror or error}; is another daemon"
            " running there? See address and port in the section [listen]",
            code=_LISTENING.get(error.errno or 0, "cannot_listen"),
        ) from error
    manager.services.listening.extend([each.address for each in listeners])
    return listeners


async def _open_remote(manager: QueueManager, settings: Settings) -> RemoteServer:
    import ssl

    from qmd.control.remote import RemoteServer

    server = RemoteServer(manager.assembly.components, HANDLERS, settings.remote)
    try:
        await server.listen()
    except (OSError, TokenFileError) as error:  # ssl.SSLError is one of them
        lasting = (*_OF_THE_CONFIGURATION, ssl.SSLError, TokenFileError)
        kind = Misconfigured if isinstance(error, lasting) else CannotServe
        raise kind(
            f"the remote control protocol cannot listen at {settings.remote.address}:"
            f"{settings.remote.port}: {error}; see certificate, key and tokens in the section"
            " [remote]",
            code="remote_control_failed",
        ) from error
    except Refusal as refusal:
        raise Misconfigured(f"{refusal.text}; {refusal.remedy}", code=refusal.code) from refusal
    host, port = server.address
    log.info("remote_control", address=host, port=port)
    return server


async def _open_control(control: ControlServer, settings: Settings) -> None:
    chosen = settings.control
    try:
        await control.start(chosen.socket, chosen.mode, chosen.group)
    except LookupError as error:
        raise Misconfigured(
            f"the control socket {chosen.socket} cannot be opened: {error}; see group in the"
            " section [control]",
            code="control_group_unknown",
        ) from error
    except OSError as error:
        kind = Misconfigured if isinstance(error, _OF_THE_CONFIGURATION) else CannotServe
        raise kind(
            f"the control socket {chosen.socket} cannot be opened: {error}; see the section"
            " [control]",
            code="control_socket_failed",
        ) from error


def _answer_pings(manager: QueueManager, settings: Settings) -> PingAnswers:
    """Open the UDP port of pings.  [MS-MQQB] 3.1.5.10: off by default since Windows Vista."""
    host, port = settings.listen.address, settings.listen.ping_port
    peers = manager.assembly.peers
    try:
        bound = bind_datagrams(host, port)
    except OSError as error:
        raise CannotServe(
            f"cannot listen for pings at {host} port {port}: {error.strerror or error}; see ping"
            " and ping_port in the section [listen]",
            code="ping_port_failed",
        ) from error
    return PingAnswers(
        manager.services,
        manager.assembly.turns,
        peers.hosts.is_allowed,
        peers.admission.has_room_for,
        bound,
    )
