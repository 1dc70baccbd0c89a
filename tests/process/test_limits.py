"""Limits: packet sizes, memory, and numbers of sessions and connections."""

from __future__ import annotations

import struct

import pytest

from tests.process import wire
from tests.process.bystander import Bystander
from tests.process.connection import Closed, Connection
from tests.process.data_folder import held_disk
from tests.process.harness import Daemon, Hosts, body, empty_queues
from tests.process.peer import Peer
from tests.process.processes import resident_bytes
from tests.process.remote import RemoteQueueManager

MB = 1024 * 1024


@pytest.fixture(scope="module")
def shared(shared_hosts: Hosts) -> Daemon:
    daemon = shared_hosts.daemon()
    daemon.create("plain", "side", "victim")
    daemon.create("orders", transactional=True)
    return daemon


def test_a_packet_of_exactly_4_mb_is_delivered(daemon: Daemon, remote: RemoteQueueManager):
    empty = len(remote.message("plain"))
    content = b"\xa5" * (wire.PACKET_BYTES_MAX - empty)
    peer = remote.connect(daemon.port)
    packet = remote.message("plain", content, recoverable=True)
    assert len(packet) == wire.PACKET_BYTES_MAX

    peer.send(packet)
    peer.wait_stored()

    (message,) = daemon.receive("plain")
    assert body(message) == content


def test_a_transactional_packet_of_4_mb_is_delivered(daemon: Daemon, remote: RemoteQueueManager):
    sequence = remote.new_sequence()
    empty = len(remote.transactional("orders", sequence, 1, body=b""))
    content = bytes(range(256)) * ((wire.PACKET_BYTES_MAX - empty) // 256)
    peer = remote.connect(daemon.port)

    peer.send(remote.transactional("orders", sequence, 1, body=content))
    peer.wait_order_ack(sequence, 1)

    (message,) = daemon.receive("orders")
    assert body(message) == content


def test_a_packet_over_4_mb_is_refused_before_it_arrives(
    daemon: Daemon, remote: RemoteQueueManager
):
    peer = remote.connect(daemon.port)
    packet = remote.message("plain", bytes(wire.PACKET_BYTES_MAX), recoverable=True)
    assert len(packet) > wire.PACKET_BYTES_MAX

    # Only the header is sent: the daemon must not wait for the announced rest.
    peer.connection.send(packet[:16])

    peer.expect_closed()


def test_announced_but_unsent_megabytes_cost_no_memory(daemon: Daemon, bystander: Bystander):
    before = resident_bytes(daemon.pid)
    with RemoteQueueManager() as remote:
        for _ in range(50):
            peer = remote.connect(daemon.port)
            packet = remote.message("plain", recoverable=True)
            peer.connection.send(
                packet[:8] + struct.pack("<I", wire.PACKET_BYTES_MAX) + packet[12:]
            )
        # An answered session proves that the fifty announcements were read.
        probe = remote.connect(daemon.port)
        probe.send(remote.message("plain", recoverable=True))
        probe.wait_stored()
        grown = resident_bytes(daemon.pid) - before
    daemon.receive("plain")

    assert grown < 50 * MB, f"{grown / MB:.0f} MB for 50 announcements of 4 MB"


def test_200_sessions_at_once_each_deliver(daemon: Daemon, bystander: Bystander):
    remotes = [RemoteQueueManager() for _ in range(200)]
    try:
        peers = [remote.connect(daemon.port) for remote in remotes]
        for number, (remote, peer) in enumerate(zip(remotes, peers, strict=True)):
            peer.send(remote.message("plain", b"%d" % number, recoverable=True))
        for peer in peers:
            peer.wait_stored(30)
    finally:
        for remote in remotes:
            remote.close()

    assert sorted(int(text) for text in daemon.bodies("plain")) == list(range(200))


def test_200_sessions_at_once_each_deliver_a_transactional_stream(daemon: Daemon):
    remotes = [RemoteQueueManager() for _ in range(200)]
    try:
        peers = [remote.connect(daemon.port) for remote in remotes]
        sequences = [remote.new_sequence() for remote in remotes]
        for number in (1, 2, 3):
            for remote, peer, sequence in zip(remotes, peers, sequences, strict=True):
                peer.send(remote.transactional("orders", sequence, number))
        for peer, sequence in zip(peers, sequences, strict=True):
            peer.wait_order_ack(sequence, 3, 30)
    finally:
        for remote in remotes:
            remote.close()

    streams: dict[str, list[bytes]] = {}
    for message in daemon.receive("orders"):
        streams.setdefault(str(message["source"]), []).append(body(message))
    assert len(streams) == 200
    assert all(stream == [b"1", b"2", b"3"] for stream in streams.values())


def test_large_messages_that_wait_for_the_disk_cost_bounded_memory(daemon: Daemon):
    before = resident_bytes(daemon.pid)
    content = bytes(4_000_000)
    with RemoteQueueManager() as remote:
        peer = remote.connect(daemon.port)
        packets = [remote.message("plain", content, recoverable=True) for _ in range(60)]
        waiting = memoryview(b"".join(packets))
        for packet in packets:
            peer.count(packet)
        with held_disk(daemon.folder):
            # Within the window, as fast as the daemon reads; 240 MB are available.
            peer.connection.sock.settimeout(1)
            try:
                while waiting:
                    waiting = waiting[peer.connection.sock.send(waiting[:1_000_000]) :]
            except TimeoutError:
                pass
            grown = resident_bytes(daemon.pid) - before
        peer.connection.send(waiting)
        peer.wait_stored(60)

    assert daemon.count("plain") == 60
    empty_queues(daemon)
    assert grown < 100 * MB, f"{grown / MB:.0f} MB for one session"


def test_half_open_connections_are_bounded_and_a_real_peer_is_still_accepted(hosts: Hosts):
    daemon = hosts.daemon(peers={"handshakes_max": 8})
    daemon.create("plain")
    idle = [hosts.remote().adopt(Connection.open(daemon.port)) for _ in range(40)]
    closed = 0
    for connection in idle:
        try:
            connection.frame(0.2)
        except Closed:
            closed += 1
        except TimeoutError:
            continue
    assert closed >= 32, f"{40 - closed} of 40 half-open connections are kept, 8 are allowed"

    for connection in idle:
        connection.close()
    remote = hosts.remote()
    peer = remote.connect(daemon.port)
    peer.send(remote.message("plain", b"x", recoverable=True))
    peer.wait_stored()


def test_a_handshake_that_is_not_finished_in_time_is_ended(hosts: Hosts):
    daemon = hosts.daemon(peers={"handshake_timeout": "1s"})
    remote = hosts.remote()
    silent = remote.adopt(Connection.open(daemon.port))
    halfway = remote.adopt(Connection.open(daemon.port))
    halfway.send(wire.establish(client=remote.guid))

    assert silent.expect_closed(10) == []
    assert len(halfway.expect_closed(10)) == 1


def test_more_sessions_than_allowed_are_refused(hosts: Hosts):
    daemon = hosts.daemon(peers={"sessions_max": 4, "sessions_per_peer_max": 4})
    daemon.create("plain")
    kept: list[Peer] = []
    remotes = [hosts.remote() for _ in range(8)]
    refused = 0
    for remote in remotes:
        connection = remote.adopt(Connection.open(daemon.port))
        try:
            connection.send(wire.establish(client=remote.guid))
            answer = wire.parse(connection.frame())
        except Closed:
            refused += 1
            continue
        assert isinstance(answer, wire.Establish)
        if answer.refused:
            refused += 1
            continue
        connection.send(wire.parameters())
        wire.parse(connection.frame())
        kept.append(Peer(remote, connection, own_window=64, remote_window=64))

    assert (len(kept), refused) == (4, 4)
    for peer in kept:
        peer.send(peer.owner.message("plain", b"x", recoverable=True))
        peer.wait_stored()
