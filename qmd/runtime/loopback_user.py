"""The user of the process at the other end of a TCP connection over loopback."""

from __future__ import annotations

import ipaddress
import sys
from pathlib import Path
from typing import Any

TABLE = Path("/proc/self/net/tcp")
_TABLE_OF_IPV6 = Path("/proc/self/net/tcp6")
_MAPPED = "::ffff:"  # in front of an address of IPv4, on a socket for both
End = tuple[str, int]  # the address and the port of one end of a connection
_LOCAL, _REMOTE, _STATE, _USER = 1, 2, 3, 7  # columns, proc(5)
#: Linux states root as the user of a connection in every other state that its process has closed.
_ESTABLISHED = "01"


def user_at_other_end(connected: Any) -> int | None:
    """Return the user that owns the other end of a connection; None: it is not known.

    It is not known if that end is not on this computer, or is closed.
    """
    try:
        return user_of_end(connected.getpeername()[:2], connected.getsockname()[:2])
    except (OSError, ValueError):
        return None


def user_of_end(there: End, here: End) -> int | None:
    """Return the user that owns the end `there` of a connection to `here`; None: not known."""
    try:
        # Its local address is our remote one.
        wanted = _entry(*there), _entry(*here)
        is_ipv6 = ":" in there[0].removeprefix(_MAPPED)
        with (_TABLE_OF_IPV6 if is_ipv6 else TABLE).open() as table:
            for line in table:
                columns = line.split()
                if (columns[_LOCAL], columns[_REMOTE]) == wanted:
                    return int(columns[_USER]) if columns[_STATE] == _ESTABLISHED else None
    except (OSError, ValueError, IndexError):
        return None
    return None


def _entry(host: str, port: int) -> str:
    packed = ipaddress.ip_address(host.removeprefix(_MAPPED)).packed
    words = (packed[at : at + 4] for at in range(0, len(packed), 4))
    return f"{''.join(f'{int.from_bytes(each, sys.byteorder):08X}' for each in words)}:{port:04X}"
