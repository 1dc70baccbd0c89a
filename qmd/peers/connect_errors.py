"""Connect errors: the cause of a failed connection to another queue manager, with its code."""

from __future__ import annotations

import errno
import socket
from typing import NamedTuple

from qmd.catalogue import id_of
from qmd.core.connection_status import ConnectionStatus, hresult
from qmd.tls.errors import TlsFailed


class ConnectError(NamedTuple):
    """An error: `code` of `qmd.catalogue`, and `text` for people, with the id of the error.

    `status` and `error` are those of the connection history, [MS-MQDMPR] 3.1.1.3.
    """

    code: str
    text: str
    status: ConnectionStatus
    error: int


_BY_ERRNO = {
    errno.ECONNREFUSED: (
        "peer_not_listening",
        "the computer answers, but no program listens there",
    ),
    errno.ETIMEDOUT: ("peer_silent", "no answer"),
    errno.ENETUNREACH: ("peer_no_route", "there is no route to that network"),
    errno.EHOSTUNREACH: ("peer_no_route", "there is no route to that computer"),
    errno.ENETDOWN: ("peer_no_route", "the network is down"),
}

#: The codes of Winsock for errors of connect.
_WINSOCK = {
    errno.ECONNREFUSED: 10061,
    errno.ETIMEDOUT: 10060,
    errno.ENETUNREACH: 10051,
    errno.EHOSTUNREACH: 10065,
    errno.ENETDOWN: 10050,
    errno.ECONNRESET: 10054,
}
_STATUS = {
    errno.EMFILE: ConnectionStatus.LOW_RESOURCE,
    errno.ENFILE: ConnectionStatus.LOW_RESOURCE,
    errno.ENOBUFS: ConnectionStatus.LOW_RESOURCE,
    errno.ENOMEM: ConnectionStatus.LOW_RESOURCE,
    errno.EAFNOSUPPORT: ConnectionStatus.TCP_NOT_ENABLED,
    errno.EPROTONOSUPPORT: ConnectionStatus.TCP_NOT_ENABLED,
    errno.EADDRINUSE: ConnectionStatus.SOCKET_BIND_FAILURE,
    errno.EADDRNOTAVAIL: ConnectionStatus.SOCKET_BIND_FAILURE,
    errno.EACCES: ConnectionStatus.SOCKET_CREATE_FAILURE,
    errno.EPERM: ConnectionStatus.SOCKET_CREATE_FAILURE,
}


def explain(error: OSError | TimeoutError | UnicodeError, *, waited_s: float) -> ConnectError:
    """Return the cause of an attempt that ended with `error` after at most `waited_s` seconds."""
    words = str(error) or type(error).__name__
    match error:
        case TlsFailed():
            code, text = "tls_failed", words
        case socket.gaierror():
            code, text = "peer_name_unknown", f"the name is not known ({words})"
        case UnicodeError():  # a name that is not valid in DNS, such as "a..b"
            code, text = "peer_name_unknown", f"that cannot be the name of a computer ({words})"
        case OSError() if error.errno in _BY_ERRNO:
            code, text = _BY_ERRNO[error.errno]
        case TimeoutError():
            code, text = "peer_silent", f"no answer within {waited_s:g} s"
        case _:
            code, text = "peer_unreachable", words
    status = _status(error, code)
    winsock = _WINSOCK.get(getattr(error, "errno", None) or 0, 0)
    return ConnectError(code, f"{text} ({id_of(code)})", status, hresult(status, winsock))


def _status(error: OSError | TimeoutError | UnicodeError, code: str) -> ConnectionStatus:
    """Return the status of a failed attempt with the error `code` of the catalogue."""
    if code == "tls_failed":
        return ConnectionStatus.CERTIFICATE_VALIDATION_FAILURE
    if code == "peer_name_unknown":
        return ConnectionStatus.DNS_FAILURE
    number = getattr(error, "errno", None) or 0
    return _STATUS.get(number, ConnectionStatus.SOCKET_CONNECT_FAILURE)
