"""Express and recoverable messages in: session acks, duplicates, priorities, expiry, admin acks.

QB 3.1.5.8.1, 3.1.5.8.2, 3.1.5.8.7, 3.1.5.8.10; MQ 2.2.20.4.
"""

from __future__ import annotations

import struct
from dataclasses import replace

import pytest

from tests.process import wire
from tests.process.data_folder import held_disk
from tests.process.harness import Daemon, Hosts, body
from tests.process.peer import Peer
from tests.process.remote import RemoteQueueManager


@pytest.fixture(scope="module")
def shared(shared_hosts: Hosts) -> Daemon:
    daemon = shared_hosts.daemon()
    daemon.create("plain")
    daemon.create("orders", transactional=True)
    return daemon


def barrier(peer: Peer) -> None:
    """Wait until all earlier packets of this session are processed."""
    peer.send(peer.owner.message("nowhere", recoverable=True))
    peer.wait_stored()
    peer.wait_acknowledged()


def test_an_express_message_is_counted_and_delivered(daemon: Daemon, remote: RemoteQueueManager):
    peer = remote.connect(daemon.port)

    peer.send(remote.message("plain", b"express"))
    peer.wait_acknowledged()

    assert peer.session_acks[-1].recoverable_flags == 0
    (message,) = daemon.receive("plain")
    assert body(message) == b"express"
    assert message["delivery"] == "express"
    assert message["transactional"] is False
    assert message["sequence"] is None


def test_a_recoverable_message_is_counted_and_has_its_bit(
    daemon: Daemon, remote: RemoteQueueManager
):
    peer = remote.connect(daemon.port)

    peer.send(remote.message("plain", b"1"))
    peer.send(remote.message("plain", b"2", recoverable=True))
    peer.wait_stored()
    peer.wait_acknowledged()

    with_bits = [ack for ack in peer.session_acks if ack.recoverable_flags]
    assert [(ack.recoverable_acknowledged, ack.recoverable_flags) for ack in with_bits] == [(1, 1)]
    assert daemon.bodies("plain") == [b"1", b"2"]


@pytest.mark.parametrize("window", [1, 2, 63, 64, 0xFFFF])
def test_a_full_window_is_acknowledged_without_long_waiting(
    daemon: Daemon, remote: RemoteQueueManager, window: int
):
    # "At the latest when half of the peer's window is unacknowledged" (digest 12.2): never 10 s.
    peer = remote.connect(daemon.port, window=window)

    peer.send_many([remote.message("plain", b"%d" % number) for number in range(500)], 5)
    peer.wait_acknowledged(400, 5)
    barrier(peer)

    assert [int(text) for text in daemon.bodies("plain")] == list(range(500))


def test_mixed_deliveries_are_acknowledged_each_in_its_own_way(
    daemon: Daemon, remote: RemoteQueueManager
):
    peer = remote.connect(daemon.port)

    peer.send_many(
        [
            remote.message("plain", b"%d" % number, recoverable=number % 3 == 0)
            for number in range(1000)
        ]
    )
    peer.wait_stored()
    barrier(peer)

    assert [int(text) for text in daemon.bodies("plain")] == list(range(1000))


def test_a_piggybacked_session_header_is_taken_with_its_message(
    daemon: Daemon, remote: RemoteQueueManager
):
    peer = remote.connect(daemon.port)

    for number in range(20):
        packet = remote.message("plain", b"%d" % number, recoverable=number % 2 == 0)
        peer.send(packet, piggyback=True)
    peer.wait_stored()
    barrier(peer)

    assert [int(text) for text in daemon.bodies("plain")] == list(range(20))


def test_queues_are_in_order_of_priority_and_then_of_arrival(
    daemon: Daemon, remote: RemoteQueueManager
):
    peer = remote.connect(daemon.port)
    priorities = [3, 0, 7, 3, 5, 7, 0, 3]

    for place, priority in enumerate(priorities):
        text = b"%d/%d" % (priority, place)
        peer.send(remote.message("plain", text, priority=priority, recoverable=bool(place % 2)))
    barrier(peer)

    expected = sorted(enumerate(priorities), key=lambda pair: (-pair[1], pair[0]))
    peeked = [(message["priority"], body(message)) for message in daemon.peek("plain")]
    assert peeked == [(priority, b"%d/%d" % (priority, place)) for place, priority in expected]
    assert daemon.bodies("plain") == [b"%d/%d" % (p, place) for place, p in expected]


def test_a_duplicate_is_acknowledged_and_not_delivered_again(
    daemon: Daemon, remote: RemoteQueueManager
):
    packet = remote.message("plain", b"once", recoverable=True)
    peer = remote.connect(daemon.port)

    for _ in range(3):
        peer.send(packet)
        peer.wait_stored()
        peer.wait_acknowledged()
    second = remote.connect(daemon.port)
    second.send(packet)
    second.wait_stored()

    assert daemon.bodies("plain") == [b"once"]


def test_an_express_duplicate_is_not_delivered_again(daemon: Daemon, remote: RemoteQueueManager):
    packet = remote.message("plain", b"once")
    peer, second = remote.connect(daemon.port), remote.connect(daemon.port)

    peer.send(packet)
    peer.send(packet)
    barrier(peer)
    second.send(packet)
    barrier(second)

    assert daemon.bodies("plain") == [b"once"]


def test_a_duplicate_of_a_message_that_was_consumed_is_not_delivered_again(
    daemon: Daemon, remote: RemoteQueueManager
):
    packet = remote.message("plain", b"once", recoverable=True)
    peer = remote.connect(daemon.port)
    peer.send(packet)
    peer.wait_stored()
    assert daemon.bodies("plain") == [b"once"]

    peer.send(packet)
    peer.wait_stored()

    assert daemon.bodies("plain") == []


def test_the_same_number_of_another_queue_manager_is_another_message(
    daemon: Daemon, remote: RemoteQueueManager
):
    with RemoteQueueManager() as other:
        one, two = remote.connect(daemon.port), other.connect(daemon.port)
        one.send(remote.message("plain", b"one", message_id=42, recoverable=True))
        two.send(other.message("plain", b"two", message_id=42, recoverable=True))
        one.wait_stored()
        two.wait_stored()

    assert sorted(daemon.bodies("plain")) == [b"one", b"two"]


def test_a_duplicate_is_not_acknowledged_before_the_first_copy_is_on_disk(
    daemon: Daemon, remote: RemoteQueueManager
):
    packet = remote.message("plain", b"once", recoverable=True)
    one, two = remote.connect(daemon.port), remote.connect(daemon.port)
    with held_disk(daemon.folder):
        one.send(packet)
        one.read_for(0.5)
        two.send(packet)
        two.read_for(1.0)
        assert one.unstored == {1}
        assert two.unstored == {1}

    one.wait_stored()
    two.wait_stored()
    assert daemon.bodies("plain") == [b"once"]


def test_duplicates_are_known_after_a_kill(hosts: Hosts):
    daemon = hosts.daemon()
    daemon.create("plain")
    remote = hosts.remote()
    packets = [remote.message("plain", b"%d" % n, recoverable=True) for n in range(50)]
    first = remote.connect(daemon.port)
    first.send_many(packets)
    first.wait_stored()

    daemon.restart()
    second = remote.connect(daemon.port)
    second.send_many(packets)
    second.wait_stored()

    assert daemon.bodies("plain") == [b"%d" % n for n in range(50)]


def test_a_kill_takes_the_express_messages_and_leaves_the_recoverable_ones(hosts: Hosts):
    daemon = hosts.daemon()
    daemon.create("plain")
    remote = hosts.remote()
    peer = remote.connect(daemon.port)
    for number in range(10):
        peer.send(remote.message("plain", b"%d" % number, recoverable=number % 2 == 0))
    barrier(peer)
    assert daemon.count("plain") == 10

    daemon.restart()

    assert daemon.bodies("plain") == [b"0", b"2", b"4", b"6", b"8"]


def test_an_expired_message_is_acknowledged_and_not_delivered(
    daemon: Daemon, remote: RemoteQueueManager
):
    peer = remote.connect(daemon.port)
    now = wire.now_s()
    texts = {
        b"expired": {"sent_time": now - 100, "time_to_reach_queue": 50},
        b"forever": {"sent_time": 0, "time_to_reach_queue": wire.FOREVER},
        b"in time": {"sent_time": now - 10, "time_to_reach_queue": 1000},
        b"from the future": {"sent_time": now + 5000, "time_to_reach_queue": 0},
        b"since 1970": {"sent_time": 0, "time_to_reach_queue": 1000},
    }

    for text, times in texts.items():
        peer.send(remote.message("plain", text, recoverable=True, **times))
    peer.wait_stored()
    peer.wait_acknowledged()

    assert daemon.bodies("plain") == [b"forever", b"in time", b"from the future"]


def test_an_undeliverable_message_is_counted_and_the_session_stays(
    daemon: Daemon, remote: RemoteQueueManager
):
    peer = remote.connect(daemon.port)
    lost = [
        remote.message("nosuchqueue", recoverable=True),
        remote.message("orders", recoverable=True),  # a plain message to a transactional queue
        remote.message("plain", recoverable=True, address=b"somebody else's "),
        remote.message("x", recoverable=True, destination=wire.direct("TCP:127.0.0.1\\public")),
        remote.message("x", recoverable=True, destination=wire.direct("HTTP://host/msmq/q")),
        remote.message("x", recoverable=True, destination=wire.direct("nonsense")),
        remote.message("x", recoverable=True, destination=wire.direct("TCP:127.0.0.1\\")),
        remote.message(
            "x", recoverable=True, destination=wire.direct("TCP:127.0.0.1\\SYSTEM$;DEADXACT")
        ),
        remote.message(
            "x", recoverable=True, destination=wire.direct("TCP:127.0.0.1\\private$\\plain;JOURNAL")
        ),
        remote.message(
            "x", recoverable=True, destination=wire.Name(5, guid=b"p" * 16), address=b"a" * 16
        ),
    ]

    for packet in lost:
        peer.send(packet)
    peer.send(remote.message("plain", b"after", recoverable=True))
    peer.wait_stored()

    assert daemon.bodies("plain") == [b"after"]
    assert daemon.bodies("orders") == []
    assert daemon.bodies("DIRECT=OS:.\\SYSTEM$;DEADXACT") == []


def test_a_plain_message_to_a_transactional_queue_causes_a_nack_on_request(
    daemon: Daemon, remote: RemoteQueueManager
):
    # NACK_NOT_TRANSACTIONAL_MSG is none of the insecure five (digest 17.2).
    peer = remote.connect(daemon.port, source="127.0.0.2")
    asked = remote.message(
        "orders",
        b"the body",
        label="the label",
        message_id=55,
        recoverable=True,
        admin=wire.private("admin", "TCP:127.0.0.2"),
        ack_bits=wire.NA,
    )

    peer.send(asked)
    nack = peer.receive()

    assert nack.message_class == 0x800A
    assert nack.correlation == remote.guid + struct.pack("<I", 55)
    assert nack.destination.text.lower() == "tcp:127.0.0.2\\private$\\admin"
    assert nack.body == b"the body"
    assert nack.recoverable
    assert nack.transaction is None
    assert nack.ack_bits == 0
    assert not nack.flags & (wire.JN | wire.JP)
    assert nack.base.time_to_reach_queue == nack.time_to_be_received == wire.FOREVER
    assert nack.source == remote.daemon_guid
    assert nack.response.kind == 7
    assert nack.response.text.lower() == "tcp:127.0.0.1\\private$\\orders"


def test_arrival_is_acknowledged_to_the_admin_queue_on_request(
    daemon: Daemon, remote: RemoteQueueManager
):
    peer = remote.connect(daemon.port, source="127.0.0.2")
    admin = {"admin": wire.private("admin", "TCP:127.0.0.2"), "ack_bits": wire.PA}

    peer.send(remote.message("plain", b"body", message_id=7, **admin))
    ack = peer.receive()

    assert ack.message_class == 2
    assert ack.body == b""
    assert ack.correlation == remote.guid + struct.pack("<I", 7)
    assert not ack.recoverable, "express, as the original was (digest 17.3)"
    assert daemon.bodies("plain") == [b"body"]


@pytest.mark.parametrize("kind", [2, 6])
def test_an_admin_queue_of_our_queue_manager_is_reached_over_its_live_session(
    daemon: Daemon, remote: RemoteQueueManager, kind: int
):
    # AQ 2: private queue of SourceQueueManager; AQ 6: of the queue manager that it names.
    peer = remote.connect(daemon.port)
    admin = wire.Name(kind, guid=remote.guid if kind == 6 else b"", number=99)

    peer.send(remote.message("plain", b"body", message_id=8, admin=admin, ack_bits=wire.PA))
    ack = peer.receive()

    assert ack.message_class == 2
    assert (ack.destination.kind, ack.destination.number) == (3, 99)
    assert ack.address == remote.guid
    assert ack.correlation == remote.guid + struct.pack("<I", 8)
    assert daemon.bodies("plain") == [b"body"]


def test_an_expired_message_causes_a_nack_on_request(daemon: Daemon, remote: RemoteQueueManager):
    peer = remote.connect(daemon.port, source="127.0.0.2")

    peer.send(
        remote.message(
            "plain",
            sent_time=wire.now_s() - 100,
            time_to_reach_queue=50,
            admin=wire.private("admin", "TCP:127.0.0.2"),
            ack_bits=wire.NA,
        )
    )

    assert peer.receive().message_class == 0x8002


def test_an_unknown_queue_causes_no_nack_unless_insecure_nacks_are_allowed(hosts: Hosts):
    # QB 3.1.7.15, SendInsecureNacks; digest 17.2.
    daemon, remote = hosts.daemon(), hosts.remote()
    asked = {"admin": wire.private("admin", "TCP:127.0.0.2"), "ack_bits": wire.NA}
    peer = remote.connect(daemon.port, source="127.0.0.2")
    peer.send(remote.message("nowhere", **asked))
    peer.send(remote.message("nowhere", recoverable=True))
    peer.wait_stored()
    peer.read_for(0.5)
    assert peer.inbox == []

    daemon.kill()
    daemon.configure({"delivery": {"insecure_nacks": True}})
    daemon.start()
    peer = remote.connect(daemon.port, source="127.0.0.2")
    peer.send(remote.message("nowhere", **asked))

    assert peer.receive().message_class == 0x8000


def test_no_acknowledgment_is_sent_without_a_request(daemon: Daemon, remote: RemoteQueueManager):
    peer = remote.connect(daemon.port, source="127.0.0.2")
    admin = wire.private("admin", "TCP:127.0.0.2")

    peer.send(remote.message("plain", b"1", admin=admin, ack_bits=wire.NA))
    peer.send(remote.message("orders", b"2", admin=admin, ack_bits=wire.PA))
    peer.send(remote.message("orders", b"3", ack_bits=wire.NA))
    barrier(peer)
    peer.read_for(0.5)

    assert peer.inbox == []
    assert daemon.bodies("plain") == [b"1"]


def test_nothing_recoverable_is_acknowledged_while_the_disk_is_held_up(
    daemon: Daemon, remote: RemoteQueueManager
):
    peer = remote.connect(daemon.port)
    with held_disk(daemon.folder):
        for number in range(40):
            peer.send_now(remote.message("plain", b"%d" % number, recoverable=True))
        peer.read_for(1.5)
        assert len(peer.unstored) == 40
        assert daemon.alive

    peer.wait_stored()
    assert [int(text) for text in daemon.bodies("plain")] == list(range(40))


def test_a_packet_with_every_byte_of_padding_set_is_the_same_message(
    daemon: Daemon, remote: RemoteQueueManager
):
    peer = remote.connect(daemon.port)
    packet = bytearray(remote.message("plain", b"x", recoverable=True))
    assert packet[-3:] == bytes(3)
    packet[-3:] = b"\xcc\xcc\xcc"
    (count,) = struct.unpack_from("<H", packet, 64)
    start = 66 + count
    packet[start : start + -start % 4] = b"\xcc" * (-start % 4)
    packet[1] = 0xC0

    peer.send(bytes(packet))
    peer.wait_stored()

    assert daemon.bodies("plain") == [b"x"]


def test_the_window_of_a_session_header_may_change_all_the_time(
    daemon: Daemon, remote: RemoteQueueManager
):
    peer = remote.connect(daemon.port)

    for window in (1, 0xFFFF, 2, 64, 1):
        header = replace(peer._next_header(), window=window)
        peer.connection.send(wire.session_ack(header))
        peer.send(remote.message("plain", b"%d" % window, recoverable=True))
        peer.wait_stored()

    assert len(daemon.bodies("plain")) == 5
