"""Slow names: an attack that `test_slow_names.py` runs in namespaces of its own.

    python -m tests.attack.slow_names

In these namespaces /etc/resolv.conf names a server of DNS that never answers, on this computer.
Messages of another host name three hundred computers for acknowledgments, and the configuration
permits all of them.  A message of an application must leave while these names are looked up.
"""

from __future__ import annotations

import socket
import time
from typing import Any

from tests.attack.test_effects import asking
from tests.patience import END_S
from tests.process.harness import Daemon, Hosts
from tests.process.remote import RemoteQueueManager

KNOWN = "known-host"  # in /etc/hosts of the namespace


def look_ups(daemon: Daemon) -> dict[str, int]:
    (status,) = daemon.json("status")
    counts: dict[str, int] = status["consequences"]["look_ups"]
    return counts


def wait_until(condition: Any) -> None:
    deadline = time.monotonic() + END_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def main() -> None:
    hosts = Hosts()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as silent, RemoteQueueManager() as remote:
        silent.bind(("127.0.0.1", 53))
        try:
            attack(hosts, remote)
        finally:
            hosts.close()
    print("attacked")


def attack(hosts: Hosts, remote: RemoteQueueManager) -> None:
    daemon = hosts.daemon(peers={"acknowledge_to": ["*"]}, delivery={"idle_close": "1s"})
    daemon.create("plain")
    peer = remote.connect(daemon.port)
    for packet in range(3):
        names = [f"OS:p{packet}n{name}.example\\private$\\acks" for name in range(100)]
        peer.send(asking(remote, names))
    wait_until(lambda: look_ups(daemon)["peers"] > 0)

    # Names of applications that are slow, too, do not delay each other for long.
    for name in range(20):
        daemon.send(f"DIRECT=OS:slow{name}.example\\private$\\orders", b"waits", "--recoverable")
    wait_until(lambda: look_ups(daemon)["quick"] > 0)

    listener = remote.listen()
    to = f"DIRECT=OS:{KNOWN}:{listener.port}\\private$\\orders"
    daemon.send(to, b"of an application", "--recoverable")
    message = listener.accept(END_S).receive()

    assert message.body == b"of an application"
    counts = look_ups(daemon)
    assert counts["peers"] > 0, counts  # they are still under way


if __name__ == "__main__":
    main()
