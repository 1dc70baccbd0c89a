"""Connect errors: the cause of a failed connection to another queue manager, with its code."""

from __future__ import annotations

import errno
import socket
from typing import NamedTuple

from qmd.catalogue import id_of
from qmd.tls.errors import TlsFailed


class ConnectError(NamedTuple):
    """An error: `code` of `qmd.catalogue`, and `text` for people, with the id of the error."""

    code: str
    text: str


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
    return ConnectError(code, f"{text} ({id_of(code)})")
