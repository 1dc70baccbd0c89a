"""The listening sockets of a server of HTTP, and its certificate."""

from __future__ import annotations

import contextlib
import errno
import socket
import ssl
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from qmd.runtime import server_tls

LOOPBACK = ("127.0.0.1", "::1")


class Place(Protocol):
    """The settings of a section of the configuration that say where a server listens."""

    @property
    def address(self) -> str: ...
    @property
    def port(self) -> int: ...
    @property
    def socket(self) -> Path | None: ...
    @property
    def mode(self) -> int: ...
    @property
    def certificate(self) -> Path | None: ...
    @property
    def key(self) -> Path | None: ...
    @property
    def client_ca(self) -> Path | None: ...


class CannotServe(Exception):
    """A condition of this host or the configuration prevents a server from serving."""

    def __init__(self, text: str, *, code: str, lasting: bool = False) -> None:
        super().__init__(text)
        self.code = code
        self.is_lasting = lasting  # a restart does not help


def tls_context(settings: Place, section: str) -> ssl.SSLContext | None:
    """Return the context of the configured certificate; None: without TLS.  Raises CannotServe."""
    if settings.certificate is None or settings.key is None:
        if settings.certificate or settings.key or settings.client_ca:
            raise CannotServe(
                "certificate and key are needed together, and client_ca needs both: see the section"
                f" [{section}]",
                code="http_tls_files",
                lasting=True,
            )
        if settings.socket is None and settings.address not in LOOPBACK:
            raise CannotServe(
                f"it would be without TLS at {settings.address}: name a certificate and its key in"
                f" the section [{section}], or listen at {' or '.join(LOOPBACK)}",
                code="http_not_secret",
                lasting=True,
            )
        return None
    # A client may have a token instead of a certificate.
    return server_context(
        settings.certificate, settings.key, settings.client_ca, section, verify=ssl.CERT_OPTIONAL
    )


def server_context(
    certificate: Path,
    key: Path,
    client_ca: Path | None,
    section: str,
    *,
    verify: ssl.VerifyMode = ssl.CERT_REQUIRED,
) -> ssl.SSLContext:
    """Return the context of a certificate; with `client_ca`, clients are verified.

    Raises CannotServe.
    """
    try:
        context = server_tls.server_context(certificate, key, client_ca, verify)
    except (OSError, ssl.SSLError) as error:
        raise CannotServe(
            f"the certificate cannot be used: {error}; see the section [{section}]",
            code="http_tls_files",
            lasting=True,
        ) from error
    context.set_alpn_protocols(["http/1.1"])
    return context


def listening(settings: Place, section: str) -> Iterator[socket.socket]:
    """Yield the configured listening sockets.  Raises CannotServe."""
    if settings.socket is not None:
        yield _unix_socket(settings, section)
        return
    yield listening_at(settings.address, settings.port, section)


def listening_at(address: str, port: int, section: str) -> socket.socket:
    """Return a listening socket.  Raises CannotServe."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        return socket.create_server((address, port), family=family)
    except OSError as error:
        code = "port_in_use" if error.errno == errno.EADDRINUSE else "cannot_listen"
        raise CannotServe(
            f"cannot listen at {address} port {port}: {error.strerror or error}; see address and"
            f" port in the section [{section}]",
            code=code,
            lasting=isinstance(error, PermissionError),
        ) from error


def _unix_socket(settings: Place, section: str) -> socket.socket:
    assert settings.socket is not None
    bound = socket.socket(socket.AF_UNIX)
    try:
        remove_socket(settings.socket)
        bound.bind(str(settings.socket))
        settings.socket.chmod(settings.mode)
    except OSError as error:
        bound.close()
        raise CannotServe(
            f"cannot listen at {settings.socket}: {error.strerror or error}; see socket in the"
            f" section [{section}]",
            code="cannot_listen",
            lasting=True,
        ) from error
    return bound


def remove_socket(path: Path) -> None:
    """Remove a socket that an earlier process has left behind, unless it is in use."""
    with contextlib.suppress(FileNotFoundError):
        if not stat.S_ISSOCK(path.stat().st_mode):
            return
        with socket.socket(socket.AF_UNIX) as probe, contextlib.suppress(ConnectionRefusedError):
            probe.settimeout(1.0)
            probe.connect(str(path))
            raise OSError(errno.EADDRINUSE, "another process listens there")
        path.unlink()


def shown(listening: socket.socket, *, is_tls: bool) -> str:
    """Return where a socket listens, for people."""
    if listening.family == socket.AF_UNIX:
        return f"unix:{listening.getsockname()}"
    host, port = listening.getsockname()[:2]
    name = f"[{host}]" if ":" in host else host
    return f"{'https' if is_tls else 'http'}://{name}:{port}"


def is_loopback_name(host: str) -> bool:
    """Return whether the Host header names this computer itself.

    The page of another site can direct its own name to this address, and then read answers.
    """
    name = host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() else host
    return name.lower().strip("[]") in ("localhost", "127.0.0.1", "::1", "")
