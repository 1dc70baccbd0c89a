"""Access to LDAP servers: their addresses, our credentials, certificates, and the errors.

No error text contains a password.
"""

from __future__ import annotations

import os
import ssl
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Final

from qmd.directory.ldap.messages import (
    Result,
    ResultCode,
)

PASSWORD_VARIABLE: Final = "QMD_LDAP_PASSWORD"


PASSWORD_BYTES_MAX: Final = 4096


class LdapError(Exception):
    """An operation did not succeed; `server` is as in the configuration."""

    def __init__(self, text: str, *, server: str) -> None:
        super().__init__(text)
        self.server = server


class LdapAway(LdapError):
    """The server is unavailable or silent, closed the connection, or violates the protocol."""


class LdapRejected(LdapError):
    """The server, or its certificate, does not match the configuration: a retry is useless."""


class LdapRefused(LdapError):
    """The server answered an operation with a result other than success."""

    def __init__(self, doing: str, result: Result, *, server: str) -> None:
        self.result = result
        super().__init__(f"{doing}: {describe(result)}", server=server)

    @property
    def result_code(self) -> int:
        return self.result.code


def describe(result: Result) -> str:
    """Return a result for people: its name, its number, the server's text."""
    try:
        name = ResultCode(result.code).name.lower().replace("_", " ")
    except ValueError:
        name = "refused"
    words = f": {result.text[:300]}" if result.text else ""
    return f"{name} (LDAP result {result.code}){words}"


class Security(Enum):
    """Protection of a connection."""

    TLS = "ldaps"  # from the first byte on
    START_TLS = "starttls"  # requested in LDAP
    NONE = "ldap"  # nothing, or the protection of the SASL mechanism


class Mechanism(Enum):
    """Authentication mechanism."""

    SIMPLE = "simple"  # a name and a password
    NEGOTIATE = "negotiate"  # GSS-SPNEGO: Kerberos or NTLM
    EXTERNAL = "external"  # by the certificate of the TLS connection


@dataclass(frozen=True, slots=True)
class Server:
    """Address of an LDAP server."""

    host: str
    port: int
    security: Security

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        scheme = "ldaps" if self.security is Security.TLS else "ldap"
        return f"{scheme}://{host}:{self.port}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """Access to the servers: authentication, certificates, time-outs."""

    mechanism: Mechanism = Mechanism.SIMPLE
    user: str = ""
    password_file: Path | None = None  # None: the variable QMD_LDAP_PASSWORD
    plain_allowed: bool = False  # a password may cross the network readable
    ca_file: Path | None = None  # None: those of the system
    server_name: str = ""  # the required name in the certificate; "": the host of the address
    certificate_file: Path | None = None
    key_file: Path | None = None  # None: it is in the certificate's file
    connect_timeout_s: float = 5.0  # until it is bound, for each server
    timeout_s: float = 10.0  # for each operation


def read_password(access: Access, server: str) -> bytes:
    """Read the password from the file, or else from the environment.

    Raises LdapRejected; no error text contains the password.
    """
    if access.password_file is None:
        password = os.environb.get(PASSWORD_VARIABLE.encode(), b"")
        where = f"the environment variable {PASSWORD_VARIABLE}"
    else:
        where = f"the password file {access.password_file}"
        try:
            with access.password_file.open("rb") as stream:
                if os.fstat(stream.fileno()).st_mode & 0o007:
                    text = f"{where} is accessible to all users of this computer (chmod o=)"
                    raise LdapRejected(text, server=server)
                password = stream.read(PASSWORD_BYTES_MAX + 1)
        except OSError as error:
            text = f"{where} cannot be read: {error.strerror or error}"
            raise LdapRejected(text, server=server) from error
        password = password.removesuffix(b"\n").removesuffix(b"\r")
    if not password:
        # RFC 4513 5.1.2: a server may treat an empty one as an anonymous bind, which succeeds.
        raise LdapRejected(f"{where} holds no password", server=server)
    if len(password) > PASSWORD_BYTES_MAX:
        text = f"{where} holds more than {PASSWORD_BYTES_MAX} bytes"
        raise LdapRejected(text, server=server)
    return password


def tls_context(access: Access, server: str) -> ssl.SSLContext:
    """Return a TLS context that checks certificates and their names.

    The files are read again for each connection.
    """
    try:
        context = ssl.create_default_context(cafile=access.ca_file)
    except OSError as error:
        text = f"the CA file {access.ca_file} cannot be used: {error_text(error)}"
        raise LdapRejected(text, server=server) from error
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if access.certificate_file is not None:
        try:
            context.load_cert_chain(access.certificate_file, access.key_file, password=_no_password)
        except (OSError, ValueError) as error:
            text = f"the certificate {access.certificate_file} cannot be used: {error_text(error)}"
            raise LdapRejected(text, server=server) from error
    return context


def _no_password() -> str:
    raise ValueError("its key has a password; one without is needed")


def error_text(error: Exception) -> str:
    """Return the text of an operating system error, for people."""
    if isinstance(error, ssl.SSLError):
        return error.reason.replace("_", " ").lower() if error.reason else str(error)
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error) or type(error).__name__
