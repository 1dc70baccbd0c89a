"""Attacks on streams of hosts without a key: sequence ids of Windows hosts can be guessed."""

from __future__ import annotations

from tests.attack.test_identity import eventually
from tests.process.harness import Daemon, Hosts
from tests.process.peer import Peer
from tests.process.remote import RemoteQueueManager

VICTIM, ATTACKER = "127.0.0.2", "127.0.0.3"
WRONG = 150  # more ids than are accepted in the name of one source


def begin(hosts: Hosts) -> tuple[Daemon, RemoteQueueManager, Peer, int]:
    """Start a daemon that has accepted the first message of a host without a key."""
    daemon = hosts.daemon()
    daemon.create("orders", transactional=True)
    genuine = hosts.remote()
    peer = genuine.connect(daemon.port, source=VICTIM)
    sequence = genuine.new_sequence()
    peer.send(genuine.transactional("orders", sequence, 1, recoverable=True))
    peer.wait_order_ack(sequence, 1)
    return daemon, genuine, peer, sequence


def pushed(false: RemoteQueueManager, sequence: int, number: int = 1 << 30) -> bytes:
    """Return a message that would push a sequence forward: all that follow were duplicates."""
    return false.transactional(
        "orders", sequence, number, 1, b"pushed", recoverable=True, message_id=1 << 25
    )


def test_a_guessed_sequence_id_does_not_advance_the_stream_of_a_host_with_a_session(
    hosts: Hosts,
) -> None:
    daemon, genuine, peer, sequence = begin(hosts)
    false = hosts.remote(genuine.guid)
    false_peer = false.connect(daemon.port, source=ATTACKER)

    false_peer.send(pushed(false, sequence))
    # A copy of the first message would begin a stream: its order ack would tell the position.
    false_peer.send(false.transactional("orders", sequence, 1, recoverable=True, message_id=9))
    false_peer.wait_stored()
    peer.send(genuine.transactional("orders", sequence, 2, recoverable=True))
    peer.wait_order_ack(sequence, 2)

    assert daemon.bodies("orders") == [b"1", b"2"]
    assert false.order_acked == {}


def test_sequence_ids_cannot_be_tried_without_end_while_a_host_has_no_session(
    hosts: Hosts,
) -> None:
    daemon, genuine, peer, sequence = begin(hosts)
    peer.close()
    false = hosts.remote(genuine.guid)
    false_peer = false.connect(daemon.port, source=ATTACKER)

    false_peer.send_many([pushed(false, sequence - each) for each in range(1, WRONG)])
    false_peer.send(pushed(false, sequence))
    false_peer.wait_stored()
    peer = genuine.connect(daemon.port, source=VICTIM)
    peer.send(genuine.transactional("orders", sequence, 2, recoverable=True))
    peer.wait_order_ack(sequence, 2)

    assert daemon.bodies("orders") == [b"1", b"2"]


def test_a_host_continues_its_sequence_from_another_address(hosts: Hosts) -> None:
    daemon, genuine, peer, sequence = begin(hosts)
    elsewhere = genuine.connect(daemon.port, source="127.0.0.4")
    elsewhere.send(genuine.transactional("orders", sequence, 2, recoverable=True))
    elsewhere.wait_stored()
    assert daemon.count("orders") == 1

    peer.close()  # its former session has ended: what was rejected comes again
    eventually(lambda: len(daemon.json("session", "list")) == 1, "the end of its session")
    elsewhere.send(genuine.transactional("orders", sequence, 2, recoverable=True))
    elsewhere.wait_order_ack(sequence, 2)

    assert daemon.bodies("orders") == [b"1", b"2"]
