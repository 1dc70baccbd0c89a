"""The user of the process at the other end of a TCP connection over loopback."""

from __future__ import annotations

import socket
import sys
from pathlib import Path
from typing import Any

TABLE = Path("/proc/self/net/tcp")
_LOCAL, _REMOTE, _STATE, _USER = 1, 2, 3, 7  # columns, proc(5)
#: Linux states root as the user of a connection in every other state that its process has closed.
_ESTABLISHED = "01"


def user_at_other_end(connected: Any) -> int | None:
    """Return the user that owns the other end of an IPv4 connection; None: it is not known.

    It is not known if that end is not on this computer, or is closed.
    """
    try:
        here, there = connected.getsockname()[:2], connected.getpeername()[:2]
        # Its local address is our remote one.
        wanted = _entry(*there), _entry(*here)
        with TABLE.open() as table:
            for line in table:
                columns = line.split()
                if (columns[_LOCAL], columns[_REMOTE]) == wanted:
                    return int(columns[_USER]) if columns[_STATE] == _ESTABLISHED else None
    except (OSError, ValueError, IndexError):
        return None
    return None


def _entry(host: str, port: int) -> str:
    number = int.from_bytes(socket.inet_aton(host), sys.byteorder)
    return f"{number:08X}:{port:04X}"
