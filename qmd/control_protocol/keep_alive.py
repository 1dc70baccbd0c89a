"""Keep-alive of connections between hosts.

A host that loses its power or its cable says nothing.  Without these options of TCP a message that
its client had taken would be held for ever, and a client would wait for ever for such a daemon.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket

IDLE_S, INTERVAL_S, PROBES = 15, 5, 3
#: A connection ends when the other host has answered nothing for so long.
SILENT_S = IDLE_S + INTERVAL_S * PROBES


def keep_alive(transport: asyncio.BaseTransport) -> None:
    """Let the kernel end the connection of `transport` soon after the other host is gone."""
    connection = transport.get_extra_info("socket")
    if connection is None:
        return  # a simulated one
    with contextlib.suppress(OSError):  # it has ended already
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, IDLE_S)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, INTERVAL_S)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, PROBES)
        # Also while an answer is on its way, which stops the probes.
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 1000 * SILENT_S)
