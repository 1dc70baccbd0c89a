"""Interface to systemd: readiness, status, watchdog, sockets. See sd_notify(3).

Nothing happens unless the environment variables of systemd are set.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Mapping

LISTEN_FDS_START = 3


class ServiceManager:
    """The service manager that started this process, if any."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._address = environment.get("NOTIFY_SOCKET", "")
        self._environment = environment

    @property
    def watchdog_s(self) -> float | None:
        """The watchdog interval in seconds; None: no watchdog."""
        with contextlib.suppress(ValueError):
            pid = self._environment.get("WATCHDOG_PID")
            if pid is None or int(pid) == os.getpid():
                period_us = int(self._environment.get("WATCHDOG_USEC", "0"))
                return period_us / 1_000_000 if period_us > 0 else None
        return None

    def notify(self, *lines: str) -> None:
        """Send lines such as `READY=1`; a failure is ignored."""
        if not self._address:
            return
        address = self._address
        if address.startswith("@"):
            address = "\0" + address[1:]
        with (
            contextlib.suppress(OSError),
            socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender,
        ):
            sender.connect(address)
            sender.sendall("\n".join(lines).encode())

    def sockets(self) -> list[socket.socket]:
        """Return the listening TCP sockets passed by systemd (socket activation)."""
        with contextlib.suppress(ValueError):
            if int(self._environment.get("LISTEN_PID", "0")) == os.getpid():
                count = int(self._environment.get("LISTEN_FDS", "0"))
                return [socket.socket(fileno=LISTEN_FDS_START + index) for index in range(count)]
        return []
