"""The control protocol over TCP with TLS; a token determines the rights of a client.

The frames are those of the control socket.  The first request of a connection must be its login,
with limits of size and time; after it, `qmd.control.verb_rights` checks for every request that the
token has the necessary rights.  docs/decisions/0020, docs/remote.md.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import structlog

from qmd.access.demands import ADMIN
from qmd.access.rights import rights_of
from qmd.access.tokens import Grant, TokenFileError
from qmd.control import status as overview
from qmd.control.control_server import ControlServer, Handlers
from qmd.control.large_requests import ignore
from qmd.control.places import Places
from qmd.control.server import ControlConnection
from qmd.control.token_login import unknown_token
from qmd.control.token_watch import GRACE_S, Holder
from qmd.control_protocol import messages as frames
from qmd.control_protocol.certificates import certificate_names, expires_at_s
from qmd.control_protocol.keep_alive import keep_alive
from qmd.control_protocol.messages import FrameBuffer
from qmd.core.access import Caller
from qmd.core.principals import CERT, TOKEN, Principal
from qmd.errors import Refusal
from qmd.runtime.rate_limit import RateLimit
from qmd.runtime.server_tls import server_context
from qmd.runtime.shares import Owner, Shares, owner_of

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from qmd.config.settings import RemoteSettings
    from qmd.control.components import Components
    from qmd.control.large_requests import Hooks

log = structlog.get_logger()

LOGIN_BYTES_MAX = 4096  # of a frame before the login
LOOPBACK = ("127.0.0.1", "::1")
FAILURE_DELAY_S = 0.5  # before the answer to a wrong token
BUCKET_S = 5.0  # an idle client may send the requests of this time at once
USE_S = 10.0  # the last use of a token is recorded at most this often
# Wrong tokens in a second, of one host and of all, that get an answer: 10 in a minute, and 600. A
# host with more waits until the time limit of the login; a right token is never refused for it.
FAILURE_RATE, FAILURES_OF_ALL_RATE, FAILURE_BURST_S = 1 / 6, 10.0, 60.0
LOGINS_MAX = 64  # connections that have not logged in
OPERATORS_MAX = 8  # places beside connections_max, for tokens of administrators
# New connections in a second, on average: of one host, and of one network and of all hosts without
# earlier logins. A TLS handshake takes a millisecond of the processor.
HOST_RATE, NETWORK_RATE, ARRIVAL_RATE, ARRIVAL_BURST_S = 25.0, 50.0, 100.0, 4.0
HOSTS_MAX = 1024


def limit_of_arrivals(clock: Callable[[], float]) -> RateLimit:
    """Return the limit of new connections, of which no network takes all."""
    return RateLimit(
        clock,
        of_each=HOST_RATE,
        of_group=NETWORK_RATE,
        of_all=ARRIVAL_RATE,
        burst_s=ARRIVAL_BURST_S,
    )


class RemoteServer(ControlServer):
    """The server on a TCP port."""

    def __init__(
        self, components: Components, handlers: Handlers, settings: RemoteSettings
    ) -> None:
        super().__init__(components, handlers)
        self.settings = settings
        self.tokens = components.token_logins.tokens
        self.address: tuple[str, int] = (settings.address, settings.port)
        self.arrivals: Shares[Arrival] = Shares()
        clock = components.services.loop.time
        self.places = Places(settings.connections_max, OPERATORS_MAX, clock)
        self._rate = limit_of_arrivals(clock)
        self.failures = RateLimit(
            clock, of_each=FAILURE_RATE, of_all=FAILURES_OF_ALL_RATE, burst_s=FAILURE_BURST_S
        )
        self.watch = components.token_logins.watch
        self._hosts: dict[str, None] = {}  # clients at them have logged in; the latest one last
        self._tls: ssl.SSLContext | None = None
        self._authorities = b""  # of the certificates of clients, as they were read last

    async def listen(self) -> None:
        """Open the TCP port.

        Raises OSError, ssl.SSLError, TokenFileError, and Refusal for an address without TLS.
        """
        self._tls = self._context()
        self.tokens.grants()
        settings = self.settings
        family = socket.AF_INET6 if ":" in settings.address else socket.AF_INET
        listening = socket.create_server((settings.address, settings.port), family=family)
        self.accept(listening)
        self.address = listening.getsockname()[:2]

    def renew_certificate(self) -> None:
        """Use the certificate and the key as they are now, for new connections.

        If the authorities of clients have changed, open connections end: their clients connect
        again, with certificates that one of the present authorities has issued.  Raises OSError,
        ssl.SSLError, Refusal.
        """
        before = self._authorities
        self._tls = self._context()
        if self._authorities != before:
            for arrival in list(self.arrivals):
                arrival.end()
            for connection in list(self.connections):
                connection.close()
                self.components.services.loop.call_later(GRACE_S, connection.abort)

    async def close(self) -> None:
        self.stop_accepting()
        self.watch.stop()
        for arrival in list(self.arrivals):
            arrival.end()
        for connection in list(self.connections):
            connection.close()

    def logged_in(self, arrival: Arrival) -> None:
        """Record that a client has logged in: new connections of its host are not limited then."""
        self.arrivals.remove(arrival)
        self._hosts.pop(arrival.host, None)
        self._hosts[arrival.host] = None
        if len(self._hosts) > HOSTS_MAX:
            del self._hosts[next(iter(self._hosts))]

    def _take(self, connected: socket.socket, address: object) -> None:
        host = cast(tuple[str, int], address)[0].removeprefix("::ffff:")
        owner = owner_of(host)
        if not self._rate.allows(owner.name, group=owner.group, in_any_case=host in self._hosts):
            self._refuse(connected, host)
            return
        if len(self.arrivals) >= LOGINS_MAX:
            oldest = self.arrivals.candidate()
            assert oldest is not None
            self.components.services.log_limited(
                "too_many_remote_clients", oldest.host, address=oldest.host
            )
            oldest.end()
        arrival = Arrival(self, connected, host)
        self.arrivals.add(arrival, owner)
        task = self.components.services.loop.create_task(self._shake_hands(arrival))
        self._accepting.add(task)
        task.add_done_callback(self._accepting.discard)

    def _refuse(self, connected: socket.socket, host: str) -> None:
        self.components.services.log_limited("too_many_remote_clients", host, address=host)
        connected.close()

    async def _shake_hands(self, arrival: Arrival) -> None:
        """Complete the TLS handshake; the connection then waits for its login."""
        tls = self._tls
        try:
            await self.components.services.loop.connect_accepted_socket(
                partial(RemoteConnection, self.components, self, arrival),
                arrival.socket,
                ssl=tls,
                ssl_handshake_timeout=self.settings.login_timeout_s if tls else None,
            )
        except OSError:  # ssl.SSLError is one; or the client has disconnected
            arrival.left()
            arrival.socket.close()

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
        authorities = b"" if settings.client_ca is None else settings.client_ca.read_bytes()
        context = server_context(settings.certificate, settings.key, settings.client_ca)
        self._authorities = authorities
        return context


class Arrival:
    """A connection that has not logged in yet; its handshake and its login have a time limit."""

    def __init__(self, server: RemoteServer, connected: socket.socket, host: str) -> None:
        self._server = server
        self.socket = connected
        self.host = host
        self._limit = server.components.services.loop.call_later(
            server.settings.login_timeout_s, self._took_too_long
        )

    def end(self) -> None:
        """End the connection: another one needs its place, or it takes too long."""
        self.left()
        with contextlib.suppress(OSError):  # the transport has closed it already
            self.socket.shutdown(socket.SHUT_RDWR)

    def left(self) -> None:
        """Free its place: it has ended, or has logged in."""
        self._limit.cancel()
        self._server.arrivals.remove(self)

    def _took_too_long(self) -> None:
        self._server.components.services.log_limited(
            "remote_login_too_slow", self.host, address=self.host
        )
        self.end()


class RemoteConnection(ControlConnection):
    """The connection of one remote client."""

    is_local = False

    def __init__(self, components: Components, server: RemoteServer, arrival: Arrival) -> None:
        super().__init__(components, server)
        self._remote = server
        self._arrival = arrival
        self._buffer = FrameBuffer(LOGIN_BYTES_MAX)
        self._grant: Grant | None = None
        self._logging_in = False
        self._host = arrival.host
        self.reader.who = f"a client at {self._host}"
        self._allowance = self._most = server.settings.requests_per_second * BUCKET_S
        self._counted_at = self._used_at = self._loop.time()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        keep_alive(transport)
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._arrival.left()
        self._remote.watch.remove(self)
        super().connection_lost(exc)

    def _handle(self, request: frames.Request) -> None:
        try:
            if self._grant is None:
                self._log_in(request)
                return
            self._check(self._grant)
        except Refusal as refusal:
            self._refuse(request.number, refusal)
            return
        super()._handle(request)

    # The login.

    def _log_in(self, request: frames.Request) -> None:
        if self.components.services.lifecycle.stopping:
            self._loop.call_soon(self.close)  # the stop has ended all connections that it knew
            raise Refusal("stopping", "this queue manager is stopping", "Try again in a moment.")
        if not isinstance(request, frames.Login) or self._logging_in:
            raise _login_first()
        if request.version != frames.VERSION:
            raise Refusal(
                "versions_differ",
                f"the client uses version {request.version} of the control protocol, this queue"
                f" manager version {frames.VERSION}",
                "Use client and daemon of the same release.",
            )
        try:
            now_s = self.components.services.environment.time()
            grant = self._remote.tokens.find(request.token, now_s)
        except TokenFileError as error:
            log.error("token_file_broken", reason=str(error))
            grant = None
        if grant is None:
            self._logging_in = True  # a second attempt needs a new connection
            self.components.services.log_limited(
                "remote_token_refused", self._host, address=self._host
            )
            refusal = unknown_token(self.components.services.name)
            if not self._remote.failures.allows(owner_of(self._host).name):
                return  # no answer: the time limit of the login ends the connection
            self._loop.call_later(FAILURE_DELAY_S, self._turn_away, request.number, refusal)
            return
        certified_until_s = expires_at_s(self._tls)
        if self.components.services.environment.time() >= certified_until_s:
            self._logging_in = True
            self._turn_away(request.number, _expired())
            return
        owner, is_operator = Owner(("token", grant.name), self._host), grant.may(ADMIN)
        if not self._remote.places.admit(self, owner, is_operator=is_operator):
            self._logging_in = True
            self.components.services.log_limited(
                "too_many_remote_clients", self._host, address=self._host
            )
            self._turn_away(request.number, _no_place(self._remote.settings.connections_max))
            return
        self._remote.places.requested(self)
        self._arrival.left()
        self._remote.logged_in(self._arrival)
        self._join(owner.group, f"{grant.name} at {self._host}")
        self._grant = grant
        holder = Holder(
            grant, self._host, self.close, self.abort, certified_until_s=certified_until_s
        )
        self._remote.watch.add(self, holder)
        self.rights = rights_of(grant, self.components.access_checks, self._caller(grant))
        self._buffer.set_limit(frames.FRAME_BYTES_MAX)
        log.info("remote_client", token=grant.name, address=self._host)
        self.done(
            request.number,
            {
                **overview.hello(self.components),
                "scopes": sorted(grant.scopes),
                "token": grant.name,
            },
        )

    def _caller(self, grant: Grant) -> Caller:
        """Return the caller that a token is, with the certificate of its client."""
        proven = {Principal(TOKEN, grant.name)}
        tls = self._tls
        certificate = tls.getpeercert(binary_form=True) if tls else None
        if tls and certificate:  # verified: client_ca is set
            names = certificate_names(certificate, tls.getpeercert())
            proven.update(Principal(CERT, name) for name in names)
        return Caller(f"token:{grant.name}", frozenset(proven), is_limited=True)

    @property
    def _tls(self) -> ssl.SSLObject | None:
        assert self._transport is not None
        return cast("ssl.SSLObject | None", self._transport.get_extra_info("ssl_object"))

    def _turn_away(self, number: int, refusal: Refusal) -> None:
        if self._transport is not None:
            self._refuse(number, refusal)
            self._loop.call_soon(self.close)

    # Limits of rate, and revoked tokens.

    def change_in_parts(
        self,
        number: int,
        work: Callable[[Hooks], Coroutine[Any, Any, object]],
        begun: Callable[[], None] = ignore,
    ) -> None:
        """Start a change in parts; a request with many messages comes here without `_handle`."""
        try:
            if self._grant is None:
                raise _login_first()
            self._check(self._grant)
        except Refusal as refusal:
            begun()
            self._refuse(number, refusal)
            return
        super().change_in_parts(number, work, begun)

    def _check(self, grant: Grant) -> None:
        now = self._loop.time()
        if not self._remote.watch.is_valid(grant):
            self._loop.call_soon(self.close)
            raise Refusal(
                "token_refused", f"token {grant.name} was revoked or has expired", "Use another."
            )
        if now - self._used_at > USE_S:
            self._used_at = now
            self._remote.watch.used(grant, self._host)
        self._count(now)

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


def _login_first() -> Refusal:
    return Refusal(
        "login_first",
        "no request is allowed before the login",
        "Use the client library, or `qmd --host`.",
    )


def _expired() -> Refusal:
    return Refusal(
        "token_refused",
        "the certificate of the client has expired",
        "Issue a new one: a session of TLS that is resumed does not prove it again.",
    )


def _no_place(limit: int) -> Refusal:
    return Refusal(
        "too_many_remote_clients",
        f"{limit} remote clients are connected, and none of them has more connections than this one"
        " would have",
        "Close connections that are not used, or raise connections_max in the section [remote].",
    )
