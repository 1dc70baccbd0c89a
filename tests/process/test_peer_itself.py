"""The independent peer of the tests, against published bytes and against itself."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest

from tests.process import wire
from tests.process.connection import Closed
from tests.process.peer import Peer
from tests.process.remote import Listener, RemoteQueueManager
from tests.process.wire import Violation

# QB 4.1.5 and 4.1.8, and digest 27.
FRAME_5 = bytes.fromhex(
    "10c00b004c494f5220000000ffffffff00000300d8050000c0d4010000004000".replace(" ", "")
)
FRAME_8 = bytes.fromhex(
    "10cd1b004c494f5224000000ffffffff00000100010000000000000000000000" + "40000000"
)


@pytest.fixture
def two() -> Iterator[tuple[RemoteQueueManager, RemoteQueueManager]]:
    with RemoteQueueManager() as left, RemoteQueueManager() as right:
        yield left, right


def sessions(
    left: RemoteQueueManager, right: RemoteQueueManager, **options: int
) -> tuple[Peer, Peer]:
    """Return both ends of one session: left is the initiator."""
    listener = right.listen()
    ends: list[Peer] = []
    thread = threading.Thread(target=lambda: ends.append(listener.accept(**options)))  # type: ignore[arg-type]
    thread.start()
    initiator = left.connect(listener.port)
    thread.join()
    return initiator, ends[0]


def test_it_builds_and_reads_the_published_connection_parameters():
    built = wire.parameters(recoverable_ack_timeout_ms=1496, ack_timeout_ms=120_000, window=64)

    assert built[0:1] + FRAME_5[1:2] + built[2:] == FRAME_5
    assert wire.parse(FRAME_5) == wire.Parameters(1496, 120_000, 64)


def test_it_builds_and_reads_the_published_session_ack():
    header = wire.Session(acknowledged=1)

    assert wire.parse(FRAME_8) == header
    assert wire.session_ack(header)[2:] == FRAME_8[2:]


def test_it_builds_the_smallest_message_of_the_digest():
    packet = wire.message(
        source=b"s" * 16,
        message_id=1,
        destination=wire.direct("TCP:10.0.0.5\\private$\\q"),
        body=b"ABC",
        time_to_reach_queue=345_600,
        sent_time=0x74747474,
    )

    assert len(packet) == 176
    assert packet[:16].hex() == "10000300" + "4c494f52" + "b0000000" + "00460500"
    assert packet[60:66].hex() == "001c2000" + "3000"
    assert packet[-4:] == b"ABC\0"


@pytest.mark.parametrize(
    "properties",
    [
        {},
        {"label": "a label", "body": b"x" * 1001, "recoverable": True},
        {"transaction": wire.Transaction(0x1C, 7 << 32 | 1, 2, 1), "extension": b"ext"},
        {"admin": wire.private("admin"), "ack_bits": 5, "response": wire.private("answers")},
        {"security": wire.security_header(b"\1" * 28), "debug": wire.debug_header(b"q" * 16)},
    ],
)
def test_it_reads_the_packets_that_it_builds(properties):
    packet = wire.message(
        source=b"s" * 16, message_id=9, destination=wire.private("q"), **properties
    )
    message = wire.parse(packet)

    assert isinstance(message, wire.Message)
    assert message.body == properties.get("body", b"")
    assert message.label == properties.get("label", "")
    assert message.transaction == properties.get("transaction")
    assert message.extension == properties.get("extension", b"")
    assert message.ack_bits == properties.get("ack_bits", 0)


def test_a_truncated_packet_is_a_violation_at_every_offset():
    packet = wire.message(
        source=b"s" * 16, message_id=9, destination=wire.private("q"), label="l", body=b"body"
    )

    for size in range(16, len(packet)):
        cut = packet[:8] + size.to_bytes(4, "little") + packet[12:size]
        with pytest.raises(Violation):
            wire.parse(cut)


def test_messages_go_both_ways_and_are_acknowledged(two):
    initiator, acceptor = sessions(*two)

    for number in range(50):
        initiator.send(two[0].message("q", b"%d" % number, recoverable=number % 2 == 0))
    got = acceptor.receive_many(50)
    initiator.wait_stored()
    initiator.wait_acknowledged()
    acceptor.send(two[1].message("q", b"back"), piggyback=True)

    assert [int(message.body) for message in got] == list(range(50))
    assert initiator.receive().body == b"back"


def test_more_than_32_recoverable_messages_are_acknowledged_by_several_headers(two):
    initiator, acceptor = sessions(*two)
    acceptor.auto_ack = False

    initiator.send_many(two[0].message("q", recoverable=True) for _ in range(60))
    acceptor.receive_many(60)
    acceptor.session_ack()
    initiator.wait_stored()

    assert [ack.recoverable_acknowledged for ack in initiator.session_acks] == [1, 33]


def test_an_order_ack_reaches_the_other_end(two):
    initiator, acceptor = sessions(*two)
    sequence = two[0].new_sequence()

    initiator.send(two[0].transactional("q", sequence, 1))
    acceptor.receive()
    acceptor.order_ack(sequence, 1)
    # The acceptor's GUID stands for the daemon's.
    initiator.wait_order_ack(sequence, 1)

    assert len(initiator.order_acks) == 1


def _more_than_the_window(left: Peer, right: Peer, owner: RemoteQueueManager) -> None:
    right.auto_ack = False
    for _ in range(4):
        left.send_now(owner.message("q"))
    right.receive_many(4)


def _a_wrong_count(left: Peer, right: Peer, owner: RemoteQueueManager) -> None:
    left.connection.send(wire.session_ack(wire.Session(sent=1)))
    right.read()


def _an_ack_for_what_was_never_sent(left: Peer, right: Peer, owner: RemoteQueueManager) -> None:
    left.connection.send(
        wire.session_ack(wire.Session(recoverable_acknowledged=1, recoverable_flags=1))
    )
    right.read()


def _a_changed_resend(left: Peer, right: Peer, owner: RemoteQueueManager) -> None:
    left.send(owner.message("q", b"one", message_id=77))
    left.send(owner.message("q", b"two", message_id=77))
    right.receive_many(2)


def _a_number_used_twice(left: Peer, right: Peer, owner: RemoteQueueManager) -> None:
    sequence = owner.new_sequence()
    left.send(owner.transactional("q", sequence, 1))
    left.send(owner.transactional("q", sequence, 1, message_id=owner.next_id()))
    right.receive_many(2)


def _an_order_ack_of_nothing(left: Peer, right: Peer, owner: RemoteQueueManager) -> None:
    left.order_ack(1 << 32 | 1, 1)
    right.read()


@pytest.mark.parametrize(
    "offence",
    [
        _more_than_the_window,
        _a_wrong_count,
        _an_ack_for_what_was_never_sent,
        _a_changed_resend,
        _a_number_used_twice,
        _an_order_ack_of_nothing,
    ],
)
def test_it_detects_offences(two, offence: Callable[[Peer, Peer, RemoteQueueManager], None]):
    left, right = sessions(*two, window=3)

    with pytest.raises(Violation):
        offence(left, right, two[0])


def test_it_detects_that_the_other_end_closed_the_connection(two):
    left, right = sessions(*two)

    right.close()

    with pytest.raises(Closed):
        left.read()


def test_the_16_bit_counters_wrap_on_both_ends(two):
    left, right = sessions(*two)
    for peer in (left, right):
        peer.auto_ack = False
    # Both ends agree that 65,530 messages have passed already.
    left.sent = left.acknowledged = left.recoverable_sent = 65_530
    right.received = right.received_acknowledged = right.recoverable_received = 65_530

    for _ in range(12):
        left.send(two[0].message("q", recoverable=True))
        right.receive()
        right.session_ack()
        left.wait_stored()

    assert left.session_acks[-1].acknowledged == 65_542 & 0xFFFF


def test_a_listener_gives_its_destination_name(two):
    listener = two[0].listen()

    assert isinstance(listener, Listener)
    assert listener.destination("x") == f"DIRECT=TCP:127.0.0.1:{listener.port}\\private$\\x"
