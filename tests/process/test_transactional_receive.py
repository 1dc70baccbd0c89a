"""Transactional messages in: accepted once and in order, acknowledged when on disk.

QB 3.1.1.5, 3.1.1.6.2, 3.1.5.8.6; the numbers of the cases are those of digest 14.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass

import pytest

from tests.process import wire
from tests.process.connection import Closed
from tests.process.harness import Daemon, Hosts, body
from tests.process.remote import RemoteQueueManager

FIRST = 1000 << 32 | 1
SECOND = 1000 << 32 | 2


@pytest.fixture(scope="module")
def shared(shared_hosts: Hosts) -> Daemon:
    daemon = shared_hosts.daemon()
    daemon.create("orders", "others", transactional=True)
    return daemon


@dataclass(frozen=True)
class Step:
    """One message, and the state of the stream after it: (sequence id, number)."""

    sequence_id: int
    number: int
    previous: int
    accepted: bool


def steps(sequence_id: int, *rows: tuple[int, int, bool]) -> list[Step]:
    return [Step(sequence_id, *row) for row in rows]


YES, NO = True, False
CASES: dict[str, list[Step]] = {
    "in order": steps(FIRST, (1, 0, YES), (2, 1, YES), (3, 2, YES)),
    "a duplicate": steps(FIRST, (1, 0, YES), (2, 1, YES), (2, 1, NO), (1, 0, NO), (3, 2, YES)),
    "a gap until it is filled": steps(FIRST, (1, 0, YES), (3, 2, NO), (2, 1, YES), (3, 2, YES)),
    "a hole left by an expired message": steps(FIRST, (1, 0, YES), (2, 1, YES), (5, 2, YES)),
    "previous smaller than current": steps(
        FIRST, (1, 0, YES), (2, 1, YES), (3, 2, YES), (5, 2, YES), (6, 1, YES)
    ),
    "previous 0 restarts the chain": steps(FIRST, (1, 0, YES), (2, 1, YES), (7, 0, YES)),
    "previous 0 is no way back": steps(FIRST, (1, 0, YES), (7, 0, YES), (7, 0, NO), (5, 0, NO)),
    "the first number is any if previous is 0": steps(FIRST, (9, 0, YES), (10, 9, YES)),
    "the first message needs previous 0": steps(FIRST, (2, 1, NO), (1, 0, YES), (2, 1, YES)),
    "a new sequence": [
        *steps(FIRST, (1, 0, YES), (2, 1, YES)),
        *steps(SECOND, (1, 0, YES), (2, 1, YES)),
    ],
    "a new sequence that starts later": [
        *steps(FIRST, (1, 0, YES)),
        *steps(SECOND, (4, 0, YES), (5, 4, YES)),
    ],
    "a new sequence whose first message is missing": [
        *steps(FIRST, (1, 0, YES)),
        *steps(SECOND, (2, 1, NO)),
        *steps(FIRST, (2, 1, YES)),
        *steps(SECOND, (1, 0, YES), (2, 1, YES)),
    ],
    "an older sequence": [
        *steps(FIRST, (1, 0, YES)),
        *steps(SECOND, (1, 0, YES)),
        *steps(FIRST, (2, 1, NO), (2, 0, NO), (9, 0, NO)),
        *steps(SECOND, (2, 1, YES)),
    ],
    "the time stamp counts more than the ordinal": [
        *steps(1000 << 32 | 0xFFFFFFFF, (1, 0, YES)),
        *steps(1001 << 32 | 1, (1, 0, YES)),
        *steps(1000 << 32 | 0xFFFFFFFF, (2, 1, NO)),
    ],
    "identifiers far ahead of the clock": [
        *steps(1000 << 32 | 1, (1, 0, YES)),
        *steps(0x80000000 << 32 | 1, (1, 0, NO)),
        *steps(0xFFFFFFFF << 32 | 0xFFFFFFFF, (1, 0, NO), (2, 1, NO)),
        *steps(1000 << 32 | 1, (2, 1, YES)),
        *steps(1001 << 32 | 0xFFFFFFFF, (1, 0, YES)),
    ],
    "numbers are unsigned": steps(
        FIRST, (0x7FFFFFFF, 0, YES), (0x80000000, 0x7FFFFFFF, YES), (0xFFFFFFFF, 0x80000000, YES)
    ),
    "previous above current": steps(
        FIRST, (1, 0, YES), (9, 0xFFFFFFFE, NO), (9, 2, NO), (9, 1, YES)
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_the_accept_rule(daemon: Daemon, remote: RemoteQueueManager, name: str):
    peer = remote.connect(daemon.port)
    expected: list[bytes] = []
    state = (0, 0)

    for place, step in enumerate(CASES[name]):
        text = b"%d:%x:%d" % (place, step.sequence_id, step.number)
        peer.send(
            remote.transactional("orders", step.sequence_id, step.number, step.previous, body=text)
        )
        if step.accepted:
            expected.append(text)
            state = step.sequence_id, step.number
    peer.wait_stored()
    peer.wait_order_ack(*state)

    assert daemon.bodies("orders") == expected
    # Only accepted messages were ever acknowledged.
    for sequence_id, number in remote.order_acked.items():
        accepted = [
            step.number for step in CASES[name] if step.accepted and step.sequence_id == sequence_id
        ]
        assert number in accepted


def test_a_message_is_shown_with_its_sent_properties(daemon: Daemon, remote: RemoteQueueManager):
    peer = remote.connect(daemon.port)
    before = wire.now_s()
    packet = remote.transactional(
        "orders",
        FIRST,
        3,
        0,
        body=b"\0\xff body",
        label="Grüße ☃",
        sent_time=before - 50,
        body_type=17,
        application_tag=99,
        correlation=bytes(range(20)),
        message_id=0xFFFFFFFE,
    )

    peer.send(packet)
    peer.wait_order_ack(FIRST, 3)

    (message,) = daemon.receive("orders")
    assert body(message) == b"\0\xff body"
    assert message["label"] == "Grüße ☃"
    assert message["body_type"] == 17
    assert message["transactional"] is True
    assert message["delivery"] in ("recoverable", "transactional")
    assert message["sequence"]["number"] == 3
    assert message["sequence"]["previous"] == 0
    assert message["id"].endswith("\\4294967294")
    assert message["class"] == "normal"
    assert message["source"] == message["id"].split("\\")[0]


def test_streams_of_two_queues_are_independent(daemon: Daemon, remote: RemoteQueueManager):
    peer = remote.connect(daemon.port)
    other = 1000 << 32 | 77
    for number in (1, 2, 3):
        peer.send(remote.transactional("orders", FIRST, number))
        peer.send(remote.transactional("others", other, number))
    # The same identifier to another queue is another stream.
    peer.send(remote.transactional("others", other + 1, 1))
    peer.send(remote.transactional("orders", other + 1, 1))
    peer.wait_stored()

    assert daemon.bodies("orders") == [b"1", b"2", b"3", b"1"]
    assert daemon.bodies("others") == [b"1", b"2", b"3", b"1"]


def test_streams_of_two_queue_managers_are_independent(daemon: Daemon, remote: RemoteQueueManager):
    with RemoteQueueManager() as other:
        one, two = remote.connect(daemon.port), other.connect(daemon.port)
        for number in (1, 2, 3):
            one.send(remote.transactional("orders", FIRST, number, body=b"one %d" % number))
            one.wait_order_ack(FIRST, number)
            two.send(other.transactional("orders", FIRST, number, body=b"two %d" % number))
            two.wait_order_ack(FIRST, number)

    assert daemon.bodies("orders") == [
        b"%s %d" % (name, number) for number in (1, 2, 3) for name in (b"one", b"two")
    ]


def test_every_spelling_of_the_queue_is_the_same_stream(daemon: Daemon, remote: RemoteQueueManager):
    peer = remote.connect(daemon.port)
    spellings = [
        "TCP:127.0.0.1\\private$\\orders",
        "tcp:127.0.0.1\\PRIVATE$\\ORDERS",
        "OS:localhost\\Private$\\Orders",
        "TCP:127.0.0.1\\private$\\orders",
    ]

    for number, spelling in enumerate(spellings, 1):
        name = wire.direct(spelling)
        peer.send(remote.transactional("orders", FIRST, number, destination=name))
    peer.send(remote.transactional("orders", FIRST, 2, destination=wire.direct(spellings[2])))
    peer.wait_order_ack(FIRST, 4)
    peer.wait_stored()

    assert daemon.bodies("orders") == [b"1", b"2", b"3", b"4"]


def test_a_stream_goes_on_over_another_session_while_the_first_still_exists(
    daemon: Daemon, remote: RemoteQueueManager
):
    one, two = remote.connect(daemon.port), remote.connect(daemon.port)

    one.send(remote.transactional("orders", FIRST, 1))
    one.wait_order_ack(FIRST, 1)
    two.send(remote.transactional("orders", FIRST, 1))
    two.send(remote.transactional("orders", FIRST, 2))
    two.wait_order_ack(FIRST, 2)
    one.send(remote.transactional("orders", FIRST, 2))
    one.send(remote.transactional("orders", FIRST, 3))
    one.wait_stored()
    two.wait_stored()

    assert daemon.bodies("orders") == [b"1", b"2", b"3"]


def test_the_same_stream_raced_over_three_sessions_arrives_once_and_in_order(
    daemon: Daemon, remote: RemoteQueueManager
):
    # 300 messages in triplicate, from three sessions at once.
    packets = [remote.transactional("orders", FIRST, number) for number in range(1, 301)]
    peers = [remote.connect(daemon.port) for _ in range(3)]
    errors: list[BaseException] = []

    def work(peer: object) -> None:
        try:
            peer.send_many(packets)  # type: ignore[attr-defined]
            peer.wait_stored()  # type: ignore[attr-defined]
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(peer,)) for peer in peers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert errors == []
    assert daemon.bodies("orders") == [b"%d" % number for number in range(1, 301)]


def test_priority_does_not_reorder_a_stream(daemon: Daemon, remote: RemoteQueueManager):
    peer = remote.connect(daemon.port)
    for number in range(1, 9):
        packet = bytearray(remote.transactional("orders", FIRST, number))
        packet[2] |= number % 8  # PR must be 0 and is ignored
        peer.send(bytes(packet))
    peer.wait_order_ack(FIRST, 8)

    assert daemon.bodies("orders") == [b"%d" % number for number in range(1, 9)]


def test_unused_headers_are_skipped(daemon: Daemon, remote: RemoteQueueManager):
    peer = remote.connect(daemon.port)
    sid = b"\1\5" + bytes(26)
    oddities: list[dict[str, object]] = [
        {"security": wire.security_header(sid)},
        {"security": wire.security_header(sid, flags=0x0001)},  # AI clear, as in frame 7
        {"security": wire.security_header(b"g" * 16, flags=0x82)},
        {"security": wire.security_header(sid, certificate=b"c" * 5, provider=b"\1\0\0\0p\0\0\0")},
        {"debug": wire.debug_header()},
        {"debug": wire.debug_header(b"q" * 16)},
        {"debug": wire.debug_header(b"q" * 16), "extra_base_flags": wire.TR},
        {"soap": wire.soap_header("<h/>", "<body/>")},
        {"multi_queue": wire.multi_queue_header(["TCP:127.0.0.1\\private$\\orders", "OS:b\\q"])},
        {"connector": b"c" * 16},
        {"trailing": bytes.fromhex("0c0000000000000000000000")},
        {"trailing": b"\1\2\3"},
        {"extra_flags": wire.USER_RESERVED & ~(1 << 25)},
        {"extra_base_flags": 0xFEC0},
        {"body_type": 8},
        {"body_type": 0xDEADBEEF},
        {"message_class": 0x0123},
        {"ack_bits": 0xFF},
        {"response": wire.Name(1)},
        {"response": wire.Name(2, number=7)},
        {"response": wire.Name(4, number=7)},
        {"admin": wire.Name(5, guid=b"a" * 16)},
        {"admin": wire.Name(6, guid=b"a" * 16, number=3), "response": wire.Name(5, guid=b"r" * 16)},
        {"label": "l" * 249},
        {"extension": b"e" * 1001},
        {"hops": 29},
        {"time_to_reach_queue": 0, "sent_time": wire.now_s() + 1000},
        {"sent_time": 0},
    ]

    for number, oddity in enumerate(oddities, 1):
        peer.send(remote.transactional("orders", FIRST, number, **oddity))
    peer.wait_order_ack(FIRST, len(oddities))

    assert daemon.bodies("orders") == [b"%d" % number for number in range(1, len(oddities) + 1)]


def test_a_connector_in_the_transaction_header_is_skipped(
    daemon: Daemon, remote: RemoteQueueManager
):
    peer = remote.connect(daemon.port)
    remote.highest_sent[FIRST] = 1
    header = wire.Transaction(0xFF00000D, FIRST, 1, 0, connector=b"c" * 16)

    peer.send(remote.message("orders", b"x", transaction=header))
    peer.wait_order_ack(FIRST, 1)

    assert daemon.bodies("orders") == [b"x"]


def test_an_expired_transactional_message_is_not_accepted_and_moves_nothing(
    daemon: Daemon, remote: RemoteQueueManager
):
    peer = remote.connect(daemon.port)
    old = {"sent_time": wire.now_s() - 100, "time_to_reach_queue": 10}
    peer.send(remote.transactional("orders", FIRST, 1))
    peer.send(remote.transactional("orders", FIRST, 2, **old))
    peer.send(remote.transactional("orders", FIRST, 3, 2))  # rejected: message 2 is missing
    peer.send(
        remote.transactional("orders", FIRST, 3, 1)
    )  # linked around, as the sender expires message 2 as well
    peer.wait_order_ack(FIRST, 3)
    peer.wait_stored()

    assert daemon.bodies("orders") == [b"1", b"3"]


def test_a_message_for_another_queue_manager_is_not_delivered_here(
    daemon: Daemon, remote: RemoteQueueManager
):
    peer = remote.connect(daemon.port)

    peer.send(remote.transactional("orders", FIRST, 1, address=b"somebody else's "))
    peer.wait_acknowledged()
    peer.send(remote.transactional("orders", FIRST, 2, previous=0, body=b"ours"))
    peer.wait_order_ack(FIRST, 2)

    assert daemon.bodies("orders") == [b"ours"]


def test_acknowledged_messages_survive_a_kill(hosts: Hosts):
    daemon = hosts.daemon()
    daemon.create("orders", transactional=True)
    remote = hosts.remote()
    packets = [remote.transactional("orders", FIRST, number) for number in range(1, 3001)]
    first = remote.connect(daemon.port)
    killer = threading.Thread(target=daemon.kill)

    try:
        for number, packet in enumerate(packets, 1):
            first.send(packet)
            if number == 1500:
                killer.start()
        first.wait_order_ack(FIRST, 3000)
    except Closed:
        pass
    killer.join()
    stored = first.recoverable_sent if not first.unstored else min(first.unstored) - 1
    acknowledged = remote.order_acked.get(FIRST, 0)
    daemon.start()
    kept = [int(text) for text in (body(message) for message in daemon.peek("orders"))]

    assert kept == list(range(1, len(kept) + 1)), "in order, nothing twice"
    assert len(kept) >= acknowledged > 0
    assert len(kept) >= stored > 0

    second = remote.connect(daemon.port)
    second.send_many(packets[acknowledged:])
    second.wait_order_ack(FIRST, 3000, 60)
    assert daemon.bodies("orders") == [b"%d" % number for number in range(1, 3001)]


def test_the_state_of_a_stream_survives_kills(hosts: Hosts):
    daemon = hosts.daemon()
    daemon.create("orders", transactional=True)
    remote = hosts.remote()
    for number in range(1, 4):
        peer = remote.connect(daemon.port)
        peer.send(remote.transactional("orders", SECOND, number))
        peer.wait_order_ack(SECOND, number)
        daemon.restart()
    peer = remote.connect(daemon.port)

    peer.send(remote.transactional("orders", SECOND, 3))  # a duplicate
    peer.send(remote.transactional("orders", SECOND, 5))  # a gap
    peer.send(remote.transactional("orders", FIRST, 9, 0))  # an older sequence
    peer.wait_stored()
    before = len(peer.order_acks)
    peer.send(remote.transactional("orders", SECOND, 3))
    peer.wait(lambda: len(peer.order_acks) > before, what="the ack of a duplicate")
    assert peer.order_acks[-1].order_body() == (SECOND, 3, 2)
    peer.send(remote.transactional("orders", SECOND, 4))
    peer.wait_order_ack(SECOND, 4)

    assert daemon.bodies("orders") == [b"1", b"2", b"3", b"4"]


def test_the_state_of_a_stream_survives_that_its_queue_is_emptied(
    daemon: Daemon, remote: RemoteQueueManager
):
    peer = remote.connect(daemon.port)
    peer.send(remote.transactional("orders", FIRST, 1))
    peer.wait_order_ack(FIRST, 1)
    assert daemon.bodies("orders") == [b"1"]

    peer.send(remote.transactional("orders", FIRST, 1))
    peer.send(remote.transactional("orders", FIRST, 2))
    peer.wait_order_ack(FIRST, 2)

    assert daemon.bodies("orders") == [b"2"]


def test_the_session_counters_wrap_after_65536_messages(hosts: Hosts):
    daemon = hosts.daemon()
    daemon.create("orders", transactional=True)
    remote = hosts.remote()
    peer = remote.connect(daemon.port)
    count = 70_000

    peer.send_many([remote.transactional("orders", FIRST, n) for n in range(1, count + 1)], 60)
    peer.wait_stored(60)
    peer.wait_order_ack(FIRST, count, 60)

    assert peer.sent == count
    assert peer.session_acks[-1].acknowledged == count & 0xFFFF
    assert daemon.count("orders") == count
    kept = daemon.cli("receive", "orders", "--all", "--body-only").stdout.split()
    assert kept == [b"%d" % number for number in range(1, count + 1)]
