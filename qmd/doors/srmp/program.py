"""The program `qmd door srmp`: it serves until a signal stops it.

Exit codes are those of the daemon: 0 stopped on request, 1 it failed, 78 the configuration must be
changed first.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import ssl
from functools import partial

import structlog
import uvloop

from qmd.client import connect
from qmd.config.settings import Settings, SrmpSettings
from qmd.doors.http.exchange import Request, Response
from qmd.doors.http.limits import Limits
from qmd.doors.http.listening import CannotServe, shown
from qmd.doors.http.server import HttpServer
from qmd.doors.srmp.client import HttpClient
from qmd.doors.srmp.incoming import Incoming
from qmd.doors.srmp.outgoing import Outgoing
from qmd.doors.srmp.redirection import Redirection, is_among
from qmd.doors.srmp.source import Starts
from qmd.doors.srmp.sources import Sources
from qmd.runtime.log import set_up_logging
from qmd.runtime.systemd import ServiceManager

log = structlog.get_logger()

EXIT_OK, EXIT_FAILED, EXIT_CONFIGURATION = 0, 1, 78
DRAIN_S = 5.0
SECTION = "srmp"
#: Receipts come to any queue of ours; this one is shown to people.
RECEIPTS_QUEUE = "private$/order_queue$"


class Door:
    """The server for other hosts, and that for the daemon."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._chosen = chosen = settings.srmp
        self._client_context = _client_context(chosen)
        self._allowed = chosen.allowed
        self._incoming: Incoming | None = None
        self._gateway: asyncio.Server | None = None
        self._qm = connect(settings.control.socket)
        self.outgoing = Outgoing(
            _receipts_to(settings),
            _rules(chosen.outbound),
            self._client_context,
            chosen.receipts_from,
            ask=self._qm.caller.ask,
        )
        limits = Limits(
            connections=chosen.connections_max,
            connections_of_address=chosen.connections_per_address_max,
            request_bytes=chosen.request_bytes_max,
            bodies_bytes=max(chosen.bodies_bytes_max, chosen.request_bytes_max),
            body_s=chosen.body_timeout_s,
        )
        self._servers = [
            HttpServer(partial(self._handle, is_encrypted=is_encrypted), limits)
            for is_encrypted in (False, True)
        ]

    async def start(self) -> list[str]:
        """Open the sockets and serve; return where.  Raises CannotServe, ClientError."""
        chosen = self._chosen
        await self._qm.__aenter__()
        self._incoming = Incoming(
            self._qm,
            (_loopback(self._settings.listen.address), self._settings.listen.port),
            Starts(chosen.streams),
            Sources(chosen.streams.with_name(f"{chosen.streams.name}-sources")),
            _rules(chosen.inbound),
            (*map(str, chosen.names), self._qm.name),
            lambda: HttpClient(self._client_context),
            self.outgoing.receipt,
        )
        plain = _listening(chosen.address, chosen.port)
        await self._servers[0].start([plain], None)
        places = [shown(plain, is_tls=False)]
        context = _server_context(chosen)
        if context is not None:
            secure = _listening(chosen.address, chosen.tls_port)
            await self._servers[1].start([secure], context)
            places.append(shown(secure, is_tls=True))
        try:
            self._gateway = await asyncio.start_server(
                self.outgoing.serve, "127.0.0.1", chosen.gateway_port
            )
        except OSError as error:
            raise CannotServe(
                f"cannot listen at 127.0.0.1 port {chosen.gateway_port}: {error.strerror};"
                f" see gateway_port in the section [{SECTION}]",
                code="cannot_listen",
            ) from error
        return places

    async def stop(self) -> None:
        """End requests and sessions; the daemon and other hosts send again what is not answered."""
        for server in self._servers:
            await server.stop(DRAIN_S)
        if self._gateway is not None:
            self._gateway.close()
        self.outgoing.close()
        if self._incoming is not None:
            await self._incoming.close()
        await self._qm.__aexit__(None)

    async def _handle(self, request: Request, *, is_encrypted: bool) -> Response:
        assert self._incoming is not None
        if self._allowed and not is_among(request.peer.address, self._allowed):
            return Response(403, b"this host is not allowed to send", "text/plain", closes=True)
        return await self._incoming(request, is_encrypted=is_encrypted)


def main(settings: Settings) -> int:
    """Serve until a signal stops the door; return the exit code."""
    set_up_logging(settings.log.level, settings.log.format)
    os.umask(0o077)
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(serve(settings))
    except CannotServe as error:
        log.critical("door_not_started", door=SECTION, reason=str(error), code=error.code)
        return EXIT_CONFIGURATION if error.is_lasting else EXIT_FAILED


async def serve(settings: Settings) -> int:
    """Serve until SIGTERM or SIGINT.  Raises CannotServe."""
    service = ServiceManager(os.environ)
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    door = Door(settings)
    try:
        places = await door.start()
        log.info("door_started", door=SECTION, listen=places, control=str(settings.control.socket))
        service.notify("READY=1", f"STATUS=Serving {', '.join(places)}")
        await stop.wait()
    finally:
        service.notify("STOPPING=1")
        with contextlib.suppress(Exception):
            await door.stop()
    log.info("door_stopped", door=SECTION)
    return EXIT_OK


def _rules(texts: tuple[str, ...]) -> list[Redirection]:
    """Return the rules `FROM -> TO`.  Raises CannotServe."""
    found = []
    for text in texts:
        source, arrow, target = (each.strip() for each in text.partition("->"))
        if not (source and arrow and target):
            raise CannotServe(
                f"{text!r} in the section [{SECTION}] is no rule; write FROM -> TO",
                code="srmp_rule",
                lasting=True,
            )
        found.append(Redirection(source, target))
    return found


def _receipts_to(settings: Settings) -> str:
    chosen = settings.srmp
    if chosen.receipts_url:
        return chosen.receipts_url
    host = settings.queue_manager.name or socket.gethostname()
    name = host if chosen.port == 80 else f"{host}:{chosen.port}"
    return f"http://{name}/msmq/{RECEIPTS_QUEUE}"


def _client_context(chosen: SrmpSettings) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=None if chosen.ca is None else str(chosen.ca))
    except (OSError, ssl.SSLError) as error:
        raise CannotServe(
            f"the authorities cannot be used: {error}; see ca in the section [{SECTION}]",
            code="http_tls_files",
            lasting=True,
        ) from error


def _server_context(chosen: SrmpSettings) -> ssl.SSLContext | None:
    if chosen.certificate is None or chosen.key is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(chosen.certificate, chosen.key)
        if chosen.client_ca is not None:
            context.load_verify_locations(chosen.client_ca)
            context.verify_mode = ssl.CERT_OPTIONAL  # most hosts have none
    except (OSError, ssl.SSLError) as error:
        raise CannotServe(
            f"the certificate cannot be used: {error}; see the section [{SECTION}]",
            code="http_tls_files",
            lasting=True,
        ) from error
    return context


def _listening(address: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        return socket.create_server((address, port), family=family)
    except OSError as error:
        raise CannotServe(
            f"cannot listen at {address} port {port}: {error.strerror or error}; see address and"
            f" port in the section [{SECTION}]",
            code="cannot_listen",
            lasting=isinstance(error, PermissionError),
        ) from error


def _loopback(address: str) -> str:
    """Return the address at which the daemon is reached from this computer."""
    if address in ("0.0.0.0", ""):  # nosec B104: compared only
        return "127.0.0.1"
    return "::1" if address == "::" else address
