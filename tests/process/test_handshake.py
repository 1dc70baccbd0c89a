"""The handshake: answers, echoed fields, and errors that close it (QB 3.1.5.3, 3.1.5.4)."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator

import pytest

from tests.process import wire
from tests.process.connection import Connection
from tests.process.harness import Daemon, Hosts
from tests.process.peer import Peer
from tests.process.remote import RemoteQueueManager, check_establish_response


@pytest.fixture(scope="module")
def shared(shared_hosts: Hosts) -> Daemon:
    daemon = shared_hosts.daemon()
    daemon.create("plain")
    return daemon


@pytest.fixture
def connection(daemon: Daemon, remote: RemoteQueueManager) -> Connection:
    return remote.adopt(Connection.open(daemon.port))


@pytest.fixture
def bystander(daemon: Daemon) -> Iterator[Peer]:
    """Yield an unrelated session, which must keep delivering."""
    with RemoteQueueManager() as other:
        peer = other.connect(daemon.port)
        peer.send(other.message("plain", b"before", recoverable=True))
        peer.wait_stored()
        yield peer
        peer.send(other.message("plain", b"after", recoverable=True))
        peer.wait_stored()
    assert daemon.alive
    assert daemon.bodies("plain") == [b"before", b"after"]


def established(connection: Connection, remote: RemoteQueueManager) -> wire.Establish:
    connection.send(wire.establish(client=remote.guid))
    answer = wire.parse(connection.frame())
    assert isinstance(answer, wire.Establish)
    assert not answer.refused
    return answer


def test_a_session_opens_and_the_answer_names_the_queue_manager(
    daemon: Daemon, remote: RemoteQueueManager
):
    remote.connect(daemon.port)

    (status,) = daemon.json("status")
    data = remote.daemon_guid
    assert data is not None
    text = "-".join(
        (
            data[3::-1].hex(),
            data[5:3:-1].hex(),
            data[7:5:-1].hex(),
            data[8:10].hex(),
            data[10:].hex(),
        )
    )
    assert status["queue_manager"] == text


def test_the_parameters_are_echoed_unchanged(daemon: Daemon, remote: RemoteQueueManager):
    peer = remote.connect(
        daemon.port, recoverable_ack_timeout_ms=1496, ack_timeout_ms=120_000, window=17
    )

    assert peer.remote_window == 64


@pytest.mark.parametrize(
    ("recoverable_ms", "ack_ms", "window"),
    [(0, 0, 0), (0xFFFFFFFF, 0xFFFFFFFF, 0xFFFF), (499, 19_999, 1), (120_001, 120_001, 64)],
)
def test_parameters_out_of_range_are_echoed_and_the_session_works(
    daemon: Daemon, remote: RemoteQueueManager, recoverable_ms: int, ack_ms: int, window: int
):
    peer = remote.connect(
        daemon.port,
        recoverable_ack_timeout_ms=recoverable_ms,
        ack_timeout_ms=ack_ms,
        window=window,
    )

    peer.send(remote.message("plain", b"x", recoverable=True))
    peer.wait_stored()
    assert daemon.bodies("plain") == [b"x"]


def test_the_own_server_guid_is_accepted(daemon: Daemon, remote: RemoteQueueManager):
    first = remote.connect(daemon.port)
    first.close()
    assert remote.daemon_guid is not None

    remote.connect(daemon.port, server=remote.daemon_guid)


def test_a_foreign_server_guid_is_answered_with_a_refusal_and_then_closed(
    daemon: Daemon, connection: Connection, remote: RemoteQueueManager, bystander: Peer
):
    connection.send(wire.establish(client=remote.guid, server=os.urandom(16), timestamp=77))
    data = connection.frame()
    answer = wire.parse(data)

    assert isinstance(answer, wire.Establish)
    assert answer.refused
    assert len(data) == 572
    check_establish_response(answer, client=remote.guid, timestamp=77, system=0x0310)
    assert connection.expect_closed() == []


def test_a_refused_session_carries_no_message(
    daemon: Daemon, connection: Connection, remote: RemoteQueueManager, bystander: Peer
):
    connection.send(wire.establish(client=remote.guid, server=os.urandom(16)))
    connection.send_all_it_takes(wire.parameters())
    connection.send_all_it_takes(remote.message("plain", b"intruder"))

    said = [wire.parse(data) for data in connection.expect_closed()]
    # The bystander's own check sees the content of the queue.
    assert all(isinstance(packet, wire.Establish) and packet.refused for packet in said)


def test_the_question_of_an_internet_scanner_is_answered(connection: Connection, bystander: Peer):
    # Frame 3 of QB 4.1.3 with zero padding, for an unknown ServerGuid.
    head = bytes.fromhex("10c00b004c494f523c020000ffffffff00000200")
    guids = bytes(range(16)) + bytes(range(16, 32))
    connection.send(head + guids + bytes.fromhex("4ecade1d10030000") + bytes(512))

    answer = wire.parse(connection.frame())

    assert isinstance(answer, wire.Establish)
    assert answer.refused
    check_establish_response(answer, client=bytes(range(16)), timestamp=0x1DDECA4E, system=0x0310)


@pytest.mark.parametrize("system", [0x0310, 0x0210, 0x0010, 0x0110, 0xFF10])
def test_the_ping_bit_of_the_request_is_repeated(
    connection: Connection, remote: RemoteQueueManager, system: int
):
    connection.send(
        wire.establish(client=remote.guid, timestamp=0xFFFFFFFF, operating_system=system)
    )

    answer = wire.parse(connection.frame())

    assert isinstance(answer, wire.Establish)
    assert not answer.refused
    check_establish_response(answer, client=remote.guid, timestamp=0xFFFFFFFF, system=system)


def test_reserved_fields_and_padding_of_a_request_are_ignored(
    daemon: Daemon, connection: Connection, remote: RemoteQueueManager
):
    request = bytearray(
        wire.establish(client=remote.guid, padding=os.urandom(512), operating_system=0xFF55)
    )
    request[1] = 0xCD  # BaseHeader.Reserved
    request[2:4] = struct.pack("<H", 0xFEC0 | wire.IN | 7)  # its reserved bits, another priority
    request[12:16] = bytes(4)  # TimeToReachQueue
    request[16:18] = b"\xff\xff"  # InternalHeader.Reserved
    request[18:20] = struct.pack("<H", 0xFFE0 | wire.ESTABLISH)
    request[58:60] = b"\xff\xff"  # EstablishConnectionHeader.Reserved
    connection.send(bytes(request))
    assert isinstance(wire.parse(connection.frame()), wire.Establish)
    proposal = bytearray(wire.parameters())
    proposal[18:20] = struct.pack("<H", 0xFFE0 | wire.PARAMETERS)
    proposal[28:30] = b"\xff\xff"

    connection.send(bytes(proposal))

    assert wire.parse(connection.frame()) == wire.Parameters(500, 20_000, 64)


def test_messages_may_follow_the_parameters_in_one_segment(
    daemon: Daemon, connection: Connection, remote: RemoteQueueManager
):
    established(connection, remote)

    connection.send(wire.parameters() + remote.message("plain", b"quick", recoverable=True))
    assert isinstance(wire.parse(connection.frame()), wire.Parameters)
    peer = Peer(remote, connection, own_window=64, remote_window=64)
    peer.sent = peer.recoverable_sent = 1
    peer.unstored.add(1)
    peer.wait_stored()

    assert daemon.bodies("plain") == [b"quick"]


def test_a_complete_session_in_one_segment_works(
    daemon: Daemon, connection: Connection, remote: RemoteQueueManager
):
    connection.send(
        wire.establish(client=remote.guid)
        + wire.parameters()
        + remote.message("plain", b"all at once", recoverable=True)
    )
    assert isinstance(wire.parse(connection.frame()), wire.Establish)
    assert isinstance(wire.parse(connection.frame()), wire.Parameters)
    ack = wire.parse(connection.frame())

    assert isinstance(ack, wire.Session)
    assert ack.acknowledged == 1
    daemon.wait_for("plain", 1)
    assert daemon.bodies("plain") == [b"all at once"]


def test_a_sender_of_one_byte_at_a_time_is_understood(
    daemon: Daemon, connection: Connection, remote: RemoteQueueManager
):
    for byte in wire.establish(client=remote.guid):
        connection.send(bytes([byte]))
    assert isinstance(wire.parse(connection.frame()), wire.Establish)
    for byte in wire.parameters():
        connection.send(bytes([byte]))
    assert isinstance(wire.parse(connection.frame()), wire.Parameters)
    peer = Peer(remote, connection, own_window=64, remote_window=64)
    for text in (b"slow", b"slower"):
        packet = remote.message("plain", text, recoverable=True)
        peer.count(packet)
        for byte in packet:
            connection.send(bytes([byte]))
        peer.wait_stored()

    assert daemon.bodies("plain") == [b"slow", b"slower"]


def _establish(remote: RemoteQueueManager) -> bytes:
    return wire.establish(client=remote.guid)


def _parameters(remote: RemoteQueueManager) -> bytes:
    return wire.parameters()


def _session_ack(remote: RemoteQueueManager) -> bytes:
    return wire.session_ack(wire.Session())


def _user_message(remote: RemoteQueueManager) -> bytes:
    return remote.message("plain", b"too early")


def _order_ack(remote: RemoteQueueManager) -> bytes:
    return wire.order_ack(source=remote.guid, message_id=1, sequence_id=1 << 32 | 1, number=1)


Maker = Callable[[RemoteQueueManager], bytes]


@pytest.mark.parametrize("maker", [_parameters, _session_ack, _user_message, _order_ack])
def test_anything_but_ec_before_ec_closes_only_that_connection(
    connection: Connection, remote: RemoteQueueManager, bystander: Peer, maker: Maker
):
    connection.send(maker(remote))

    assert connection.expect_closed() == []


@pytest.mark.parametrize("maker", [_establish, _session_ack, _user_message, _order_ack])
def test_anything_but_cp_after_ec_closes_only_that_connection(
    connection: Connection, remote: RemoteQueueManager, bystander: Peer, maker: Maker
):
    established(connection, remote)

    connection.send(maker(remote))

    assert connection.expect_closed() == []


@pytest.mark.parametrize("maker", [_establish, _parameters])
def test_a_second_handshake_on_an_open_session_closes_only_that_session(
    daemon: Daemon, remote: RemoteQueueManager, bystander: Peer, maker: Maker
):
    peer = remote.connect(daemon.port)

    peer.connection.send(maker(remote))

    peer.expect_closed()


@pytest.mark.parametrize("kind", [0, *range(4, 16)])
def test_an_unknown_packet_type_closes_the_session(
    daemon: Daemon, remote: RemoteQueueManager, kind: int
):
    peer = remote.connect(daemon.port)

    peer.connection.send(wire.internal(kind, bytes(16)))

    peer.expect_closed()
    assert daemon.alive


SIZES = {
    "EC of 568 bytes": wire.internal(wire.ESTABLISH, bytes(548)),
    "EC of 576 bytes": wire.internal(wire.ESTABLISH, bytes(556)),
    "EC of 20 bytes": wire.internal(wire.ESTABLISH, b""),
    "EC of 4 MB": wire.internal(wire.ESTABLISH, bytes(wire.PACKET_BYTES_MAX - 20)),
}


@pytest.mark.parametrize("name", SIZES)
def test_an_ec_of_a_wrong_size_closes_the_connection(
    daemon: Daemon, connection: Connection, bystander: Peer, name: str
):
    connection.send_all_it_takes(SIZES[name])

    assert connection.expect_closed() == []


@pytest.mark.parametrize("extra", [-4, 4, 16])
def test_a_cp_of_a_wrong_size_closes_the_connection(
    daemon: Daemon, connection: Connection, remote: RemoteQueueManager, extra: int
):
    established(connection, remote)
    packet = wire.parameters()[20:] + bytes(16)

    connection.send(wire.internal(wire.PARAMETERS, packet[: 12 + extra]))

    assert connection.expect_closed() == []


@pytest.mark.parametrize("extra", [-4, 4, 16])
def test_a_session_ack_of_a_wrong_size_closes_the_session(
    daemon: Daemon, remote: RemoteQueueManager, extra: int
):
    peer = remote.connect(daemon.port)
    packet = wire.Session().build() + bytes(16)

    peer.connection.send(
        wire.internal(wire.SESSION_ACK, packet[: 16 + extra], flags=wire.IN | wire.SH | 3)
    )

    peer.expect_closed()


BAD_HEADS = {
    "VersionNumber 0x0F": (0, b"\x0f"),
    "VersionNumber 0x11": (0, b"\x11"),
    "no signature": (4, bytes(4)),
    "another case of the signature": (4, b"Lior"),
    "PacketSize over 4 MB": (8, struct.pack("<I", wire.PACKET_BYTES_MAX + 4)),
    "PacketSize of 4 GB": (8, b"\xff\xff\xff\xff"),
    "PacketSize 0": (8, bytes(4)),
    "PacketSize smaller than its header": (8, struct.pack("<I", 16)),
}


@pytest.mark.parametrize("name", BAD_HEADS)
@pytest.mark.parametrize("opened", [False, True], ids=["before EC", "when open"])
def test_a_bad_base_header_closes_at_once_without_waiting_for_the_rest(
    daemon: Daemon, remote: RemoteQueueManager, opened: bool, name: str
):
    at, value = BAD_HEADS[name]
    packet = remote.message("plain") if opened else wire.establish(client=remote.guid)
    head = packet[:at] + value + packet[at + len(value) : 16]
    if opened:
        peer = remote.connect(daemon.port)
        peer.connection.send(head)
        peer.expect_closed()
    else:
        connection = remote.adopt(Connection.open(daemon.port))
        connection.send(head)
        assert connection.expect_closed() == []

    assert daemon.alive


def test_two_sessions_of_one_queue_manager_work_side_by_side(
    daemon: Daemon, remote: RemoteQueueManager
):
    one, two = remote.connect(daemon.port), remote.connect(daemon.port)

    one.send(remote.message("plain", b"1", recoverable=True))
    one.wait_stored()
    two.send(remote.message("plain", b"2", recoverable=True))
    two.wait_stored()

    assert daemon.bodies("plain") == [b"1", b"2"]


def test_a_client_guid_of_nulls_does_no_harm(daemon: Daemon, bystander: Peer):
    with Connection.open(daemon.port) as connection:
        connection.send(wire.establish(client=wire.NULL_GUID))

        connection.half_close()

        connection.expect_closed()
