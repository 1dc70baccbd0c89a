"""The program `qmd door srmp`: the server for other hosts, and that for the daemon."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from qmd.client import connect
from qmd.config.settings import Settings, SrmpSettings
from qmd.doors.http.exchange import Request, Response
from qmd.doors.http.limits import Limits
from qmd.doors.http.listening import CannotServe, listening_at, server_context, shown
from qmd.doors.http.program import run
from qmd.doors.http.server import HttpServer
from qmd.doors.srmp.client import HttpClient
from qmd.doors.srmp.envelope import NotSrmp
from qmd.doors.srmp.incoming import Incoming
from qmd.doors.srmp.messages import name_of
from qmd.doors.srmp.outgoing import Outgoing
from qmd.doors.srmp.redirection import Redirection, is_among
from qmd.doors.srmp.sources import Sources
from qmd.doors.srmp.store import Store
from qmd.doors.srmp.stream_starts import Starts
from qmd.runtime.systemd import ServiceManager

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
        self._store = Store(chosen.streams)
        self._incoming: Incoming | None = None
        self._gateway: asyncio.Server | None = None
        self._qm = connect(settings.control.socket)
        self.outgoing = Outgoing(
            _receipts_to(settings),
            _rules(chosen.outbound),
            self._client_context,
            chosen.receipts_from,
            ask=self._qm.caller.ask,
            users={os.geteuid(), 0, *_owner_of(settings.control.socket)},
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

    async def start(self, service: ServiceManager) -> list[str]:
        """Open the sockets and serve; return where.  Raises CannotServe, ClientError."""
        chosen = self._chosen
        known = Sources(self._store)
        try:
            await self._store.open()
            await known.load()
        except OSError as error:
            raise CannotServe(
                f"{error}; see streams in the section [{SECTION}]", code="srmp_streams"
            ) from error
        await self._qm.__aenter__()
        self._incoming = Incoming(
            self._qm,
            (_loopback(self._settings.listen.address), self._settings.listen.port),
            Starts(self._store),
            known,
            _rules(chosen.inbound),
            (*map(str, chosen.names), self._qm.name),
            lambda address: HttpClient(
                self._client_context, partial(_may_get_receipts, address, chosen.receipts_to)
            ),
            self.outgoing.receipt,
        )
        plain = listening_at(chosen.address, chosen.port, SECTION)
        await self._servers[0].start([plain], None)
        places = [shown(plain, is_tls=False)]
        if chosen.certificate is not None and chosen.key is not None:
            context = server_context(
                chosen.certificate,
                chosen.key,
                chosen.client_ca,
                SECTION,
                verify=ssl.CERT_OPTIONAL,  # most hosts have none
            )
            secure = listening_at(chosen.address, chosen.tls_port, SECTION)
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
        await self._store.close()
        await self._qm.__aexit__(None)

    async def _handle(self, request: Request, *, is_encrypted: bool) -> Response:
        assert self._incoming is not None
        if self._allowed and not is_among(request.peer.address, self._allowed):
            return Response(403, b"this host is not allowed to send", "text/plain", closes=True)
        return await self._incoming(request, is_encrypted=is_encrypted)


def main(settings: Settings) -> int:
    """Serve until a signal stops the door; return the exit code."""
    return run(settings, SECTION, Door)


def _may_get_receipts(sender: str, networks: Sequence[object], address: str) -> bool:
    """Return whether receipts for messages of a sender may be sent to an address.

    Only to its own one, or to a network of the configuration: a URL in a message would otherwise
    make this computer send requests to any other.
    """
    return address == sender or is_among(address, networks)


def _owner_of(path: Path) -> set[int]:
    """Return the user that a socket belongs to: that of the daemon."""
    try:
        return {path.stat().st_uid}
    except OSError:
        return set()


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
        try:
            name_of(chosen.receipts_url.partition("?")[0])
        except NotSrmp as error:  # other hosts would refuse each stream, and its messages with it
            raise CannotServe(
                f"receipts_url in the section [{SECTION}]: {error}",
                code="srmp_receipts_url",
                lasting=True,
            ) from error
        return chosen.receipts_url
    host = settings.queue_manager.name or socket.gethostname()
    name = host if chosen.port == 80 else f"{host}:{chosen.port}"
    return f"http://{name}/msmq/{RECEIPTS_QUEUE}"


def _client_context(chosen: SrmpSettings) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=None if chosen.ca is None else str(chosen.ca))
        if chosen.client_certificate is not None and chosen.client_key is not None:
            context.load_cert_chain(chosen.client_certificate, chosen.client_key)
        return context
    except (OSError, ssl.SSLError) as error:
        raise CannotServe(
            f"the files for HTTPS to other hosts cannot be used: {error}; see ca,"
            f" client_certificate and client_key in the section [{SECTION}]",
            code="http_tls_files",
            lasting=True,
        ) from error


def _loopback(address: str) -> str:
    """Return the address at which the daemon is reached from this computer."""
    if address in ("0.0.0.0", ""):  # nosec B104: compared only
        return "127.0.0.1"
    return "::1" if address == "::" else address
