"""Hostile peers: truncated packets, false counts, floods and leaks; other sessions stay served."""

from __future__ import annotations

import contextlib
import socket
import struct

import pytest

from tests.process import wire
from tests.process.bystander import Bystander
from tests.process.connection import Connection
from tests.process.harness import Daemon, Hosts
from tests.process.processes import open_files, resident_bytes
from tests.process.remote import RemoteQueueManager

MB = 1024 * 1024


@pytest.fixture(scope="module")
def shared(shared_hosts: Hosts) -> Daemon:
    daemon = shared_hosts.daemon()
    daemon.create("plain", "side", "victim")
    daemon.create("orders", transactional=True)
    return daemon


def sample(remote: RemoteQueueManager, **properties: object) -> bytes:
    """Return a message with every part that has a length, to the queue `victim`."""
    defaults: dict[str, object] = {
        "body": b"the body of a message",
        "label": "label",
        "extension": b"extension",
        "recoverable": True,
        "admin": wire.private("admin"),
        "ack_bits": wire.NA,
        "response": wire.private("answers"),
        "security": wire.security_header(b"\1" * 28),
        "transaction": wire.Transaction(0x1C, 5 << 32 | 1, 1, 0),
    }
    return remote.message("victim", **{**defaults, **properties})  # type: ignore[arg-type]


def test_a_connection_lost_at_any_offset_of_a_packet_leaves_nothing(
    daemon: Daemon, bystander: Bystander
):
    with RemoteQueueManager() as remote:
        packet = sample(remote)
        for offset in range(1, len(packet), 7):
            peer = remote.connect(daemon.port)
            peer.connection.send(packet[:offset])
            peer.close()

    assert daemon.bodies("victim") == []


def test_a_packet_that_ends_early_at_any_offset_closes_its_session(
    daemon: Daemon, bystander: Bystander
):
    # PacketSize is the number of sent bytes, but they end within a header or the body.
    with RemoteQueueManager() as remote:
        packet = sample(remote)
        end = len(packet.rstrip(b"\0"))
        for size in range(20, end, 5):
            peer = remote.connect(daemon.port)
            peer.connection.send(packet[:8] + struct.pack("<I", size) + packet[12:size])
            peer.expect_closed()
            peer.close()

    assert daemon.bodies("victim") == []


def test_a_handshake_that_ends_at_any_offset_leaves_nothing(daemon: Daemon, bystander: Bystander):
    whole = wire.establish(client=b"c" * 16) + wire.parameters()
    for offset in range(0, len(whole), 13):
        with Connection.open(daemon.port) as connection:
            connection.send(whole[:offset])
            connection.half_close()
            said = [wire.parse(data) for data in connection.expect_closed()]
            assert len(said) <= 1 + (offset == len(whole))


@pytest.mark.parametrize("change", [{"sent": 1}, {"recoverable_sent": 1}, {"sent": 0xFFFF}])
def test_a_session_ack_with_wrong_counts_closes_the_session(
    daemon: Daemon, remote: RemoteQueueManager, change: dict[str, int]
):
    peer = remote.connect(daemon.port)

    peer.session_ack(**change)

    peer.expect_closed()


@pytest.mark.parametrize(
    "change",
    [
        {"acknowledged": 1},
        {"acknowledged": 0x8000},
        {"recoverable_acknowledged": 1, "recoverable_flags": 1},
        {"recoverable_acknowledged": 1, "recoverable_flags": 0xFFFFFFFF},
    ],
)
def test_an_acknowledgment_of_what_was_never_sent_closes_the_session(
    daemon: Daemon, remote: RemoteQueueManager, change: dict[str, int]
):
    peer = remote.connect(daemon.port)

    peer.session_ack(**change)

    peer.expect_closed()


def test_a_flood_of_session_acks_disturbs_no_other_session(daemon: Daemon, bystander: Bystander):
    with RemoteQueueManager() as remote:
        peer = remote.connect(daemon.port)
        flood = wire.session_ack(wire.Session()) * 1000
        for _ in range(15):  # of each, the daemon processes a part in a tenth of the time
            peer.connection.send(flood)
        peer.send(remote.message("plain", b"after the flood", recoverable=True))
        peer.wait_stored()

    assert daemon.bodies("plain") == [b"after the flood"]


def test_a_flood_of_tiny_messages_beyond_the_window_disturbs_no_other_session(
    daemon: Daemon, bystander: Bystander
):
    before = resident_bytes(daemon.pid)
    with RemoteQueueManager() as remote:
        peer = remote.connect(daemon.port)
        for _ in range(10):
            batch = [remote.message("nowhere") for _ in range(100)]
            for packet in batch:
                peer.count(packet)
            peer.connection.send(b"".join(batch))
        peer.wait_acknowledged()

    assert resident_bytes(daemon.pid) - before < 50 * MB


def test_a_peer_that_does_not_read_costs_bounded_memory_and_disturbs_no_other_session(
    daemon: Daemon, bystander: Bystander
):
    before = resident_bytes(daemon.pid)
    with RemoteQueueManager() as remote:
        peer = remote.connect(daemon.port)
        packet = remote.message("plain", b"x" * 1000)
        # Retransmissions of one message: 50 MB in, an ack for each, and the acks are not read.
        peer.connection.sock.settimeout(3)
        sent = 0
        try:
            for _ in range(500):
                peer.connection.sock.sendall(packet * 100)
                sent += 100
        except (TimeoutError, OSError):
            pass
        grown = resident_bytes(daemon.pid) - before
    daemon.receive("plain")

    assert sent > 0
    assert grown < 25 * MB, f"{grown / MB:.0f} MB after {sent} messages"


@pytest.mark.parametrize(
    "junk",
    [
        b"",
        b"\0",
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\xff\xff\xff\xff",
        struct.pack("<I", 5) + b"\xc1\xc1\xc1\xc1\xc1",
        struct.pack("<I", 0) * 100,
        struct.pack("<I", 1_000_000) + b"\x91" * 1_000_000,
        struct.pack("<I", 60 * MB),
    ],
    ids=["nothing", "one byte", "http", "4 GB", "no msgpack", "empty", "deep", "60 MB announced"],
)
def test_junk_on_the_control_socket_disturbs_no_session(
    daemon: Daemon, bystander: Bystander, junk: bytes
):
    (path,) = (path for path in daemon.folder.rglob("*") if path.is_socket())
    before = resident_bytes(daemon.pid)
    with socket.socket(socket.AF_UNIX) as control:
        control.connect(str(path))
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            control.sendall(junk)
        assert daemon.json("status")
    assert resident_bytes(daemon.pid) - before < 30 * MB


def test_connections_that_end_at_any_stage_leak_no_files(daemon: Daemon):
    with RemoteQueueManager() as remote:
        remote.connect(daemon.port).close()
        before = open_files(daemon.pid)
        for number in range(100):
            peer = remote.connect(daemon.port)
            peer.connection.send(sample(remote)[: number * 3])
            if number % 2:
                peer.connection.reset()
            else:
                peer.close()
        # The last connection has been served: the earlier ones were seen before it.
        probe = remote.connect(daemon.port)
        probe.send(remote.message("nowhere", recoverable=True))
        probe.wait_stored()
        after = open_files(daemon.pid)

    assert after <= before + 10
