"""The entrance: passwords, tokens and the printed link, each with its limit of attempts."""

from __future__ import annotations

import asyncio
import math
import time
from pathlib import Path

import structlog

from qmd.client import ClientError, LoginRefused, NotConnected
from qmd.client.address import TokenAddress
from qmd.client.connection import open_connection
from qmd.client.errors import QueueManagerError
from qmd.config.settings import Settings
from qmd.console.logins import (
    NAME_WAIT_MAX_S,
    WAIT_MAX_S,
    Brake,
    Link,
    Passwords,
    Session,
    Sessions,
    Turns,
)
from qmd.console.roles import Identity, Role
from qmd.console.users import Users
from qmd.console.visit import Forbidden
from qmd.doors.attempts import client_of, local_user
from qmd.doors.http.exchange import Peer
from qmd.doors.users import NAME_CHARACTERS_MAX

log = structlog.get_logger()

TOKEN_CHARACTERS_MAX = 200
TOKEN_S = 10.0
TOKEN_AGAIN_S = 2.0  # after which the token of a session is tried again
TOKEN_UNCHECKED_S = 60.0  # for which it counts while the queue manager does not answer
WRONG = "The name or the password is wrong."


class Entrance:
    """The ways into the console."""

    def __init__(self, settings: Settings) -> None:
        self._console = settings.console
        self._socket = self._local_socket(settings)
        self.users = Users(settings.console.users)
        self._passwords = Passwords(self.users)
        self._brake = Brake(time.monotonic)
        self._turns = Turns()
        self.sessions = Sessions(
            time.monotonic,
            idle_s=settings.console.idle_timeout_s,
            age_s=settings.console.login_age_s,
        )
        self._link: Link | None = None

    @staticmethod
    def _local_socket(settings: Settings) -> Path | None:
        """Return the control socket at which tokens are tried; None: all hosts are elsewhere."""
        for host in settings.console.hosts:
            if "://" not in host.where:
                return Path(host.where) if host.where else settings.control.socket
        return None

    def make_link(self, name: str) -> str:
        """Return the key of a link that logs the user of this process in, once."""
        self._link = Link(Identity(name, Role.ADMINISTRATOR, is_own=True), time.monotonic)
        return self._link.key

    async def session_of(self, key: str, peer: Peer) -> Session | None:
        """Return the session of a cookie.  Raises BadUsers, NotConnected."""
        session = self.sessions.find(key)
        if session is None:
            return None
        # Browsers send cookies to all ports of a host, also to that of a page of another user.
        if session.user is not None and session.user != _user_of(peer):
            log.warning("console_cookie_refused", name=session.identity.name)
            return None
        identity = session.identity
        if identity.token:
            is_current = await self._has_token(session)
        else:
            is_current = self._passwords.is_current(identity)
        if not is_current:
            self.sessions.end(session)  # the user was removed, or has another role
            return None
        return session

    async def _has_token(self, session: Session) -> bool:
        """Return whether the token of a session is valid, and has the scopes that it had.

        The queue manager checks it for each request to itself, and not for the pages of the
        console: settings, jobs and reports.  Raises NotConnected if it has not answered for long.
        """
        now = time.monotonic()
        if now < session.checked_at + TOKEN_AGAIN_S:
            return True
        checked_at, session.checked_at = session.checked_at, now  # other requests go on
        try:
            found = await self._by_token(session.identity.token)
        except Forbidden as error:
            session.checked_at = checked_at
            if now > checked_at + TOKEN_UNCHECKED_S:
                raise NotConnected(
                    str(error), "look at the queue manager's log", code="daemon_not_answering"
                ) from error
            return True
        return found == session.identity

    def by_link(self, key: str, peer: Peer) -> Session | None:
        """Return a new session for the printed link, or None."""
        identity = self._link.use(key) if self._link is not None else None
        if identity is None:
            log.warning("console_login_refused", way="link")
            return None
        return self._begin(identity, "link", peer)

    async def log_in(self, peer: Peer, name: str, password: str, token: str) -> Session:
        """Return a new session.  Raises Forbidden, BadUsers."""
        name = name.strip()[: NAME_CHARACTERS_MAX + 1]
        client, is_user = client_of(peer.address, peer.there, peer.here)
        # A user of this computer has one place in each line, and cannot fill that of a name.
        line = f"name {name}" if name and not is_user else f"token of {client}"
        async with self._turns.of(client) as is_first, self._turns.of(line) as is_second:
            if not (is_first and is_second):
                raise Forbidden("Too many attempts at once: try again in some seconds.")
            return await self._try(peer, client, name, password, token, is_user=is_user)

    async def _try(
        self, peer: Peer, client: str, name: str, password: str, token: str, *, is_user: bool
    ) -> Session:
        # A login under another name does not end the waits for this one.
        own = [client, *([f"{client} as {name}"] if name else [])]
        # Waits for a name hold back guesses from many addresses.  They do not concern a client that
        # has logged in with it, nor users of this computer, of whom each has waits of its own.
        is_known = is_user or self._brake.knows(own[-1])
        shared = [f"name {name}"] if name and not is_known else []
        keys = [*own, *shared]
        wait_s = self._brake.wait_s(*keys)
        if wait_s > 0:
            raise Forbidden(f"Too many failed attempts: try again in {math.ceil(wait_s)} seconds.")
        if name:
            identity, way = await self._passwords.check(name, password), "password"
        else:
            identity, way = await self._by_token(token.strip()), "token"
        if identity is None:
            # Behind a proxy all users have one address.
            for key in own:
                self._brake.failed(key, WAIT_MAX_S if peer.address else NAME_WAIT_MAX_S)
            for key in shared:
                self._brake.failed(key, NAME_WAIT_MAX_S)
            log.warning("console_login_refused", way=way, name=name, address=peer.address)
            raise Forbidden(WRONG if name else "The token is not known.")
        self._brake.succeeded(*keys, known=own[-1])
        return self._begin(identity, way, peer)

    def _begin(self, identity: Identity, way: str, peer: Peer) -> Session:
        log.info("console_login", name=identity.name, role=identity.role.word, way=way,
                 address=peer.address)  # fmt: skip
        session = self.sessions.begin(identity)
        session.user = _user_of(peer)
        return session

    async def _by_token(self, token: str) -> Identity | None:
        """Return the identity of a token that the queue manager of this computer knows."""
        if not self._console.tokens or not token or len(token) > TOKEN_CHARACTERS_MAX:
            return None
        if self._socket is None:
            raise Forbidden("Tokens are tried at a queue manager of this computer, and none is.")
        try:
            async with asyncio.timeout(TOKEN_S):
                return await _tried(TokenAddress(self._socket, token))
        except (QueueManagerError, LoginRefused):
            return None
        except (NotConnected, TimeoutError) as error:
            raise Forbidden(f"The token cannot be tried: {error}") from error
        except ClientError:
            return None


def _user_of(peer: Peer) -> int | None:
    """Return the user of this computer at the other end of a connection; None: elsewhere."""
    return local_user(peer.there, peer.here) if peer.user is None else peer.user


async def _tried(address: TokenAddress) -> Identity:
    connection = await open_connection(address)
    try:
        verb, arguments = address.greeting()
        hello = await connection.ask(verb, *arguments)
    finally:
        await connection.close()
    scopes = hello.get("scopes", ())
    role = Role.ADMINISTRATOR if "admin" in scopes else Role.VIEWER
    return Identity(f"token {hello.get('token', '')}", role, token=address.token)
