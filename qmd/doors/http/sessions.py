"""Sessions: one control connection for each client, with the rights that its token has.

The daemon checks every request, so this door cannot grant a right that the client does not have.
Sessions that are not used are closed.
"""

from __future__ import annotations

import asyncio
import ipaddress
import os
from collections import Counter, OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

from qmd.client.address import Address, DoorAddress, SocketAddress, TokenAddress
from qmd.client.connection import Connection
from qmd.client.queue_manager import QueueManager
from qmd.doors.http.exchange import Peer, Request
from qmd.doors.http.listening import is_loopback_name
from qmd.doors.http.problems import Problem

SESSIONS_MAX = 400
IDLE_S = 300.0
RECONNECT_S = 10.0
LOGINS_MAX = 4  # attempts of one host at once
TOKEN_CHARACTERS_MAX = 200
CHALLENGE = (("www-authenticate", 'Bearer realm="qmd"'),)


class Session:
    """The control connection of one client."""

    def __init__(self, qm: QueueManager) -> None:
        self.qm = qm
        self.caller = qm.caller
        self.is_refused = False  # the daemon does not accept its token any more
        self.used_at = 0.0
        self.requests = 0  # under way

    async def connection(self) -> Connection:
        """Return the open connection.  Raises NotConnected."""
        return await self.caller.connection()

    async def ask(self, verb: Callable[..., Any], *arguments: object) -> Any:
        """Make a request that may be repeated.  Raises ClientError."""
        return await self.caller.ask(verb, *arguments)

    async def change(self, verb: Callable[..., Any], *arguments: object) -> Any:
        """Make a request that changes something, once.  Raises ClientError."""
        return await self.caller.change(verb, *arguments, safe_to_retry=False)

    async def close(self) -> None:
        """Close the connection; its locks last until they are settled or their time is over."""
        await self.caller.close()


class Sessions:
    """The sessions of all clients, by their credentials."""

    def __init__(self, control: Path, *, anonymous: bool) -> None:
        """`anonymous`: whether clients without credentials are served; they are `anonymous`."""
        self._control = control
        self._anonymous = anonymous
        self._sessions: OrderedDict[Address, Session] = OrderedDict()
        self._opening: dict[Address, asyncio.Lock] = {}
        self._logging_in: dict[str, asyncio.Semaphore] = {}  # for each host of clients
        self._waiting: Counter[str] = Counter()
        self._closing: set[asyncio.Task[None]] = set()

    async def of_request(self, request: Request) -> Session:
        """Return the session of the client that made a request.  Raises Problem, ClientError."""
        return await self._of(self._address(request), request.peer.address)

    async def own(self) -> Session:
        """Return the session with the rights of this door's user.  Raises ClientError."""
        return await self._of(SocketAddress(self._control), "")

    async def acting_for(self, principals: tuple[str, ...]) -> Session:
        """Return the session with the rights of a user of doors.  Raises ClientError."""
        return await self._of(DoorAddress(self._control, principals), "")

    def close_idle(self) -> None:
        """Close sessions that were not used for a time."""
        now = asyncio.get_running_loop().time()
        for address, session in list(self._sessions.items()):
            if now - session.used_at > IDLE_S and not session.requests:
                self._end(address)

    async def close(self) -> None:
        """Close all sessions."""
        for address in list(self._sessions):
            self._end(address)
        while self._closing:
            await asyncio.wait(self._closing)

    def _address(self, request: Request) -> Address:
        """Return the connection that a client needs.  Raises Problem."""
        peer, headers = request.peer, request.headers
        token = bearer(headers.get("authorization"))
        if token is not None:
            return TokenAddress(self._control, token)
        if peer.user is not None and peer.user in (0, os.geteuid()):
            return SocketAddress(self._control)
        if peer.certificate:
            # A browser shows it for the requests of all pages, also for those that send or receive.
            if "origin" in headers:
                raise Problem(403, "http_from_a_page")
            return DoorAddress(self._control, (*peer.certificate, *_host(peer)))
        if not self._anonymous or not (peer.user is not None or _is_loopback(peer.address)):
            raise Problem(401, "http_no_credentials", headers=CHALLENGE)
        # A page in a browser on this computer can send requests here: of its own origin, or under
        # a name that it has directed to this address.
        if "origin" in headers or not is_loopback_name(headers.get("host", "localhost")):
            raise Problem(403, "http_from_a_page")
        return DoorAddress(self._control, ("anonymous",))

    async def _of(self, address: Address, host: str) -> Session:
        session = self._sessions.get(address)
        if session is not None and session.is_refused:
            self._end(address)
            session = None
        if session is None:
            session = await self._open(address, host)
        session.used_at = asyncio.get_running_loop().time()
        if address in self._sessions:
            self._sessions.move_to_end(address)
        return session

    async def _open(self, address: Address, host: str) -> Session:
        lock = self._opening.setdefault(address, asyncio.Lock())
        try:
            async with lock:
                if address in self._sessions:
                    return self._sessions[address]
                session = await self._connect(address, host)
                self._sessions[address] = session
        finally:
            self._opening.pop(address, None)
        while len(self._sessions) > SESSIONS_MAX:
            unused = (
                each
                for each, held in self._sessions.items()
                if each != address and not held.requests
            )
            oldest = next(unused, None)
            if oldest is None:
                break
            self._end(oldest)
        return session

    async def _connect(self, address: Address, host: str) -> Session:
        """Connect to the daemon, with few attempts of one host at once."""
        gate = self._logging_in.get(host)
        if gate is None:
            gate = self._logging_in[host] = asyncio.Semaphore(LOGINS_MAX)
        self._waiting[host] += 1
        try:
            async with gate:
                qm = QueueManager(address, reconnect_s=RECONNECT_S)
                await qm.caller.open()
                return Session(qm)
        finally:
            self._waiting[host] -= 1
            if not self._waiting[host]:
                del self._waiting[host], self._logging_in[host]

    def _end(self, address: Address) -> None:
        session = self._sessions.pop(address)
        task = asyncio.get_running_loop().create_task(session.close())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)


def bearer(header: str | None) -> str | None:
    """Return the token of an Authorization header; None: there is none.  Raises Problem."""
    if header is None:
        return None
    scheme, _, token = header.partition(" ")
    token = token.strip()
    if scheme.lower() != "bearer" or not token or len(token) > TOKEN_CHARACTERS_MAX:
        raise Problem(401, "http_no_credentials", "it is no bearer token", CHALLENGE)
    if not token.isascii() or not token.isprintable():
        raise Problem(401, "http_no_credentials", "it is no bearer token", CHALLENGE)
    return token


def _host(peer: Peer) -> tuple[str, ...]:
    """Return the principal of an address; none for this computer."""
    return (f"host:{peer.address}",) if peer.address and not _is_loopback(peer.address) else ()


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False
