"""Order acks of received sequences: their content, cumulation, repetition, and the disk.

QB 3.1.1.6.2, 3.1.5.8.6; digest 14.
"""

from __future__ import annotations

import pytest

from tests.process import wire
from tests.process.data_folder import held_disk
from tests.process.harness import Daemon, Hosts
from tests.process.remote import RemoteQueueManager

FIRST = 1000 << 32 | 1


@pytest.fixture(scope="module")
def shared(shared_hosts: Hosts) -> Daemon:
    daemon = shared_hosts.daemon()
    daemon.create("orders", "others", transactional=True)
    return daemon


def test_an_order_ack_has_the_specified_fields(daemon: Daemon, remote: RemoteQueueManager):
    peer = remote.connect(daemon.port)

    peer.send(remote.transactional("orders", FIRST, 1))
    peer.wait_order_ack(FIRST, 1)

    # The peer checks its form, address and numbers on arrival.
    (ack,) = peer.order_acks
    assert ack.message_class == wire.ORDER_ACK
    assert ack.order_body() == (FIRST, 1, 0)
    daemon.receive("orders")


def test_order_acks_are_cumulative(daemon: Daemon, remote: RemoteQueueManager):
    peer = remote.connect(daemon.port)

    peer.send_many([remote.transactional("orders", FIRST, number) for number in range(1, 501)])
    peer.wait_order_ack(FIRST, 500)

    assert len(peer.order_acks) <= 500
    assert daemon.bodies("orders") == [b"%d" % number for number in range(1, 501)]


def test_a_duplicate_is_order_acknowledged_again(daemon: Daemon, remote: RemoteQueueManager):
    peer = remote.connect(daemon.port)
    packets = [remote.transactional("orders", FIRST, number) for number in (1, 2, 3)]
    peer.send_many(packets)
    peer.wait_order_ack(FIRST, 3)

    for packet in packets[:2]:
        before = len(peer.order_acks)
        peer.send(packet)
        peer.wait(lambda before=before: len(peer.order_acks) > before, what="the ack again")

    assert peer.order_acks[-1].order_body() == (FIRST, 3, 2)
    assert len(daemon.receive("orders")) == 3


def test_a_rejected_gap_is_order_acknowledged_with_the_current_number(
    daemon: Daemon, remote: RemoteQueueManager
):
    peer = remote.connect(daemon.port)
    peer.send(remote.transactional("orders", FIRST, 1))
    peer.wait_order_ack(FIRST, 1)
    before = len(peer.order_acks)

    peer.send(remote.transactional("orders", FIRST, 5))
    peer.wait(lambda: len(peer.order_acks) > before, what="the ack again")

    assert peer.order_acks[-1].order_body() == (FIRST, 1, 0)
    assert len(daemon.receive("orders")) == 1


def test_an_order_ack_lost_with_its_session_is_repeated_on_the_next(
    daemon: Daemon, remote: RemoteQueueManager
):
    packets = [remote.transactional("orders", FIRST, number) for number in range(1, 11)]
    first = remote.connect(daemon.port)
    for packet in packets:
        first.send(packet)
    first.wait_stored()
    first.connection.reset()

    second = remote.connect(daemon.port)
    second.send_many(packets)
    second.wait_order_ack(FIRST, 10)

    assert len(second.order_acks) >= 1
    assert daemon.bodies("orders") == [b"%d" % number for number in range(1, 11)]


def test_when_nothing_was_accepted_there_is_nothing_to_order_acknowledge(
    daemon: Daemon, remote: RemoteQueueManager
):
    peer = remote.connect(daemon.port)

    peer.send(remote.transactional("orders", FIRST, 2))
    peer.wait_stored()
    # An order ack would have arrived by now: its timer is 500 ms.
    peer.read_for(1.0)

    assert peer.order_acks == []
    assert daemon.bodies("orders") == []


def test_nothing_is_acknowledged_while_the_disk_is_held_up(
    daemon: Daemon, remote: RemoteQueueManager
):
    peer = remote.connect(daemon.port)
    with held_disk(daemon.folder):
        for number in (1, 2, 3):
            peer.send(remote.transactional("orders", FIRST, number))
        peer.read_for(1.5)
        # AckSequenceNumber may run ahead (digest 12.2); a bit or an order ack may not.
        assert peer.unstored == {1, 2, 3}
        assert peer.order_acks == []
        assert daemon.alive

    peer.wait_stored()
    peer.wait_order_ack(FIRST, 3)
    assert daemon.bodies("orders") == [b"1", b"2", b"3"]


def test_a_duplicate_of_what_is_not_yet_on_disk_is_not_acknowledged_either(
    daemon: Daemon, remote: RemoteQueueManager
):
    peer, second = remote.connect(daemon.port), remote.connect(daemon.port)
    packet = remote.transactional("orders", FIRST, 1)
    with held_disk(daemon.folder):
        peer.send(packet)
        second.send(packet)
        second.read_for(1.0)
        peer.read_for(0.5)
        assert peer.unstored == {1}
        assert second.unstored == {1}
        assert peer.order_acks == second.order_acks == []

    peer.wait_stored()
    second.wait_stored()
    assert daemon.bodies("orders") == [b"1"]
