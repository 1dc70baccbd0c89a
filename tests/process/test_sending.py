"""What the daemon sends, and how it goes on until it is acknowledged.

The peer is the acceptor here; the daemon connects to it because of `qmd send`.
QB 3.1.5.2.3, 3.1.5.5, 3.1.5.6, 3.1.6.5, 3.1.7.1; digest 15.
"""

from __future__ import annotations

import time

import pytest

from tests.patience import END_S
from tests.process import wire
from tests.process.harness import DEADXACT, Cleaner, Daemon, Hosts
from tests.process.peer import Closed, Listener, RemoteQueueManager

QUICK = {"resend": ["700ms"], "retry_first": "50ms", "retry_max": "200ms"}
SLOW = {"resend": ["1h"], "retry_first": "50ms", "retry_max": "200ms"}
DEFAULT_TIME_TO_REACH_QUEUE_S = 345_600


@pytest.fixture(scope="module")
def shared(shared_hosts: Hosts) -> Daemon:
    """Never sends again by itself: whatever comes twice has another reason."""
    daemon = shared_hosts.daemon(delivery=SLOW)
    daemon.create("here")
    return daemon


@pytest.fixture
def daemon(shared: Daemon, clean: Cleaner) -> Daemon:
    return clean(shared)


@pytest.fixture(scope="module")
def shared_quick(shared_hosts: Hosts) -> Daemon:
    """Sends unacknowledged transactional messages again after 700 ms."""
    return shared_hosts.daemon(delivery=QUICK)


@pytest.fixture
def quick(shared_quick: Daemon, clean: Cleaner) -> Daemon:
    return clean(shared_quick)


@pytest.fixture
def listener(remote: RemoteQueueManager) -> Listener:
    return remote.listen()


def send(
    daemon: Daemon, destination: str, *bodies: bytes, kind: str = "transactional"
) -> list[str]:
    """One message for each body, in order; their ids."""
    return daemon.send_all(destination, bodies, f"--{kind}")


def place(message: wire.Message) -> tuple[int, int]:
    """(number, previous number) of a transactional message."""
    assert message.transaction is not None
    return message.transaction.number, message.transaction.previous


def sequence_of(message: wire.Message) -> int:
    assert message.transaction is not None
    return message.transaction.sequence_id


# --- first transmission -------------------------------------------------------------------


def test_a_transactional_message_is_sent_as_the_specification_says(
    daemon: Daemon, listener: Listener
):
    before = wire.now_s()
    sent_id = daemon.send(
        listener.destination("orders"), b"\0 body \xff", "--transactional", "--label", "Grüße"
    )
    peer = listener.accept()

    message = peer.receive()

    assert message.body == b"\0 body \xff"
    assert message.label == "Grüße"
    assert message.destination.text.lower() == "tcp:127.0.0.1\\private$\\orders"
    assert message.source == listener.owner.daemon_guid
    assert sent_id.endswith(f"\\{message.message_id}")
    assert message.recoverable
    # On the wire it asks for final acks; a message that is not delivered is kept without it.
    assert not message.flags & wire.JN
    assert message.base.time_to_reach_queue == DEFAULT_TIME_TO_REACH_QUEUE_S
    assert message.time_to_be_received == wire.FOREVER
    assert before <= message.sent_time <= wire.now_s()
    assert place(message) == (1, 0)
    assert message.transaction is not None
    assert message.transaction.flags & 0xC == 0xC, "first and last of its transaction"
    assert sequence_of(message) >> 32 > 0, "the time stamp"
    assert message.message_class == wire.NORMAL


@pytest.mark.parametrize("kind", ["express", "recoverable"])
def test_a_plain_message_is_sent_as_the_specification_says(
    daemon: Daemon, listener: Listener, kind: str
):
    destination = listener.destination("q")
    options = ["--priority", "6", "--time-to-reach-queue", "30s", "--no-dead-letter"]
    daemon.send(destination, b"", f"--{kind}", *options)
    peer = listener.accept()

    message = peer.receive()

    assert message.body == b""
    assert message.label == ""
    assert message.transaction is None
    assert message.recoverable == (kind == "recoverable")
    assert message.base.priority == 6
    assert message.base.time_to_reach_queue == 30
    assert not message.flags & wire.JN


def test_the_priority_is_3_unless_said_otherwise(daemon: Daemon, listener: Listener):
    daemon.send(listener.destination("q"), b"x", "--express")

    assert listener.accept().receive().base.priority == 3


def test_message_ids_go_up_by_one_for_each_message(daemon: Daemon, listener: Listener):
    ids = send(daemon, listener.destination("q"), *[b"%d" % n for n in range(5)])
    ids += send(daemon, listener.destination("other"), b"x", kind="express")
    numbers = [int(text.split("\\")[1]) for text in ids]
    peer = listener.accept()
    arrived = sorted(message.message_id for message in peer.receive_many(6))

    assert numbers == list(range(numbers[0], numbers[0] + 6))
    assert arrived == numbers


def test_the_numbers_of_a_sequence_go_up_by_one_each_linked_to_the_one_before(
    daemon: Daemon, listener: Listener
):
    send(daemon, listener.destination("q"), *[b"%d" % n for n in range(1, 6)])
    peer = listener.accept()

    messages = peer.receive_many(5)

    assert [place(message) for message in messages] == [(1, 0), (2, 1), (3, 2), (4, 3), (5, 4)]
    assert [message.body for message in messages] == [b"1", b"2", b"3", b"4", b"5"]
    assert len({sequence_of(message) for message in messages}) == 1


def test_a_body_of_almost_4_mb_is_sent(daemon: Daemon, listener: Listener, tmp_path):
    content = bytes(range(256)) * 16_380  # 4,193,280 of 4,194,304
    path = tmp_path / "body"
    path.write_bytes(content)
    daemon.cli("send", listener.destination("q"), "--recoverable", "--file", str(path))
    peer = listener.accept()

    assert peer.receive(30).body == content


def test_express_and_recoverable_messages_leave_by_priority_and_age(
    daemon: Daemon, listener: Listener
):
    destination = listener.destination("q")
    for priority, text in ((1, b"a"), (7, b"b"), (1, b"c"), (4, b"d"), (7, b"e")):
        daemon.send(destination, text, "--recoverable", "--priority", str(priority))
    connection = listener.accept_raw()
    peer = listener.accept(connection=connection)

    assert [message.body for message in peer.receive_many(5)] == [b"b", b"e", b"d", b"a", b"c"]


# --- the session --------------------------------------------------------------------------


def test_the_queues_of_one_address_share_one_session(daemon: Daemon, listener: Listener):
    for queue in ("one", "two", "three"):
        send(daemon, listener.destination(queue), b"1", b"2")
    peer = listener.accept()

    messages = peer.receive_many(6)

    sequences: dict[str, list[tuple[int, tuple[int, int]]]] = {}
    for message in messages:
        queue = message.destination.text.split("\\")[-1]
        sequences.setdefault(queue, []).append((sequence_of(message), place(message)))
    assert set(sequences) == {"one", "two", "three"}
    for stream in sequences.values():
        assert [numbers for _, numbers in stream] == [(1, 0), (2, 1)]
        assert len({sequence for sequence, _ in stream}) == 1
    assert len({stream[0][0] for stream in sequences.values()}) == 3, "one sequence each"
    with pytest.raises(TimeoutError):
        listener.accept_raw(0.3)


def test_the_recoverable_ack_timeout_is_eight_round_trips(daemon: Daemon, listener: Listener):
    started = time.monotonic()
    daemon.send(listener.destination("q"), b"x", "--express")
    connection = listener.accept_raw()
    request = listener.read_request(connection)
    # The delay that is measured; and nobody speaks before the answer.
    connection.expect_silence(0.3)
    connection.send(
        wire.establish(
            client=request.client,
            server=listener.owner.guid,
            timestamp=request.timestamp,
            padding=b"\x5a" * 512,
        )
    )
    proposal = listener.read_proposal(connection)
    longest_ms = (time.monotonic() - started) * 1000 * 8

    assert 8 * 300 <= proposal.recoverable_ack_timeout_ms <= longest_ms + 100


def test_the_peer_of_an_outgoing_session_may_send_over_it_too(daemon: Daemon, listener: Listener):
    daemon.send(listener.destination("q"), b"x", "--express")
    peer = listener.accept()
    peer.receive()

    peer.send(listener.owner.message("here", b"back", recoverable=True))
    peer.wait_stored()

    assert daemon.bodies("here") == [b"back"]


def test_a_peer_that_is_not_there_yet_is_tried_again(daemon: Daemon, remote: RemoteQueueManager):
    listener = remote.listen()
    destination = listener.destination("q")
    listener.sock.close()
    daemon.send(destination, b"patience", "--recoverable")
    (shown,) = daemon.json("outgoing", "show", destination)
    assert shown["state"] != "connected"

    again = remote.listen(listener.port)

    assert again.accept().receive().body == b"patience"


def test_a_refused_session_is_tried_again(daemon: Daemon, listener: Listener):
    daemon.send(listener.destination("q"), b"x", "--recoverable")
    first = listener.accept_raw()
    request = listener.read_request(first)
    first.send(
        wire.establish(
            client=request.client,
            server=listener.owner.guid,
            timestamp=request.timestamp,
            refused=True,
        )
    )
    assert first.expect_closed() == []

    assert listener.accept().receive().body == b"x"


def test_an_answer_for_somebody_else_closes_the_session(daemon: Daemon, listener: Listener):
    daemon.send(listener.destination("q"), b"x", "--recoverable")
    first = listener.accept_raw()
    request = listener.read_request(first)
    first.send(
        wire.establish(
            client=b"not your GUID...", server=listener.owner.guid, timestamp=request.timestamp
        )
    )
    assert first.expect_closed() == []

    assert listener.accept().receive().body == b"x"


@pytest.mark.parametrize(
    "packet",
    [
        wire.parameters(),
        wire.session_ack(wire.Session()),
        wire.message(source=b"s" * 16, message_id=1, destination=wire.private("here")),
    ],
    ids=["CP", "SessionAck", "user message"],
)
def test_anything_but_the_ec_response_closes_the_session(
    daemon: Daemon, listener: Listener, packet: bytes
):
    daemon.send(listener.destination("q"), b"x", "--recoverable")
    first = listener.accept_raw()
    listener.read_request(first)
    first.send(packet)
    assert first.expect_closed() == []

    assert listener.accept().receive().body == b"x"


def test_a_peer_that_never_finishes_the_handshake_is_given_up(hosts: Hosts):
    daemon = hosts.daemon(delivery=QUICK, peers={"handshake_timeout": "500ms"})
    listener = hosts.remote().listen()
    daemon.send(listener.destination("q"), b"x", "--recoverable")
    first = listener.accept_raw()
    listener.read_request(first)

    assert first.expect_closed(10) == []
    assert listener.accept().receive().body == b"x"


NONSENSE = {
    "no packet at all": b"HTTP/1.1 400 Bad Request\r\n\r\n",
    "another handshake": wire.establish(client=b"c" * 16),
    "an unknown packet type": wire.internal(9, bytes(16)),
    "a count that is wrong": wire.session_ack(wire.Session(sent=7)),
    "an acknowledgment of too much": wire.session_ack(wire.Session(acknowledged=9)),
    "bits of what was never sent": wire.session_ack(
        wire.Session(acknowledged=1, recoverable_acknowledged=1, recoverable_flags=0xFF)
    ),
    "a message that ends too early": wire.message(
        source=b"s" * 16, message_id=1, destination=wire.private("here"), label="label"
    )[:-40].ljust(200, b"\xff"),
}


@pytest.mark.parametrize("name", NONSENSE)
def test_a_peer_that_answers_with_nonsense_is_left_and_tried_again(
    daemon: Daemon, listener: Listener, name: str
):
    daemon.send(listener.destination("q"), b"x", "--recoverable")
    first = listener.accept(auto_ack=False)
    first.receive()

    first.send_raw(NONSENSE[name])
    first.expect_closed()

    assert listener.accept().receive().body == b"x"


def test_a_peer_that_reads_nothing_costs_bounded_memory(hosts: Hosts):
    daemon = hosts.daemon(delivery=SLOW)
    listener = hosts.remote().listen()
    content = bytes(4_000_000)
    for _ in range(30):
        daemon.cli("send", listener.destination("q"), "--recoverable", "--file", "-", input=content)
    before = daemon.resident_bytes()
    peer = listener.accept(auto_ack=False)
    peer.receive(30)  # so it has begun to send, and from here on nobody reads
    daemon.json("status")
    daemon.json("status")

    grown = daemon.resident_bytes() - before
    assert grown < 64 * 1024 * 1024, f"{grown // 2**20} MB for one peer that does not read"
    peer.auto_ack = True
    peer.session_ack()
    peer.receive_many(29, 60)


# --- the window ---------------------------------------------------------------------------


@pytest.mark.parametrize("window", [1, 3, 64])
def test_the_window_of_the_peer_is_never_exceeded(daemon: Daemon, listener: Listener, window: int):
    count = 2 * window + 5
    daemon.cli(
        "send", listener.destination("q"), "--recoverable", "--body-base64", "eA==",
        "--count", str(count),
    )  # fmt: skip
    peer = listener.accept(window=window, auto_ack=False)

    received = 0
    while received < count:
        expected = min(window, count - received)
        peer.receive_many(expected)
        received += expected
        # The peer itself objects to any message more; a little time for one to come.
        peer.read_for(0.15)
        assert peer.inbox == []
        peer.session_ack()

    assert peer.received == count


def test_a_window_of_0_counts_as_1(daemon: Daemon, listener: Listener):
    destination = listener.destination("q")
    send(daemon, destination, b"0", b"1", b"2", kind="recoverable")
    peer = listener.accept(window=0, auto_ack=False)

    for number in range(3):
        assert peer.receive().body == b"%d" % number
        peer.read_for(0.15)
        peer.session_ack()


def test_a_window_never_grows_beyond_our_own(daemon: Daemon, listener: Listener):
    daemon.cli(
        "send", listener.destination("q"), "--recoverable", "--body-base64", "eA==",
        "--count", "100",
    )  # fmt: skip
    peer = listener.accept(window=0xFFFF, auto_ack=False)

    peer.receive_many(64)
    peer.read_for(0.3)
    assert peer.received == 64
    peer.session_ack()
    peer.receive_many(36)


def test_a_peer_that_asks_to_slow_down_gets_one_message_at_a_time(
    daemon: Daemon, listener: Listener
):
    destination = listener.destination("q")
    daemon.send(destination, b"0", "--recoverable")
    peer = listener.accept(auto_ack=False)
    peer.receive()
    peer.session_ack(window=1)
    peer.send(listener.owner.message("here", recoverable=True))
    peer.wait_stored()  # so it has read the WindowSize before
    peer.enforce_window()
    send(daemon, destination, b"1", b"2", b"3", kind="recoverable")

    for number in (1, 2, 3):
        assert peer.receive().body == b"%d" % number
        peer.read_for(0.15)
        peer.session_ack()
    daemon.receive("here")


# --- what a session ack releases ----------------------------------------------------------


def test_only_its_bit_releases_a_recoverable_message(daemon: Daemon, listener: Listener):
    destination = listener.destination("q")
    send(daemon, destination, *[b"%d" % n for n in range(6)], kind="recoverable")
    peer = listener.accept(auto_ack=False)
    peer.receive_many(6)

    # All are counted; 1, 2 and 4 are stored.
    peer.session_ack(stored=0, recoverable_acknowledged=1, recoverable_flags=0b1011)
    peer.send(listener.owner.message("here", recoverable=True))
    peer.wait_stored()
    peer.close()
    second = listener.accept()

    assert [message.body for message in second.receive_many(3)] == [b"2", b"4", b"5"]
    second.read_for(0.3)
    assert second.inbox == []
    daemon.receive("here")


def test_recoverable_ack_seq_number_releases_all_before_it(daemon: Daemon, listener: Listener):
    # QB 3.1.5.5.3: RecoverableSequenceNumber <= RecoverableMsgAckSeqNumber.
    destination = listener.destination("q")
    send(daemon, destination, *[b"%d" % n for n in range(5)], kind="recoverable")
    peer = listener.accept(auto_ack=False)
    peer.receive_many(5)

    peer.session_ack(stored=0, recoverable_acknowledged=3, recoverable_flags=0b1)
    peer.send(listener.owner.message("here", recoverable=True))
    peer.wait_stored()
    peer.close()
    second = listener.accept()

    assert [message.body for message in second.receive_many(2)] == [b"3", b"4"]
    daemon.receive("here")


def test_an_express_message_is_released_by_the_count(daemon: Daemon, listener: Listener):
    destination = listener.destination("q")
    send(daemon, destination, *[b"%d" % n for n in range(4)], kind="express")
    peer = listener.accept(auto_ack=False)
    peer.receive_many(4)

    # Two of the four.
    peer.session_ack(acknowledged=2)
    peer.send(listener.owner.message("here", recoverable=True))
    peer.wait_stored()
    peer.close()
    second = listener.accept()

    assert [message.body for message in second.receive_many(2)] == [b"2", b"3"]
    second.read_for(0.3)
    assert second.inbox == []
    daemon.receive("here")


def test_what_was_acknowledged_is_gone_from_the_outgoing_queue(daemon: Daemon, listener: Listener):
    destination = listener.destination("q")
    daemon.send(destination, b"1", "--recoverable")
    daemon.send(destination, b"2", "--express")
    peer = listener.accept()
    peer.receive_many(2)
    peer.session_ack()
    peer.send(listener.owner.message("here", recoverable=True))
    peer.wait_stored()

    rows = [row for row in daemon.json("outgoing", "list") if f":{listener.port}" in str(row)]
    assert sum(int(row["messages"]) for row in rows) == 0
    daemon.receive("here")


def test_a_session_ack_does_not_release_a_transactional_message(daemon: Daemon, listener: Listener):
    send(daemon, listener.destination("q"), b"1", b"2")
    peer = listener.accept()
    first = peer.receive_many(2)
    peer.send(listener.owner.message("here", recoverable=True))
    peer.wait_stored()
    peer.close()

    second = listener.accept()
    again = second.receive_many(2)

    assert [message.body for message in again] == [message.body for message in first]
    assert [place(message) for message in again] == [(1, 0), (2, 1)]
    daemon.receive("here")


def test_bits_of_more_than_one_header_add_up(daemon: Daemon, listener: Listener):
    count = 60
    daemon.cli(
        "send", listener.destination("q"), "--recoverable", "--body-base64", "eA==",
        "--count", str(count),
    )  # fmt: skip
    peer = listener.accept(auto_ack=False)
    peer.receive_many(count)
    peer.session_ack()  # two headers, 32 bits and 28
    peer.send(listener.owner.message("here", recoverable=True))
    peer.wait_stored()
    peer.close()

    daemon.send(listener.destination("q"), b"last", "--recoverable")
    assert listener.accept().receive().body == b"last"
    daemon.receive("here")


def test_a_peer_that_stops_acknowledging_is_left_and_tried_again(hosts: Hosts):
    # The wire's AckTimeout is at least 20 s; our own patience is a setting.
    daemon = hosts.daemon(delivery={**QUICK, "resend": ["1h"], "ack_timeout": "500ms"})
    listener = hosts.remote().listen()
    daemon.send(listener.destination("q"), b"x", "--recoverable")
    peer = listener.accept(auto_ack=False)
    peer.receive()

    peer.expect_closed(10)

    second = listener.accept()
    assert second.receive().body == b"x"
    assert len(second.resent) == 1


# --- order acks ---------------------------------------------------------------------------


def test_when_all_is_order_acknowledged_a_new_sequence_begins(daemon: Daemon, listener: Listener):
    destination = listener.destination("q")
    send(daemon, destination, b"1", b"2", b"3")
    peer = listener.accept()
    first = peer.receive_many(3)
    old = sequence_of(first[0])

    peer.order_ack(old, 3)
    peer.wait_stored()
    send(daemon, destination, b"4", b"5")
    second = peer.receive_many(2)

    assert [sequence_of(message) for message in second] == [old + 1, old + 1]
    assert [place(message) for message in second] == [(1, 0), (2, 1)]


def test_an_order_ack_has_no_bit_before_its_effect_is_on_disk(daemon: Daemon, listener: Listener):
    # MQ 2.2.20.4: a bit says "persisted".  What it says is that the sender is done with messages.
    send(daemon, listener.destination("q"), b"1", b"2")
    peer = listener.accept()
    sequence = sequence_of(peer.receive_many(2)[0])
    with daemon.held_disk():
        peer.order_ack(sequence, 2)
        peer.read_for(1.0)
        assert peer.unstored == {1}

    peer.wait_stored()


def test_what_an_acknowledged_order_ack_released_never_comes_again(hosts: Hosts):
    daemon = hosts.daemon(delivery=SLOW)
    listener = hosts.remote().listen()
    send(daemon, listener.destination("q"), *[b"%d" % n for n in range(1, 11)])
    peer = listener.accept()
    sequence = sequence_of(peer.receive_many(10)[0])
    peer.order_ack(sequence, 7)
    peer.wait_stored()

    daemon.restart()

    messages = listener.accept().receive_many(3)
    assert [place(message) for message in messages] == [(8, 0), (9, 8), (10, 9)]


def test_while_one_message_is_not_order_acknowledged_the_sequence_goes_on(
    daemon: Daemon, listener: Listener
):
    destination = listener.destination("q")
    send(daemon, destination, b"1", b"2", b"3")
    peer = listener.accept()
    old = sequence_of(peer.receive_many(3)[0])

    peer.order_ack(old, 2)
    peer.wait_stored()
    send(daemon, destination, b"4")
    message = peer.receive()

    assert (sequence_of(message), place(message)) == (old, (4, 3))


def test_an_order_ack_releases_what_it_covers_and_nothing_more(daemon: Daemon, listener: Listener):
    send(daemon, listener.destination("q"), b"1", b"2", b"3", b"4")
    peer = listener.accept()
    sequence = sequence_of(peer.receive_many(4)[0])
    peer.order_ack(sequence, 2)
    peer.wait_stored()
    peer.close()

    second = listener.accept()
    again = second.receive_many(2)

    # The first in the queue goes out with previous 0 (digest 15.2).
    assert [(message.body, place(message)) for message in again] == [(b"3", (3, 0)), (b"4", (4, 3))]
    second.read_for(0.3)
    assert second.inbox == []


@pytest.mark.parametrize(
    "wrong",
    ["another sequence", "an older sequence", "an absurd number of another sequence", "number 0"],
)
def test_an_order_ack_that_does_not_fit_releases_nothing(
    daemon: Daemon, listener: Listener, wrong: str
):
    send(daemon, listener.destination("q"), b"1", b"2")
    peer = listener.accept()
    sequence = sequence_of(peer.receive_many(2)[0])
    owner = listener.owner
    identifier, number = {
        "another sequence": (sequence + 1, 2),
        "an older sequence": (sequence - 1, 2),
        "an absurd number of another sequence": (1, 0xFFFFFFFF),
        "number 0": (sequence, 1),
    }[wrong]
    packet = wire.order_ack(
        source=owner.guid,
        message_id=owner.next_id(),
        sequence_id=identifier,
        number=number,
    )
    if wrong == "number 0":
        at = packet.index(sequence.to_bytes(8, "little")) + 8
        packet = packet[:at] + bytes(8) + packet[at + 8 :]
    peer.send(packet)
    peer.wait_stored()
    peer.close()

    assert [place(message) for message in listener.accept().receive_many(2)] == [(1, 0), (2, 1)]


def test_an_order_ack_of_messages_that_were_never_sent_harms_nothing(
    daemon: Daemon, listener: Listener
):
    destination = listener.destination("q")
    send(daemon, destination, b"1")
    peer = listener.accept()
    sequence = sequence_of(peer.receive())
    try:
        peer.order_ack(sequence, 1000)
        peer.wait_stored()
    except Closed:
        peer = listener.accept()
    daemon.send(destination, b"2", "--transactional")

    texts = [peer.receive().body]
    while texts[-1] != b"2":
        texts.append(peer.receive().body)
    assert texts in ([b"2"], [b"1", b"2"])


def test_an_order_ack_may_come_over_any_session_and_name_any_address(
    daemon: Daemon, listener: Listener
):
    send(daemon, listener.destination("q"), b"1")
    peer = listener.accept()
    sequence = sequence_of(peer.receive())
    owner = listener.owner
    other = owner.connect(daemon.port)

    other.send(
        wire.order_ack(
            source=owner.guid,
            message_id=owner.next_id(),
            sequence_id=sequence,
            number=1,
            host="tcp:192.0.2.77",
        )
    )
    other.wait_stored()
    peer.close()
    daemon.send(listener.destination("q"), b"2", "--transactional")

    message = listener.accept().receive()
    assert (message.body, sequence_of(message), place(message)) == (b"2", sequence + 1, (1, 0))


def test_an_order_ack_for_the_private_order_queue_of_our_guid_counts(
    daemon: Daemon, listener: Listener
):
    # QB 2.2.4: DQ 3, PrivateQueueIdentifier 4; here with DM 0 and a session header behind it.
    send(daemon, listener.destination("q"), b"1")
    peer = listener.accept()
    sequence = sequence_of(peer.receive())
    owner = listener.owner
    assert owner.daemon_guid is not None
    packet = wire.message(
        source=owner.guid,
        message_id=owner.next_id(),
        destination=wire.Name(3, number=4),
        address=owner.daemon_guid,
        label=wire.ORDER_LABEL,
        message_class=wire.ORDER_ACK,
        priority=0,
        body=sequence.to_bytes(8, "little") + b"\1\0\0\0\0\0\0\0" + b"noise in the reserve",
    )

    peer.send(packet, piggyback=True)
    peer.send(owner.message("here", recoverable=True))
    peer.wait_stored()
    daemon.send(listener.destination("q"), b"2", "--transactional")

    message = peer.receive()
    assert (message.body, sequence_of(message), place(message)) == (b"2", sequence + 1, (1, 0))
    daemon.receive("here")


# --- sending again ------------------------------------------------------------------------


def test_unacknowledged_transactional_messages_are_sent_again_on_the_same_session(
    quick: Daemon, listener: Listener
):
    send(quick, listener.destination("q"), b"1", b"2", b"3")
    peer = listener.accept()
    first = peer.receive_many(3)

    again = peer.receive_many(3)

    # The ledger has compared ids, times, numbers and contents already.
    assert [message.body for message in again] == [b"1", b"2", b"3"]
    assert [place(message) for message in again] == [(1, 0), (2, 1), (3, 2)]
    assert [m.sent_time for m in again] == [m.sent_time for m in first]
    assert len(peer.resent) == 3
    peer.order_ack(sequence_of(first[0]), 3)


def test_after_the_order_ack_nothing_is_sent_again(quick: Daemon, listener: Listener):
    send(quick, listener.destination("q"), b"1", b"2")
    peer = listener.accept()
    sequence = sequence_of(peer.receive_many(2)[0])

    peer.order_ack(sequence, 2)
    peer.wait_stored()
    peer.inbox.clear()
    peer.read_for(1.6)

    assert peer.inbox == []


def test_the_first_in_the_queue_is_sent_again_with_previous_0(quick: Daemon, listener: Listener):
    send(quick, listener.destination("q"), b"1", b"2", b"3")
    peer = listener.accept()
    sequence = sequence_of(peer.receive_many(3)[0])
    peer.order_ack(sequence, 1)
    peer.wait_stored()

    again = peer.receive_many(2)

    assert [(message.body, place(message)) for message in again] == [(b"2", (2, 0)), (b"3", (3, 2))]
    peer.order_ack(sequence, 3)


def test_a_resend_is_linked_around_a_message_that_expired(quick: Daemon, listener: Listener):
    destination = listener.destination("q")
    send(quick, destination, b"1")
    quick.send(destination, b"2", "--transactional", "--time-to-reach-queue", "1s")
    send(quick, destination, b"3")
    peer = listener.accept()
    first = peer.receive_many(3)
    assert [place(message) for message in first] == [(1, 0), (2, 1), (3, 2)]

    deadline = time.monotonic() + END_S
    last: dict[bytes, tuple[int, int]] = {}
    while last != {b"1": (1, 0), b"3": (3, 1)} and time.monotonic() < deadline:
        message = peer.receive()
        if message.body == b"1":
            last = {}
        last[message.body] = place(message)

    assert last == {b"1": (1, 0), b"3": (3, 1)}
    peer.order_ack(sequence_of(first[0]), 3)
    peer.wait_stored()
    quick.receive(DEADXACT)


def test_when_the_first_in_the_queue_expired_the_next_goes_with_previous_0(
    quick: Daemon, listener: Listener
):
    destination = listener.destination("q")
    quick.send(destination, b"1", "--transactional", "--time-to-reach-queue", "1s")
    send(quick, destination, b"2")
    peer = listener.accept()
    sequence = sequence_of(peer.receive_many(2)[0])

    peer.wait(
        lambda: bool(peer.inbox) and place(peer.inbox[-1]) == (2, 0), 10, "number 2 with previous 0"
    )

    peer.order_ack(sequence, 2)
    peer.wait_stored()
    quick.receive(DEADXACT)


def test_a_message_that_expired_before_it_was_sent_is_never_sent(
    daemon: Daemon, listener: Listener
):
    destination = listener.destination("q")
    daemon.send(destination, b"1", "--transactional", "--time-to-reach-queue", "1s")
    # Connected, but nothing may be sent before the handshake is over.
    connection = listener.accept_raw()
    daemon.wait_for(DEADXACT, 1)
    send(daemon, destination, b"2", b"3")
    peer = listener.accept(connection=connection)

    messages = peer.receive_many(2)

    assert [message.body for message in messages] == [b"2", b"3"]
    assert place(messages[0])[1] == 0
    assert place(messages[1])[1] == place(messages[0])[0]
    daemon.receive(DEADXACT)


def test_a_sequence_begins_with_number_1_whatever_expired_before(
    daemon: Daemon, listener: Listener
):
    # MQ 2.2.20.5: the first message within a sequence MUST be number 1; QB 3.1.7.1.3 gives
    # numbers when a message is sent for the first time.
    destination = listener.destination("q")
    daemon.send(destination, b"1", "--transactional", "--time-to-reach-queue", "1s")
    connection = listener.accept_raw()
    daemon.wait_for(DEADXACT, 1)
    send(daemon, destination, b"2")
    peer = listener.accept(connection=connection)

    assert place(peer.receive()) == (1, 0)
    daemon.receive(DEADXACT)


def test_everything_unacknowledged_comes_again_on_the_next_session_in_order(
    daemon: Daemon, listener: Listener
):
    destination = listener.destination("q")
    send(daemon, destination, *[b"%d" % n for n in range(1, 6)])
    for _ in range(3):
        peer = listener.accept()
        messages = peer.receive_many(5)
        assert [message.body for message in messages] == [b"1", b"2", b"3", b"4", b"5"]
        assert [place(message)[0] for message in messages] == [1, 2, 3, 4, 5]
        peer.connection.reset()
    last = listener.accept()
    sequence = sequence_of(last.receive_many(5)[0])
    last.order_ack(sequence, 5)
    last.wait_stored()


def test_after_a_kill_everything_is_sent_again_and_nothing_is_renumbered(hosts: Hosts):
    daemon = hosts.daemon(delivery=SLOW)
    listener = hosts.remote().listen()
    destination = listener.destination("q")
    texts = [b"%d" % number for number in range(1, 31)]
    send(daemon, destination, *texts[:10])
    peer = listener.accept()
    first = peer.receive_many(10)
    sequence = sequence_of(first[0])
    peer.order_ack(sequence, 4)
    peer.wait_stored()

    daemon.restart()
    second = listener.accept()
    again = second.receive_many(6)
    assert [place(message) for message in again] == [
        (5, 0), (6, 5), (7, 6), (8, 7), (9, 8), (10, 9),
    ]  # fmt: skip
    send(daemon, destination, *texts[10:20])
    daemon.kill()
    daemon.start()
    third = listener.accept()
    # The folder may be a backup: what was sent since the first kill waits, on disk, for an order
    # ack that shows how far the receiver is.
    messages = third.receive_many(6)
    assert [place(message)[0] for message in messages] == list(range(5, 11))
    third.order_ack(sequence, 10)
    later = third.receive_many(10)
    assert [place(message) for message in later] == [(n, n - 1) for n in range(11, 21)]
    messages += later

    assert [message.body for message in messages] == texts[4:20]
    assert {sequence_of(message) for message in messages} == {sequence}
    third.order_ack(sequence, 20)
    third.wait_stored()
    daemon.restart()
    send(daemon, destination, texts[20])
    message = listener.accept().receive()
    assert sequence_of(message) > sequence
    assert place(message) == (1, 0)


def test_after_a_kill_recoverable_messages_come_again_and_express_ones_do_not(hosts: Hosts):
    daemon = hosts.daemon(delivery=SLOW)
    listener = hosts.remote().listen()
    destination = listener.destination("q")
    for number in range(6):
        kind = "--recoverable" if number % 2 else "--express"
        daemon.send(destination, b"%d" % number, kind)
    peer = listener.accept(auto_ack=False)
    peer.receive_many(6)

    daemon.restart()
    second = listener.accept()
    messages = second.receive_many(3)
    second.read_for(0.3)

    assert [message.body for message in messages] == [b"1", b"3", b"5"]
    assert second.inbox == []
    assert len(second.resent) == 3


def test_message_ids_are_not_used_again_after_a_kill(hosts: Hosts):
    daemon = hosts.daemon(delivery=SLOW)
    listener = hosts.remote().listen()
    destination = listener.destination("q")
    ids = send(daemon, destination, b"1", b"2", kind="express")
    daemon.restart()
    ids += send(daemon, destination, b"3", kind="transactional")
    daemon.restart()
    ids += send(daemon, destination, b"4", kind="recoverable")

    numbers = [int(text.split("\\")[1]) for text in ids]
    assert len(set(ids)) == 4
    assert numbers == sorted(numbers)


# --- the operator's hand ------------------------------------------------------------------


def test_a_paused_outgoing_queue_sends_nothing_until_it_is_resumed(
    daemon: Daemon, listener: Listener
):
    destination = listener.destination("q")
    daemon.send(destination, b"1", "--recoverable")
    peer = listener.accept()
    peer.receive()
    daemon.cli("outgoing", "pause", destination)
    daemon.send(destination, b"2", "--recoverable")
    peer.read_for(0.5)
    assert peer.inbox == []

    daemon.cli("outgoing", "resume", destination)

    assert peer.receive().body == b"2"


def test_a_kick_sends_everything_unacknowledged_again(daemon: Daemon, listener: Listener):
    destination = listener.destination("q")
    send(daemon, destination, b"1", b"2")
    peer = listener.accept()
    sequence = sequence_of(peer.receive_many(2)[0])

    daemon.cli("outgoing", "kick", destination)

    again = peer.receive_many(2)
    assert [message.body for message in again] == [b"1", b"2"]
    peer.order_ack(sequence, 2)


def test_outgoing_show_tells_what_waits(daemon: Daemon, listener: Listener):
    destination = listener.destination("shown")
    send(daemon, destination, b"1", b"2")
    peer = listener.accept()
    sequence = sequence_of(peer.receive_many(2)[0])

    (shown,) = daemon.json("outgoing", "show", destination)

    assert shown["messages"] == 2
    assert shown["state"] == "connected"
    peer.order_ack(sequence, 2)
    peer.wait_stored()
    (shown,) = daemon.json("outgoing", "show", destination)
    assert shown["messages"] == 0


# --- final acks ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("message_class", "name"),
    [(0x8000, "bad_destination"), (0x8009, "not_transactional"), (0x8003, "quota")],
)
def test_a_negative_final_ack_ends_its_message_in_the_transactional_dead_letter_queue(
    daemon: Daemon, listener: Listener, message_class: int, name: str
):
    destination = listener.destination("q")
    send(daemon, destination, b"1", b"2", b"3")
    peer = listener.accept()
    first = peer.receive_many(3)
    sequence = sequence_of(first[0])

    peer.final_ack(first[1], message_class)
    peer.wait_stored()
    (dead,) = daemon.receive(DEADXACT)
    peer.close()
    second = listener.accept()
    again = second.receive_many(2)

    assert dead["id"].endswith(f"\\{first[1].message_id}")
    assert dead["reason"]
    # The next is linked around it.
    assert [(message.body, place(message)) for message in again] == [(b"1", (1, 0)), (b"3", (3, 1))]
    second.order_ack(sequence, 3)
    second.wait_stored()


def test_a_final_ack_has_no_bit_before_the_dead_letter_is_on_disk(
    daemon: Daemon, listener: Listener
):
    send(daemon, listener.destination("q"), b"1")
    peer = listener.accept()
    message = peer.receive()
    with daemon.held_disk():
        peer.final_ack(message, 0x8009)
        peer.read_for(1.0)
        assert peer.unstored == {1}

    peer.wait_stored()
    assert len(daemon.receive(DEADXACT)) == 1


def test_a_negative_final_ack_of_a_message_without_dead_lettering_just_ends_it(
    daemon: Daemon, listener: Listener
):
    destination = listener.destination("q")
    daemon.send(destination, b"1", "--transactional", "--no-dead-letter")
    peer = listener.accept()
    message = peer.receive()

    peer.final_ack(message, 0x8009)
    peer.wait_stored()
    peer.close()

    assert daemon.receive(DEADXACT) == []
    (shown,) = daemon.json("outgoing", "show", destination)
    assert shown["messages"] == 0


def test_a_final_ack_about_somebody_elses_message_changes_nothing(
    daemon: Daemon, listener: Listener
):
    destination = listener.destination("q")
    send(daemon, destination, b"1")
    peer = listener.accept()
    message = peer.receive()
    packet = wire.final_ack(
        source=listener.owner.guid, message_id=listener.owner.next_id(), message_class=0x8009,
        of=message,
    )  # fmt: skip
    guid = listener.owner.daemon_guid
    assert guid is not None
    at = packet.rindex(guid)
    peer.send(packet[:at] + b"somebody else..." + packet[at + 16 :])
    peer.wait_stored()

    assert daemon.receive(DEADXACT) == []
    (shown,) = daemon.json("outgoing", "show", destination)
    assert shown["messages"] == 1
    peer.order_ack(sequence_of(message), 1)
