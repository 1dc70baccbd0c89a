"""Attacks on streams of hosts without a key: sequence ids of Windows hosts can be guessed."""

from __future__ import annotations

import pytest

from protocol.message_class import MessageClass
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
    # Another first message begins a stream of its own: its order ack tells its own position.
    false_peer.send(
        false.transactional("orders", sequence, 1, body=b"false", recoverable=True, message_id=9)
    )
    false_peer.wait_order_ack(sequence, 1)
    false_peer.send(pushed(false, sequence))
    false_peer.wait_order_ack(sequence, 1 << 30)
    peer.send(genuine.transactional("orders", sequence, 2, recoverable=True))
    peer.wait_order_ack(sequence, 2)

    assert daemon.bodies("orders") == [b"1", b"false", b"pushed", b"2"]


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


def first(remote: RemoteQueueManager, sequence: int, number: int, body: bytes) -> bytes:
    """Return the first message of a sequence, with the number in it and the id of its sender."""
    return remote.transactional("orders", sequence, number, 0, body, recoverable=True)


@pytest.mark.parametrize("is_restarted", [False, True], ids=["", "restarted"])
@pytest.mark.parametrize("number", [1, 1 << 30])
@pytest.mark.parametrize("stays", [False, True], ids=["gone", "with a session"])
def test_a_sequence_that_another_address_begins_first_loses_no_message_of_the_host(
    hosts: Hosts, number: int, is_restarted: bool, stays: bool
) -> None:
    daemon, genuine, peer, sequence = begin(hosts)
    false = hosts.remote(genuine.guid)
    false_peer = false.connect(daemon.port, source=ATTACKER)

    false.next_id()
    false_peer.send(first(false, sequence + 1, number, b"false"))
    false_peer.wait_order_ack(sequence + 1, number)
    if is_restarted:
        daemon.restart()
    if stays and is_restarted:
        false.connect(daemon.port, source=ATTACKER)
    if not stays:
        false_peer.close()
        eventually(
            lambda: all(each["address"] != ATTACKER for each in daemon.json("session", "list")),
            "the end of the false session",
        )
    if is_restarted:
        peer = genuine.connect(daemon.port, source=VICTIM)
    peer.send_many([first(genuine, sequence + 1, 1, b"a")])
    peer.send(genuine.transactional("orders", sequence + 1, 2, 1, b"b", recoverable=True))
    peer.wait_order_ack(sequence + 1, 2)
    # The same again, as after a lost acknowledgment: nothing is doubled.
    peer.send(genuine.transactional("orders", sequence + 1, 2, 1, b"b", recoverable=True))
    peer.wait_stored()

    assert daemon.bodies("orders") == [b"1", b"false", b"a", b"b"]


def test_the_first_message_of_a_host_that_has_moved_is_not_doubled(hosts: Hosts) -> None:
    daemon, genuine, peer, sequence = begin(hosts)
    peer.close()
    eventually(lambda: daemon.json("session", "list") == [], "the end of the session")
    message = first(genuine, sequence + 1, 1, b"once")
    elsewhere = genuine.connect(daemon.port, source="127.0.0.4")
    elsewhere.send(message)
    elsewhere.wait_order_ack(sequence + 1, 1)
    elsewhere.close()
    daemon.restart()

    back = genuine.connect(daemon.port, source=VICTIM)
    back.send(message)
    back.wait_stored()

    assert daemon.bodies("orders") == [b"1", b"once"]


def test_positions_that_a_false_message_has_skipped_are_refused_and_not_lost(hosts: Hosts) -> None:
    daemon, genuine, peer, sequence = begin(hosts)
    peer.close()
    eventually(lambda: daemon.json("session", "list") == [], "the end of the session")
    false = hosts.remote(genuine.guid)
    false_peer = false.connect(daemon.port, source=ATTACKER)
    false_peer.send(pushed(false, sequence))
    false_peer.wait_order_ack(sequence, 1 << 30)
    false_peer.close()

    peer = genuine.connect(daemon.port, source=VICTIM)
    peer.send(genuine.transactional("orders", sequence, 2, recoverable=True))
    peer.wait(lambda: bool(peer.final_acks), what="the refusal of its message")

    assert peer.final_acks[0].message_class == MessageClass.NACK_DELETED
    assert daemon.json("status")[0]["two_of_one_identity"]
