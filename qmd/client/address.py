"""Addresses of the daemon: its control socket on this computer, or a remote daemon over TLS."""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlsplit

from qmd.client.errors import NotConnected
from qmd.control_protocol import messages as frames
from qmd.control_protocol.keep_alive import keep_alive

T = TypeVar("T", bound=asyncio.Protocol)

REMOTE_PORT = 1806
TOKEN_VARIABLE, TOKEN_FILE_VARIABLE, CA_VARIABLE = "QMD_TOKEN", "QMD_TOKEN_FILE", "QMD_CA_FILE"
CONNECT_S = 15.0
RESTART_ADVICE = "check whether the daemon runs (qmd serve)"


@dataclass(frozen=True, slots=True)
class SocketAddress:
    """The address of a control socket on this computer."""

    path: Path

    def __str__(self) -> str:
        return str(self.path)

    async def open(self, factory: Callable[[], T]) -> T:
        """Open a connection to the control socket.  Raises NotConnected."""
        loop = asyncio.get_running_loop()
        try:
            _, connection = await loop.create_unix_connection(factory, str(self.path))
        except FileNotFoundError:
            raise NotConnected(
                f"there is no control socket at {self.path}",
                "start the daemon (qmd serve), or name its configuration (--config, QMD_CONFIG)",
                code="no_control_socket",
            ) from None
        except PermissionError:
            raise NotConnected(
                f"the control socket {self.path} may not be used by this user",
                "join the group that owns it, or ask the administrator of the daemon",
                code="control_socket_forbidden",
            ) from None
        except OSError as error:
            raise NotConnected(
                f"the daemon does not answer at {self.path} ({error.strerror or error})",
                RESTART_ADVICE,
                code="daemon_not_answering",
            ) from error
        return connection

    def greeting(self) -> tuple[type[frames.Request], tuple[object, ...]]:
        """Return the first request of a connection: its verb and its arguments."""
        return frames.Hello, (frames.VERSION,)


@dataclass(frozen=True, slots=True, repr=False)
class TokenAddress(SocketAddress):
    """The control socket, used with the rights of a token instead of those of this user.

    Its text and its repr never contain the token.
    """

    token: str

    def greeting(self) -> tuple[type[frames.Request], tuple[object, ...]]:
        return frames.Login, (frames.VERSION, self.token)


@dataclass(frozen=True, slots=True)
class DoorAddress(SocketAddress):
    """The control socket, for a door that acts for a user with these principals."""

    principals: tuple[str, ...]


@dataclass(frozen=True, slots=True, repr=False)
class RemoteAddress:
    """The address of a remote daemon.  Its text and its repr never contain the token."""

    host: str
    port: int
    token: str
    ca_file: Path | None = None
    client_certificate: Path | None = None
    client_key: Path | None = None
    is_plain: bool = False

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"

    __repr__ = __str__

    async def open(self, factory: Callable[[], T]) -> T:
        """Open a connection and check the certificate of the daemon.  Raises NotConnected."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(CONNECT_S):
                transport, connection = await loop.create_connection(
                    factory,
                    self.host,
                    self.port,
                    ssl=None if self.is_plain else self._context(),
                )
            keep_alive(transport)
        except ssl.SSLCertVerificationError as error:
            raise NotConnected(
                f"the certificate of {self} is not trusted: {error.verify_message}",
                "name the authority that signed it (ca_file, --ca-file, QMD_CA_FILE), and use "
                "the host name that the certificate has",
                code="remote_certificate_refused",
            ) from error
        except ssl.SSLError as error:
            raise NotConnected(
                f"the TLS handshake with {self} failed: {error.reason or error}",
                "check the port ([remote] in the configuration of the daemon), and whether the "
                "daemon requires a client certificate",
                code="remote_tls_failed",
            ) from error
        except (OSError, TimeoutError) as error:
            why = "it does not answer" if isinstance(error, TimeoutError) else error.strerror
            raise NotConnected(
                f"{self} cannot be reached ({why or error})",
                "check the host and the port, whether the daemon runs there with [remote] "
                "enabled, and the network between",
                code="remote_unreachable",
            ) from error
        return connection

    def _context(self) -> ssl.SSLContext:
        try:
            context = ssl.create_default_context(cafile=self.ca_file)
            if self.client_certificate is not None:
                context.load_cert_chain(self.client_certificate, self.client_key)
        except (OSError, ssl.SSLError) as error:
            raise NotConnected(
                f"a certificate for {self} cannot be read: {error}",
                "check the files that are named (ca_file, client_certificate, client_key)",
                code="remote_certificate_unreadable",
            ) from error
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        return context

    def greeting(self) -> tuple[type[frames.Request], tuple[object, ...]]:
        return frames.Login, (frames.VERSION, self.token)


Address = SocketAddress | RemoteAddress


def address_of(
    where: str | os.PathLike[str],
    *,
    token_file: str | os.PathLike[str] | None = None,
    ca_file: str | os.PathLike[str] | None = None,
    client_certificate: str | os.PathLike[str] | None = None,
    client_key: str | os.PathLike[str] | None = None,
) -> Address:
    """Parse a socket path or tls://host:port (tcp://host:port: without TLS, loopback only).

    The token is read from `token_file`, or from the file that QMD_TOKEN_FILE names, or from
    QMD_TOKEN.  Raises NotConnected.
    """
    text = os.fspath(where)
    scheme, separator, _ = text.partition("://")
    if not separator:
        return SocketAddress(Path(text))
    try:
        parts = urlsplit(text)
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
    if scheme not in ("tls", "tcp") or not host or parts.username or parts.path not in ("", "/"):
        raise NotConnected(
            f"{scheme}:// is not an address of a queue manager",
            "give the path of a control socket, or tls://host:port",
            code="bad_remote_address",
        )
    if scheme == "tcp" and host not in ("localhost", "127.0.0.1", "::1"):
        raise NotConnected(
            f"a token is not sent to {host} without TLS", "use tls://", code="bad_remote_address"
        )
    ca = ca_file or os.environ.get(CA_VARIABLE)
    return RemoteAddress(
        host,
        port or REMOTE_PORT,
        _token(token_file, host),
        None if not ca else Path(ca),
        None if client_certificate is None else Path(client_certificate),
        None if client_key is None else Path(client_key),
        is_plain=scheme == "tcp",
    )


def _token(token_file: str | os.PathLike[str] | None, host: str) -> str:
    path = token_file or os.environ.get(TOKEN_FILE_VARIABLE)
    if not path and (token := os.environ.get(TOKEN_VARIABLE)):
        return token.strip()
    if not path:
        raise NotConnected(
            f"no token for {host} was given",
            "name a file that contains it (token_file, --token-file, QMD_TOKEN_FILE)",
            code="no_remote_token",
        )
    try:
        return Path(path).read_text(encoding="utf-8-sig").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise NotConnected(
            f"the token file {os.fspath(path)} cannot be read: {error}",
            "check its path and its read permission",
            code="remote_token_unreadable",
        ) from error
