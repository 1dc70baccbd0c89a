"""The process at the other end of a Unix socket, as the kernel states it.  unix(7), SO_PEERCRED."""

from __future__ import annotations

import socket
import struct
from typing import NamedTuple

CREDENTIALS = struct.Struct("iII")  # struct ucred: process, user, group
NO_USER = 0xFFFFFFFF


class PeerCredentials(NamedTuple):
    """The ids of a process, its user and its main group, as they were when it connected."""

    process: int
    user: int
    group: int


def peer_credentials(connected: socket.socket) -> PeerCredentials | None:
    """Return the credentials of the program at the other end; None if the kernel has none."""
    try:
        raw = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size)
        found = PeerCredentials._make(CREDENTIALS.unpack(raw))
    except (OSError, struct.error):
        return None
    return None if found.user == NO_USER else found
