"""Two messages at one position of a sequence: the second is refused alone, and reported.

QB 3.1.1.5, 3.1.5.8.6: such a sender was cloned or restored from a backup.

"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.process import wire
from tests.process.harness import Daemon, Hosts
from tests.process.remote import RemoteQueueManager

SEQUENCE = 1000 << 32 | 1
NACK_DELETED = 0x8001


@pytest.fixture
def daemon(hosts: Hosts) -> Daemon:
    daemon = hosts.daemon()
    daemon.create("orders", transactional=True)
    return daemon


def stream(daemon: Daemon) -> dict[str, Any]:
    (row,) = [row for row in daemon.json("sequence", "list") if row["direction"] == "incoming"]
    return row


def another(remote: RemoteQueueManager, number: int, body: bytes) -> bytes:
    """Return a message with its own id at the position of another message."""
    return remote.transactional("orders", SEQUENCE, number, body=body, message_id=remote.next_id())


@pytest.mark.parametrize(
    ("position", "restarted"),
    [(3, False), (2, False), (3, True)],  # the disk keeps no ids of earlier messages
    ids=["the last", "an earlier one", "the last before a restart"],
)
def test_another_message_at_a_known_position_is_refused_alone(
    daemon: Daemon, remote: RemoteQueueManager, position: int, restarted: bool
):
    peer = remote.connect(daemon.port)
    genuine = [remote.transactional("orders", SEQUENCE, number) for number in (1, 2, 3)]
    peer.send_many(genuine)
    peer.wait_order_ack(SEQUENCE, 3)
    if restarted:
        daemon.restart()
        peer = remote.connect(daemon.port)

    other = another(remote, position, b"another")
    peer.send(other)
    peer.wait(lambda: len(peer.final_acks) == 1, what="its refusal")
    peer.send_many([*genuine, remote.transactional("orders", SEQUENCE, 4)])
    peer.wait_order_ack(SEQUENCE, 4)
    peer.wait_stored()

    (refusal,) = peer.final_acks
    refused = wire.parse(other)
    assert isinstance(refused, wire.Message)
    assert refusal.message_class == NACK_DELETED
    assert refusal.final_body() == (remote.guid, refused.message_id)
    assert stream(daemon)["contradictions"] == 1
    assert "positions of other messages" in stream(daemon)["explanation"]
    assert daemon.bodies("orders") == [b"1", b"2", b"3", b"4"]
    kinds = [row["kind"] for row in daemon.json("events", "tail", "--kind", "refused")]
    assert kinds == ["refused"]
    assert "two different messages" in daemon.tail(100_000)
    daemon.restart()
    assert stream(daemon)["contradictions"] == 1, "it survives a restart"


@pytest.mark.parametrize("end", [Daemon.kill, Daemon.terminate], ids=["killed", "stopped"])
def test_the_count_of_rejected_messages_survives_a_restart(
    daemon: Daemon, remote: RemoteQueueManager, end: Callable[[Daemon], object]
):
    peer = remote.connect(daemon.port)
    first = remote.transactional("orders", SEQUENCE, 1)
    peer.send(first)
    peer.wait_order_ack(SEQUENCE, 1)
    peer.send_many([first, remote.transactional("orders", SEQUENCE, 5), first])
    peer.wait_stored()
    assert stream(daemon)["rejected"] == 3

    end(daemon)
    daemon.start()

    assert stream(daemon)["rejected"] == 3
    peer = remote.connect(daemon.port)
    peer.send(first)
    peer.wait_stored()
    assert stream(daemon)["rejected"] == 4
    peer.send(remote.transactional("orders", SEQUENCE, 2))
    peer.wait_order_ack(SEQUENCE, 2)
    assert stream(daemon)["rejected"] == 0, "since one was last accepted"


def test_a_stream_begins_with_an_accepted_message(daemon: Daemon, remote: RemoteQueueManager):
    """Any program can state any source: what it sends in vain leaves no row."""
    peer = remote.connect(daemon.port)
    peer.send(remote.transactional("orders", SEQUENCE, 2))
    peer.wait_stored()
    assert daemon.json("sequence", "list") == []

    daemon.restart()

    assert daemon.json("sequence", "list") == []
    peer = remote.connect(daemon.port)
    peer.send(remote.transactional("orders", SEQUENCE, 1))
    peer.wait_order_ack(SEQUENCE, 1)
    assert stream(daemon)["rejected"] == 0
