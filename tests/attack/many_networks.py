"""New connections to the remote port from two networks, in a network namespace of its own.

    unshare --net python -m tests.attack.many_networks FOLDER

One network floods the port from each of its addresses.  Meanwhile each of some clients of another
network connects once, from an address of its own: the program prints how many were accepted.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import subprocess
import sys
import threading
from pathlib import Path

from tests.patience import END_S
from tests.process.harness import Daemon, free_port
from tests.process.remote_daemon import make_certificates

SERVER = "10.9.0.1"
FLOODING = [f"10.1.2.{number}" for number in range(1, 251)]
CLIENTS = [f"10.3.4.{number}" for number in range(1, 21)]
ENOUGH = 3000  # connections of the flood; all hosts together have 400 at once, then 100 a second
THREADS = 4


class Flood:
    """Connections from all addresses of a network, one after the other, without end."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._counts = [0] * THREADS
        self._ends = threading.Event()
        self.is_under_way = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, args=(number,), daemon=True)
            for number in range(THREADS)
        ]

    def __enter__(self) -> Flood:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        for thread in self._threads:
            thread.join(END_S)

    def _run(self, number: int) -> None:
        at = number
        while not self._ends.is_set():
            with contextlib.suppress(OSError), socket.socket() as connection:
                connection.settimeout(END_S)
                connection.bind((FLOODING[at % len(FLOODING)], 0))
                connection.connect((SERVER, self._port))
            at += THREADS
            self._counts[number] += 1
            if sum(self._counts) >= ENOUGH:
                self.is_under_way.set()


def is_accepted(source: str, port: int) -> bool:
    """Return whether a connection from an address reaches the end of its TLS handshake."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    try:
        with (
            socket.create_connection((SERVER, port), END_S, (source, 0)) as plain,
            context.wrap_socket(plain),
        ):
            return True
    except (OSError, ssl.SSLError):
        return False


def main(folder: Path) -> None:
    """Run the daemon, the flood and the clients; print the number of accepted clients."""
    lines = [f"address add {each}/8 dev lo" for each in (SERVER, *FLOODING, *CLIENTS)]
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    subprocess.run(["ip", "-batch", "-"], input="\n".join(lines).encode(), check=True)
    port = free_port()
    remote = {"enabled": True, "address": SERVER, "port": port}
    daemon = Daemon(folder / "qmd", settings={"remote": remote})
    make_certificates(folder / "qmd")
    (folder / "qmd" / "remote-tokens").touch(mode=0o600)
    try:
        daemon.start()
        with Flood(port) as flood:
            assert flood.is_under_way.wait(END_S), "the flood is too slow"
            accepted = [source for source in CLIENTS if is_accepted(source, port)]
        print(len(accepted))
    finally:
        daemon.kill()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
