"""Dialer: resolves the names of other hosts and connects to their addresses."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from functools import partial
from ipaddress import ip_address
from typing import TYPE_CHECKING

from qmd.core.url_links import is_url
from qmd.peers.connect_errors import explain
from qmd.peers.tls_peers import end_of
from qmd.tls.errors import TlsFailed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from qmd.peers.connection import PeerConnection, SessionUser
    from qmd.peers.name_lookups import NameLookups
    from qmd.peers.tls_peers import Dialled, TlsPeers
    from qmd.runtime.fair_scheduler import FairScheduler
    from qmd.runtime.services import Services
    from qmd.tls.channel import Proof, TlsChannel

ADDRESSES_MAX = 16  # addresses of one link that are tried
TOO_LATE = "the time to connect ended while it was made"


class Dialer:
    """Connects links to other queue managers; `make_connection` makes the protocol of a socket."""

    def __init__(
        self,
        services: Services,
        lookups: NameLookups,
        tls: TlsPeers,
        turns: FairScheduler,
        make_connection: Callable[[SessionUser, tuple[str, int]], PeerConnection],
    ) -> None:
        self._services = services
        self._lookups = lookups
        self._tls = tls
        self._turns = turns
        self._make_connection = make_connection

    async def resolve(
        self,
        hosts: Iterable[tuple[str, int]],
        *,
        failed_at: tuple[str, int] | None,
        for_peers: bool,
    ) -> list[tuple[str, int]]:
        """Return the addresses (address, port) of hosts (name or address, port), at most 16.

        `for_peers`: only messages of other hosts need the connection.  The address after
        `failed_at`, the last address that failed, comes first.  Raises OSError if there is none.
        """
        found: dict[tuple[str, int], None] = {}
        failure: OSError | None = None
        for host, port in hosts:
            if is_url((host, port)):
                found["127.0.0.1", self._services.settings.srmp.gateway_port] = None
                continue
            if _is_address(host):
                found[host, port] = None
                continue
            try:
                infos = await self._lookups.look_up(host, port, for_peers=for_peers)
            except (OSError, TimeoutError) as error:
                failure = error if isinstance(error, OSError) else OSError(str(error))
                continue
            for info in infos:
                found[str(info[4][0]) + _scope(info[4]), port] = None
        addresses = list(found)[:ADDRESSES_MAX]
        if not addresses:
            raise failure or OSError("its name has no address")
        if failed_at in found:
            at = (addresses.index(failed_at) + 1) % len(addresses)
            addresses = addresses[at:] + addresses[:at]
        return addresses

    async def connect(
        self, link: SessionUser, host: str, port: int, *, limit_s: float
    ) -> OSError | UnicodeError | None:
        """Connect to an address, over TLS if the policy says so; return the error if that fails.

        Return None also if the connection was made and has ended: its session has reported that.
        `limit_s` is the time for a connection without TLS.
        """
        peer = end_of(link)
        ways = self._tls.ways(peer)
        if ways.tls_port is not None and not is_url(link.address):
            error = await self._connect_tls(link, peer, host, port, ways.tls_port)
            if error is None or not ways.may_be_plain:
                return error
            self._tls.failed(peer, str(error))
        made: list[PeerConnection] = []

        def make() -> PeerConnection:
            made.append(self._make_connection(link, (host, port)))
            return made[-1]

        try:
            async with asyncio.timeout(limit_s):
                await self._services.loop.create_connection(make, host, port)
        except (OSError, TimeoutError, UnicodeError) as error:
            return None if _end(made) else error
        except asyncio.CancelledError:
            _end(made)
            raise
        return None

    async def _connect_tls(
        self, link: SessionUser, peer: Dialled, host: str, port: int, tls_port: int
    ) -> TlsFailed | None:
        """Connect to the port for TLS; return the error if that fails."""
        from qmd.tls.channel import TlsChannel

        settings = self._services.settings
        dial = _TlsDial(
            self._services, self._tls, peer, partial(self._make_connection, link, (host, port))
        )
        channel = TlsChannel(
            self._services.loop,
            self._tls.credentials,
            self._turns,
            dial,
            is_dialled=True,
            timeout_s=settings.tls.handshake_timeout_s,
        )
        waited_s = settings.delivery.connect_timeout_s
        try:
            async with asyncio.timeout(waited_s):
                await self._services.loop.create_connection(lambda: channel, host, tls_port)
            reason = await dial.done
        except (OSError, TimeoutError, UnicodeError) as error:
            if channel.host:  # the connection was made, and is closed: `_end`
                channel.connection_lost(None)
            reason = explain(error, waited_s=waited_s).text
        except asyncio.CancelledError:
            channel.abort()
            raise
        return TlsFailed(f"TLS at port {tls_port}: {reason}") if reason else None


def _end(made: list[PeerConnection]) -> bool:
    """End the session of a connection that was made and given up; return whether there is one.

    If an attempt is given up in the turn in which its connection is made, uvloop closes the
    transport, accepts no call on it, and does not call `connection_lost`.
    """
    opened = [each for each in made if each.session is not None and each.is_open]
    for each in opened:
        each.connection_lost(TimeoutError(TOO_LATE))
    return bool(opened)


class _TlsDial:
    """One attempt to connect over TLS; it owns its channel until the handshake has ended."""

    def __init__(
        self,
        services: Services,
        tls: TlsPeers,
        peer: Dialled,
        make_connection: Callable[[], PeerConnection],
    ) -> None:
        self._tls = tls
        self._peer = peer
        self._make_connection = make_connection
        self.done: asyncio.Future[str] = services.loop.create_future()  # "", or why it failed

    def began(self, channel: TlsChannel) -> None:
        """Do nothing: attempts are limited by the links."""

    def judge(self, channel: TlsChannel, proof: Proof) -> str:
        """Return why the certificate of the peer is refused, or ""."""
        return self._tls.judge_certificate(channel.host, proof, self._peer)

    def ready(self, channel: TlsChannel) -> PeerConnection:
        """Return the session of the connection."""
        if not self.done.done():
            self.done.set_result("")
        return self._make_connection()

    def failed(self, channel: TlsChannel, reason: str) -> None:
        """Report why the handshake has failed."""
        self._tls.handshake_failed(channel, reason)
        if not self.done.done():
            self.done.set_result(reason)


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def _scope(address: tuple[object, ...]) -> str:
    """Return "%" and the interface of a link-local IPv6 address, which is ambiguous without it.

    Return "" for other addresses.
    """
    is_scoped = len(address) == 4 and address[3] and "%" not in str(address[0])
    if not is_scoped:
        return ""
    with contextlib.suppress(OSError, OverflowError):
        return f"%{socket.if_indextoname(int(str(address[3])))}"
    return f"%{address[3]}"
