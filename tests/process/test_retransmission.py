"""Retransmission: the resend timer, new sessions, and restarts of the daemon.

The peer is the acceptor; the daemon connects to it because of `qmd send`.
QB 3.1.5.5, 3.1.5.6, 3.1.6.5; digest 15.
"""

from __future__ import annotations

import time

import pytest

from tests.patience import END_S
from tests.process.harness import DEADXACT, Cleaner, Daemon, Hosts
from tests.process.outgoing import QUICK, SLOW, place, send, sequence_of
from tests.process.remote import Listener, RemoteQueueManager


@pytest.fixture(scope="module")
def shared(shared_hosts: Hosts) -> Daemon:
    """Start a daemon without timed retransmission: a duplicate must have another cause."""
    daemon = shared_hosts.daemon(delivery=SLOW)
    daemon.create("here")
    return daemon


@pytest.fixture(scope="module")
def shared_quick(shared_hosts: Hosts) -> Daemon:
    """Start a daemon that retransmits unacknowledged transactional messages after 700 ms."""
    return shared_hosts.daemon(delivery=QUICK)


@pytest.fixture
def quick(shared_quick: Daemon, clean: Cleaner) -> Daemon:
    return clean(shared_quick)


@pytest.fixture
def listener(remote: RemoteQueueManager) -> Listener:
    return remote.listen()


# --- retransmission -----------------------------------------------------------------------


def test_unacknowledged_transactional_messages_are_sent_again_on_the_same_session(
    quick: Daemon, listener: Listener
):
    send(quick, listener.destination("q"), b"1", b"2", b"3")
    peer = listener.accept()
    first = peer.receive_many(3)

    again = peer.receive_many(3)

    # The ledger has already compared ids, times, numbers and contents.
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
    # Connected, but the daemon must not send before the end of the handshake.
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


def test_unacknowledged_messages_are_sent_again_on_the_next_session_in_order(
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


def test_after_a_kill_messages_are_sent_again_with_the_same_numbers(hosts: Hosts):
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
    # The folder may be a backup: messages sent after the first kill wait, on disk, for an order
    # ack that shows the position of the receiver.
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


def test_after_a_kill_recoverable_messages_are_sent_again_and_express_ones_are_not(hosts: Hosts):
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
