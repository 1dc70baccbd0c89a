"""`qmd outgoing messages`, with a peer that acknowledges when the test wants it."""

from __future__ import annotations

import pytest

from tests.process.harness import Daemon, Hosts, free_port
from tests.process.outgoing import SLOW, send
from tests.process.remote import RemoteQueueManager

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def shared(shared_hosts: Hosts) -> Daemon:
    return shared_hosts.daemon(delivery=SLOW)


def states(daemon: Daemon, *options: str) -> dict[str, str]:
    """Return the states of the listed messages, by their ids."""
    return {each["id"]: each["state"] for each in daemon.json("outgoing", "messages", *options)}


def test_messages_wait_are_unacknowledged_and_leave(daemon: Daemon, remote: RemoteQueueManager):
    listener = remote.listen()
    destination = listener.destination("q")
    first, second = send(daemon, destination, b"1", b"2")
    peer = listener.accept()
    peer.auto_ack = False
    received = peer.receive_many(2)
    assert states(daemon, destination) == dict.fromkeys((first, second), "unacknowledged")

    assert received[0].transaction is not None
    peer.auto_ack = True
    peer.order_ack(received[0].transaction.sequence_id, 1)
    peer.wait_stored()

    assert states(daemon, destination) == {second: "unacknowledged"}


def test_a_message_is_found_in_the_outgoing_queues_of_all_destinations(daemon: Daemon):
    names = [f"DIRECT=TCP:127.0.0.1:{free_port()}\\private$\\{name}" for name in ("one", "two")]
    wanted = daemon.send(names[1], b"x", "--label", "Invoice 17", "--recoverable")
    daemon.send(names[0], b"x", "--label", "other", "--recoverable")

    (found,) = daemon.json("outgoing", "messages", "--find", "INVOICE 1")

    assert (found["id"], found["destination"]) == (wanted, names[1])
    assert (found["state"], found["delivery"]) == ("waiting", "recoverable")
    assert states(daemon, names[1], "--find", wanted) == {wanted: "waiting"}
    assert states(daemon, "--find", "no such label") == {}
    many = daemon.cli("outgoing", "messages", "--find", wanted.split("\\")[0], "--count", "1")
    assert b"more follow" in many.stderr
