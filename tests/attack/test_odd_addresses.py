"""Administration queues at odd addresses: of this computer itself, of none, and of all."""

from __future__ import annotations

from typing import Any

import pytest

from protocol.identifiers import guid_text
from tests.attack.test_effects import ARRIVED, asking, deliver, start
from tests.process.harness import DEADLETTER, DEADXACT, Daemon, Hosts
from tests.process.processes import open_files
from tests.process.remote import RemoteQueueManager

#: Addresses with and without the daemon's own port, `{port}`.
ODD = [
    *("127.0.0.1", "0.0.0.0", "255.255.255.255", "127.255.255.255", "224.0.0.1", "169.254.1.1"),
    *("[::1]", "[::]", "[::ffff:127.0.0.1]", "[::ffff:0.0.0.0]", "[fe80::1]", "[ff02::1]"),
    *("[64:ff9b::7f00:1]", "127.0.0.2", "127.1.2.3"),
]
QUEUES = ["private$\\side", "SYSTEM$;DEADLETTER", "private$\\side;journal", "private$\\none"]


@pytest.mark.parametrize("sender", ["127.0.0.1", "127.0.0.2"])
def test_acknowledgments_to_odd_addresses_stay_here_and_end(
    hosts: Hosts, remote: RemoteQueueManager, sender: str
) -> None:
    daemon = start(hosts)
    before = open_files(daemon.pid)
    peer = remote.connect(daemon.port, source=sender)
    admins = [
        f"TCP:{address}{port}\\{queue}"
        for address in ODD
        for port in ("", f":{daemon.port}", ":1")
        for queue in QUEUES
    ]
    names = [f"OS:{name}\\private$\\side" for name in (".", "localhost", "LOCALHOST", "0", "127.1")]
    internal = [f"TCP:{each}:{daemon.port}\\private$\\order_queue$" for each in ODD]
    admins += [*names, *internal]

    for start_at in range(0, len(admins), 50):
        deliver(peer, [asking(remote, admins[start_at : start_at + 50])])

    assert open_files(daemon.pid) < before + 40
    side = daemon.peek("side")
    places = {each["address"].rpartition(":")[0] or each["address"] for each in outgoing(daemon)}
    assert places <= {sender, guid_text(remote.guid)}
    daemon.send("plain", b"still there")
    assert daemon.bodies("plain")[-1] == b"still there"
    # An acknowledgment is not acknowledged: there is at most one for each name of the queue.
    assert {each["class_number"] for each in side} <= {ARRIVED}
    assert len(side) <= len(ODD) * 3 + len(names)
    assert daemon.count(DEADLETTER) == daemon.count(DEADXACT) == 0
    assert len(daemon.json("session", "list")) <= 2


def outgoing(daemon: Daemon) -> list[dict[str, Any]]:
    return daemon.json("outgoing", "list")
