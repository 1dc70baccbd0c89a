"""The Unix socket of the control protocol: its file, and the credentials of its clients."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import stat
import struct
from pathlib import Path
from typing import NamedTuple

_CREDENTIALS = struct.Struct("iII")  # struct ucred: process, user, group
UNKNOWN = 2**32 - 1


class Credentials(NamedTuple):
    """The process at the other end of a connection, according to the kernel (SO_PEERCRED)."""

    process: int
    user: int

    @property
    def shown(self) -> str:
        """The process, for people; "" if it is unknown."""
        if self.user == UNKNOWN:
            return ""
        return f"a connection of process {self.process} of user {self.user}"

    @property
    def is_operator(self) -> bool:
        """Whether it is root, or the user of this daemon."""
        return self.user in (0, os.geteuid())


def credentials(transport: asyncio.BaseTransport) -> Credentials:
    """Return the credentials of a client; those of UNKNOWN if the kernel has none."""
    connected = transport.get_extra_info("socket")
    if connected is None:
        return Credentials(0, UNKNOWN)
    try:
        found = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    except OSError:
        return Credentials(0, UNKNOWN)
    process, user, _ = _CREDENTIALS.unpack(found)
    return Credentials(process, user)


def remove_socket(path: Path) -> None:
    """Remove our socket, or that of a daemon that was killed.

    The lock on the data folder proves that no other daemon uses it.
    """
    with contextlib.suppress(FileNotFoundError):
        if stat.S_ISSOCK(path.stat().st_mode):
            path.unlink()
