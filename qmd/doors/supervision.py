"""Messages of a door to the process that supervises it: sd_notify(3)."""

from __future__ import annotations

import os
import socket


def notify(state: str) -> None:
    """Send a state such as "READY=1" to NOTIFY_SOCKET, if there is one."""
    path = os.environ.get("NOTIFY_SOCKET", "")
    if not path:
        return
    address = "\0" + path[1:] if path.startswith("@") else path
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as connected:
        try:
            connected.sendto(state.encode(), address)
        except OSError:
            return  # the supervisor has ended
