"""Transmission by the daemon: packets, their order, and the window of the peer.

The peer is the acceptor; the daemon connects to it because of `qmd send`.
QB 3.1.5.5, 3.1.5.6, 3.1.7.1; digest 15.
"""

from __future__ import annotations

import pytest

from tests.process import wire
from tests.process.harness import Daemon, Hosts
from tests.process.outgoing import SLOW, place, send, sequence_of
from tests.process.remote import Listener, RemoteQueueManager

DEFAULT_TIME_TO_REACH_QUEUE_S = 345_600


@pytest.fixture(scope="module")
def shared(shared_hosts: Hosts) -> Daemon:
    """Start a daemon without timed retransmission: a duplicate must have another cause."""
    daemon = shared_hosts.daemon(delivery=SLOW)
    daemon.create("here")
    return daemon


@pytest.fixture
def listener(remote: RemoteQueueManager) -> Listener:
    return remote.listen()


# --- first transmission -------------------------------------------------------------------


def test_a_transactional_message_is_sent_as_specified(daemon: Daemon, listener: Listener):
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
    # The packet requests final acks; an undelivered message is kept without such a request.
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
def test_a_plain_message_is_sent_as_specified(daemon: Daemon, listener: Listener, kind: str):
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


def test_the_default_priority_is_3(daemon: Daemon, listener: Listener):
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
        # The peer itself rejects an excess message; this gives one time to arrive.
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
    peer.wait_stored()  # so it has read the earlier WindowSize
    peer.enforce_window()
    send(daemon, destination, b"1", b"2", b"3", kind="recoverable")

    for number in (1, 2, 3):
        assert peer.receive().body == b"%d" % number
        peer.read_for(0.15)
        peer.session_ack()
    daemon.receive("here")


# --- acts of an operator ------------------------------------------------------------------


def test_a_paused_outgoing_queue_sends_nothing_until_it_is_resumed(
    daemon: Daemon, listener: Listener
):
    """Its session announces a window of one message.  [MS-MQQB] 3.1.7.13, 3.1.7.14"""
    destination = listener.destination("q")
    daemon.send(destination, b"1", "--recoverable")
    peer = listener.accept()
    peer.receive()
    daemon.cli("outgoing", "pause", destination)
    peer.wait(lambda: peer.remote_window == 1, what="the window of a paused queue")
    daemon.send(destination, b"2", "--recoverable")
    peer.read_for(0.5)
    assert peer.inbox == []
    (shown,) = daemon.json("outgoing", "show", destination)
    assert (shown["state"], shown["windows_state"]) == ("paused", "ONHOLD")

    daemon.cli("outgoing", "resume", destination)

    assert peer.receive().body == b"2"
    (shown,) = daemon.json("outgoing", "show", destination)
    history = [(each["status"], each["error"]) for each in shown["connection_history"]]
    assert history == [
        ("Established", "0x00000000"),
        ("EstablishPacketReceived", "0x00000000"),
        ("InProcess", "0x00000000"),
    ]


def test_a_kick_sends_everything_unacknowledged_again(daemon: Daemon, listener: Listener):
    destination = listener.destination("q")
    send(daemon, destination, b"1", b"2")
    peer = listener.accept()
    sequence = sequence_of(peer.receive_many(2)[0])

    daemon.cli("outgoing", "kick", destination)

    again = peer.receive_many(2)
    assert [message.body for message in again] == [b"1", b"2"]
    peer.order_ack(sequence, 2)


def test_outgoing_show_lists_waiting_messages(daemon: Daemon, listener: Listener):
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
