"""The client at the other end of a connection, as the kernel and TLS state it."""

from __future__ import annotations

import asyncio
import socket
import ssl

from qmd.control_protocol.certificates import certificate_names, expires_at_s
from qmd.control_protocol.peer_credentials import peer_credentials
from qmd.doors.http.exchange import Peer


def peer_of(transport: asyncio.Transport) -> Peer:
    """Return the client at the other end of a connection."""
    connected = transport.get_extra_info("socket")
    if connected is not None and connected.family == socket.AF_UNIX:
        credentials = peer_credentials(connected)
        return Peer("", None if credentials is None else credentials.user)
    name = transport.get_extra_info("peername")
    tls: ssl.SSLObject | None = transport.get_extra_info("ssl_object")
    address = str(name[0]).removeprefix("::ffff:") if name else ""
    own = transport.get_extra_info("sockname")
    ends = (name[:2], own[:2]) if name and own else (None, None)
    return Peer(address, None, _principals(tls) if tls else (), expires_at_s(tls), *ends)


def _principals(tls: ssl.SSLObject) -> tuple[str, ...]:
    """Return the principals of the certificate of a client: its name, or its fingerprint, first.

    The connection was accepted, so the certificate is one of the authorities of `client_ca`.
    """
    certificate = tls.getpeercert(binary_form=True)
    if not certificate:
        return ()
    return tuple(f"cert:{name}" for name in certificate_names(certificate, tls.getpeercert()))
