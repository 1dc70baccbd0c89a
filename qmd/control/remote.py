"""The control protocol over TCP with TLS; a token determines the rights of a client.

The frames are those of the control socket.  The first request of a connection must be its login,
with limits of size and time; after it, `qmd.control.verb_rights` checks for every request that the
token has the necessary rights.  docs/decisions/0020, docs/remote.md.
"""

from __future__ import annotations

import asyncio
import ssl
from typing import TYPE_CHECKING, cast

import structlog

from qmd.access.rights import rights_of
from qmd.access.tokens import Grant, TokenFile, TokenFileError
from qmd.control import status as overview
from qmd.control.server import ControlConnection, ControlServer, Handlers
from qmd.control_protocol import messages as frames
from qmd.control_protocol.messages import FrameBuffer
from qmd.errors import Refusal

if TYPE_CHECKING:
    from qmd.config.settings import RemoteSettings
    from qmd.control.components import Components

log = structlog.get_logger()

LOGIN_BYTES_MAX = 4096  # of a frame before the login
LOOPBACK = ("127.0.0.1", "::1")
FAILURE_DELAY_S = 0.5  # before the answer to a wrong token
BUCKET_S = 5.0  # an idle client may send the requests of this time at once
REVOKED_LOOK_S = 1.0


class RemoteServer(ControlServer):
    """The server on a TCP port."""

    def __init__(
        self, components: Components, handlers: Handlers, settings: RemoteSettings
    ) -> None:
        super().__init__(components, handlers)
        self.settings = settings
        self.tokens = TokenFile(settings.tokens)
        self.address: tuple[str, int] = (settings.address, settings.port)

    async def listen(self) -> None:
        """Open the TCP port.

        Raises OSError, ssl.SSLError, TokenFileError, and Refusal for an address without TLS.
        """
        context = self._context()
        self.tokens.grants()
        self._server = await asyncio.get_running_loop().create_server(
            self._connected,
            self.settings.address,
            self.settings.port,
            ssl=context,
            ssl_handshake_timeout=self.settings.login_timeout_s if context else None,
        )
        self.address = self._server.sockets[0].getsockname()[:2]

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for connection in list(self.connections):
            connection.close()

    def _context(self) -> ssl.SSLContext | None:
        settings = self.settings
        if settings.plain_on_loopback:
            if settings.address not in LOOPBACK:
                raise Refusal(
                    "remote_not_secret",
                    f"the remote control protocol would be without TLS at {settings.address}",
                    f"Without TLS it may listen at {' or '.join(LOOPBACK)} only: see"
                    " plain_on_loopback in the section [remote].",
                )
            return None
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.load_cert_chain(settings.certificate, settings.key)
        if settings.client_ca is not None:
            context.verify_mode = ssl.CERT_REQUIRED
            context.load_verify_locations(settings.client_ca)
        return context

    def _connected(self) -> ControlConnection:
        return RemoteConnection(self.components, self)


class RemoteConnection(ControlConnection):
    """The connection of one remote client."""

    def __init__(self, components: Components, server: RemoteServer) -> None:
        super().__init__(components, server)
        self._remote = server
        self._buffer = FrameBuffer(LOGIN_BYTES_MAX)
        self._grant: Grant | None = None
        self._logging_in = False
        self._host = ""
        self._limit: asyncio.TimerHandle | None = None
        self._allowance = self._most = server.settings.requests_per_second * BUCKET_S
        self._counted_at = self._looked_at = self._loop.time()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        peer = transport.get_extra_info("peername") or ("?", 0)
        self._host = str(peer[0])
        if len(self._server.connections) >= self._remote.settings.connections_max:
            self.components.services.log_limited(
                "too_many_remote_clients", self._host, address=self._host
            )
            cast(asyncio.Transport, transport).abort()
            return
        super().connection_made(transport)
        self.reader.who = f"a client at {self._host}"
        self._limit = self._loop.call_later(
            self._remote.settings.login_timeout_s, self._took_too_long
        )

    def connection_lost(self, exc: Exception | None) -> None:
        if self._limit is not None:
            self._limit.cancel()
        super().connection_lost(exc)

    def _took_too_long(self) -> None:
        if self._grant is None and self._transport is not None:
            self.components.services.log_limited(
                "remote_login_too_slow", self._host, address=self._host
            )
            self._transport.abort()

    def _handle(self, request: frames.Request) -> None:
        try:
            if self._grant is None:
                self._log_in(request)
                return
            self._check(request, self._grant)
        except Refusal as refusal:
            self._refuse(request.number, refusal)
            return
        super()._handle(request)

    # The login.

    def _log_in(self, request: frames.Request) -> None:
        if not isinstance(request, frames.Login) or self._logging_in:
            raise Refusal(
                "login_first",
                "no request is allowed before the login",
                "Use the client library, or `qmd --host`.",
            )
        if request.version != frames.VERSION:
            raise Refusal(
                "versions_differ",
                f"the client uses version {request.version} of the control protocol, this queue"
                f" manager version {frames.VERSION}",
                "Use client and daemon of the same release.",
            )
        try:
            grant = self._remote.tokens.find(request.token)
        except TokenFileError as error:
            log.error("token_file_broken", reason=str(error))
            grant = None
        if grant is None:
            self._logging_in = True  # a second attempt needs a new connection
            self.components.services.log_limited(
                "remote_token_refused", self._host, address=self._host
            )
            self._loop.call_later(FAILURE_DELAY_S, self._turn_away, request.number)
            return
        self._grant = grant
        self.rights = rights_of(grant)
        if self._limit is not None:
            self._limit.cancel()
        self._buffer.set_limit(frames.FRAME_BYTES_MAX)
        self.reader.who = f"{grant.name} at {self._host}"
        log.info("remote_client", token=grant.name, address=self._host)
        self.done(
            request.number,
            {
                **overview.hello(self.components),
                "scopes": sorted(grant.scopes),
                "token": grant.name,
            },
        )

    def _turn_away(self, number: int) -> None:
        if self._transport is not None:
            self._refuse(
                number,
                Refusal(
                    "token_refused",
                    f"{self.components.services.name} does not know this token",
                    "It was revoked, or belongs to another host: see `qmd remote token list`"
                    " there.",
                ),
            )
            self._loop.call_soon(self.close)

    # Limits of rate, and revoked tokens.

    def _check(self, request: frames.Request, grant: Grant) -> None:
        now = self._loop.time()
        if now - self._looked_at > REVOKED_LOOK_S:
            self._looked_at = now
            self._look_again(grant)
        self._count(now)

    def _look_again(self, grant: Grant) -> None:
        try:
            if self._remote.tokens.still_has(grant):
                return
        except TokenFileError as error:
            log.error("token_file_broken", reason=str(error))
        self._loop.call_soon(self.close)
        raise Refusal("token_refused", f"token {grant.name} was revoked", "Use another one.")

    def _count(self, now: float) -> None:
        """Count one request by a token bucket.  Raises Refusal if the rate is too high."""
        rate = self._remote.settings.requests_per_second
        self._allowance = min(self._most, self._allowance + (now - self._counted_at) * rate)
        self._counted_at = now
        if self._allowance < 1:
            raise Refusal(
                "too_many_requests",
                f"more than {rate} requests a second came on this connection",
                "Request more messages at once, or wait between requests.",
            )
        self._allowance -= 1
