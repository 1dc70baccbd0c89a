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
from qmd.doors.users import NAME_CHARACTERS_MAX

log = structlog.get_logger()

TOKEN_CHARACTERS_MAX = 200
TOKEN_S = 10.0
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

    def session_of(self, key: str) -> Session | None:
        """Return the session of a cookie.  Raises BadUsers."""
        session = self.sessions.find(key)
        if session is not None and not self._passwords.is_current(session.identity):
            self.sessions.end(session)  # the user was removed, or has another role
            return None
        return session

    def by_link(self, key: str) -> Session | None:
        """Return a new session for the printed link, or None."""
        identity = self._link.use(key) if self._link is not None else None
        if identity is None:
            log.warning("console_login_refused", way="link")
            return None
        return self._begin(identity, "link", "")

    async def log_in(self, peer: str, name: str, password: str, token: str) -> Session:
        """Return a new session.  Raises Forbidden, BadUsers."""
        name = name.strip()[: NAME_CHARACTERS_MAX + 1]
        async with (
            self._turns.of(f"address:{peer}") as is_first,
            self._turns.of(f"name:{name}") as is_second,
        ):
            if not (is_first and is_second):
                raise Forbidden("Too many attempts at once: try again in some seconds.")
            return await self._try(peer, name, password, token)

    async def _try(self, peer: str, name: str, password: str, token: str) -> Session:
        keys = [f"address:{peer}", *([f"name:{name}"] if name else [])]
        wait_s = self._brake.wait_s(*keys)
        if wait_s > 0:
            raise Forbidden(f"Too many failed attempts: try again in {math.ceil(wait_s)} seconds.")
        if name:
            identity, way = await self._passwords.check(name, password), "password"
        else:
            identity, way = await self._by_token(token.strip()), "token"
        if identity is None:
            # Behind a proxy all users have one address.
            self._brake.failed(keys[0], WAIT_MAX_S if peer else NAME_WAIT_MAX_S)
            for key in keys[1:]:
                self._brake.failed(key, NAME_WAIT_MAX_S)
            log.warning("console_login_refused", way=way, name=name, address=peer)
            raise Forbidden(WRONG if name else "The token is not known.")
        self._brake.succeeded(*keys)
        return self._begin(identity, way, peer)

    def _begin(self, identity: Identity, way: str, peer: str) -> Session:
        log.info("console_login", name=identity.name, role=identity.role.word, way=way,
                 address=peer)  # fmt: skip
        return self.sessions.begin(identity)

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
