"""A queue manager with a real door for SRMP, which can be killed and restarted."""

from __future__ import annotations

from typing import Any

from tests.process.harness import Daemon, Hosts, free_port
from tests.process.http_door import HttpDoor

QUICK = {"retry_first": "100ms", "retry_max": "300ms"}


class SrmpDoor(HttpDoor):
    """The door of one daemon."""

    name = "srmp"

    def __init__(self, daemon: Daemon, **settings: Any) -> None:
        self.daemon = daemon
        self.port = free_port()
        self.log = daemon.folder.with_name(f"{daemon.folder.name}-srmp.log")
        self.process = None
        self._clients, self._tokens = [], {}
        self.tls_port = free_port()
        self.url = f"http://127.0.0.1:{self.port}/msmq"
        given = {
            "enabled": True,
            "port": self.port,
            "tls_port": self.tls_port,
            "gateway_port": free_port(),
            "names": ["127.0.0.1", "localhost"],
            "receipts_url": f"{self.url}/private$/order_queue$",
            **settings,
        }
        daemon.configure({"srmp": given})

    def format_name(self, queue: str) -> str:
        """Return the format name of a queue of this door's daemon."""
        return f"DIRECT=HTTP://127.0.0.1:{self.port}/msmq\\private$\\{queue}"


def host(hosts: Hosts, **settings: Any) -> SrmpDoor:
    """Start a daemon and its door."""
    daemon = hosts.daemon(start=False, delivery=QUICK)
    door = SrmpDoor(daemon, **settings)
    daemon.start()
    door.start()
    return door
