"""What one who means ill can make the daemon hold: memory and disk have limits, and honest ones go
on beside it."""

from __future__ import annotations

from tests.process import wire
from tests.process.harness import Hosts

MB = 1_000_000


def test_a_message_that_asks_for_a_hundred_acknowledgments_brings_its_body_back_once(hosts: Hosts):
    daemon = hosts.daemon()
    daemon.create("orders", transactional=True)
    remote = hosts.remote()
    admins = [f"TCP:127.0.0.9\\private$\\a{number}" for number in range(100)]
    peer = remote.connect(daemon.port)
    peer.send(
        remote.message(
            "orders",  # which takes none that is not transactional
            b"x" * (3_900_000),
            recoverable=True,
            ack_bits=wire.NA,
            admin=wire.direct(admins[0]),
            multi_queue=wire.multi_queue_header(["OS:.\\private$\\orders"], admins),
        )
    )
    peer.wait_stored()

    (status,) = daemon.json("status")
    shown = daemon.json("outgoing", "list")
    assert status["outgoing_messages"] == len(shown) == 100
    sizes = sorted(queue["bytes"] for queue in shown)
    assert sizes[-1] > 3_900_000
    assert sizes[-2] < 10_000
    assert status["bytes"] < 9 * MB  # with the dead letter
    stored = sum(path.stat().st_size for path in daemon.folder.rglob("queues.db*"))
    assert stored < 20 * MB


def test_acknowledgments_bring_their_bodies_back_as_long_as_those_are_not_large(hosts: Hosts):
    daemon = hosts.daemon()
    daemon.create("orders", transactional=True)
    remote = hosts.remote()
    admins = [f"TCP:127.0.0.9\\private$\\a{number}" for number in range(100)]
    peer = remote.connect(daemon.port)
    header = wire.multi_queue_header(["OS:.\\private$\\orders"], admins)
    message = remote.message(
        "orders",
        b"x" * 40_000,
        recoverable=True,
        ack_bits=wire.NA,
        admin=wire.direct(admins[0]),
        multi_queue=header,
    )
    peer.send(message)
    peer.wait_stored()

    shown = daemon.json("outgoing", "list")
    assert len(shown) == 100
    assert min(queue["bytes"] for queue in shown) > 40_000
