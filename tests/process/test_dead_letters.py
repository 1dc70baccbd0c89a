"""Undeliverable messages: their dead-letter queues, their reasons, and the notifications.

QB 3.1.5.7, 3.1.5.8.2, 3.1.7.1.2, 3.1.7.15, 3.1.7.17; "Sending Transactional Messages to Multiple
Destinations" for the copy on the computer that hosts the queue.

"""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Callable

import pytest

from tests.patience import END_S, LOOK_S
from tests.process import wire
from tests.process.data_folder import held_disk
from tests.process.harness import DEADLETTER, DEADXACT, Cleaner, Daemon, Hosts, body, free_port
from tests.process.remote import RemoteQueueManager

QUICK = {"resend": ["500ms"], "retry_first": "50ms", "retry_max": "200ms"}


@pytest.fixture(scope="module")
def shared_sender(shared_hosts: Hosts) -> Daemon:
    daemon = shared_hosts.daemon(delivery=QUICK)
    daemon.create("answers")
    return daemon


@pytest.fixture
def sender(shared_sender: Daemon, clean: Cleaner) -> Daemon:
    return clean(shared_sender)


@pytest.fixture(scope="module")
def shared_receiver(shared_hosts: Hosts) -> Daemon:
    daemon = shared_hosts.daemon(delivery=QUICK)
    daemon.create("plain")
    daemon.create("orders", transactional=True)
    return daemon


@pytest.fixture
def receiver(shared_receiver: Daemon, clean: Cleaner) -> Daemon:
    return clean(shared_receiver)


def nowhere() -> str:
    return f"DIRECT=TCP:127.0.0.1:{free_port()}\\private$\\q"


def wait_until(condition: Callable[[], bool], timeout_s: float = END_S) -> None:
    """Poll until the condition holds; the polls take the time."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(LOOK_S)


def outgoing(daemon: Daemon, port: int) -> int:
    """Return the messages that wait for one address, or for an acknowledgment of it."""
    rows = [row for row in daemon.json("outgoing", "list") if f":{port}" in row["destination"]]
    return sum(int(row["messages"]) for row in rows)


# --- the time to reach the queue ends at the sender ---------------------------------------


def test_a_message_that_does_not_arrive_in_time_goes_to_the_dead_letter_queue(sender: Daemon):
    destination = nowhere()
    options = ["--time-to-reach-queue", "1s"]
    sent = {
        kind: sender.send(destination, kind.encode(), f"--{kind}", *options)
        for kind in ("transactional", "recoverable", "express")
    }

    sender.wait_for(DEADXACT, 1)
    sender.wait_for(DEADLETTER, 2)

    transactional, plain = sender.receive(DEADXACT), sender.receive(DEADLETTER)
    assert [message["id"] for message in transactional] == [sent["transactional"]]
    assert {message["id"] for message in plain} == {sent["recoverable"], sent["express"]}
    for dead in transactional + plain:
        assert sent[body(dead).decode()] == dead["id"]
        assert dead["reason"]
        assert dead["class"] == "nack_reach_queue_timeout"
    (shown,) = sender.json("outgoing", "show", destination)
    assert shown["messages"] == 0


def test_without_dead_lettering_an_expired_message_is_deleted(sender: Daemon):
    destination = nowhere()
    options = ["--time-to-reach-queue", "1s"]
    for kind in ("transactional", "recoverable", "express"):
        sender.send(destination, b"late", f"--{kind}", "--no-dead-letter", *options)
    sender.send(destination, b"marker", "--recoverable", *options)

    sender.wait_for(DEADLETTER, 1)
    wait_until(lambda: sender.json("outgoing", "show", destination)[0]["messages"] == 0)

    assert [body(message) for message in sender.receive(DEADLETTER)] == [b"marker"]
    assert sender.receive(DEADXACT) == []


def test_it_expires_while_the_peer_accepts_connections_but_never_answers(sender: Daemon):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        destination = f"DIRECT=TCP:127.0.0.1:{silent.getsockname()[1]}\\private$\\q"
        sender.send(destination, b"late", "--transactional", "--time-to-reach-queue", "1s")

        (dead,) = sender.wait_for(DEADXACT, 1)

        assert body(dead) == b"late"
        sender.receive(DEADXACT)


def test_it_expires_while_the_window_is_full(sender: Daemon, remote: RemoteQueueManager):
    listener = remote.listen()
    destination = listener.destination("q")
    sender.send(destination, b"first", "--transactional")
    peer = listener.accept(window=1, auto_ack=False)
    first = peer.receive()
    sender.send(destination, b"late", "--transactional", "--time-to-reach-queue", "1s")

    (dead,) = sender.wait_for(DEADXACT, 1)

    assert body(dead) == b"late"
    sender.receive(DEADXACT)
    assert peer.inbox == []
    assert first.transaction is not None
    peer.session_ack()
    peer.order_ack(first.transaction.sequence_id, 1)
    peer.wait_stored()


def test_it_expires_after_it_was_sent_but_never_order_acknowledged(
    sender: Daemon, remote: RemoteQueueManager
):
    listener = remote.listen()
    destination = listener.destination("q")
    sender.send(destination, b"late", "--transactional", "--time-to-reach-queue", "1s")
    peer = listener.accept()
    peer.receive()

    (dead,) = sender.wait_for(DEADXACT, 1)

    assert body(dead) == b"late"
    sender.receive(DEADXACT)


def test_a_message_that_arrived_in_time_is_no_dead_letter(sender: Daemon, receiver: Daemon):
    destination = f"DIRECT=TCP:127.0.0.1:{receiver.port}\\private$\\orders"
    sender.send(destination, b"in time", "--transactional", "--time-to-reach-queue", "2s")
    receiver.wait_for("orders", 1)
    # A second message that cannot arrive proves that the two seconds are over.
    sender.send(nowhere(), b"marker", "--recoverable", "--time-to-reach-queue", "2s")
    sender.wait_for(DEADLETTER, 1)
    sender.receive(DEADLETTER)

    assert sender.receive(DEADXACT) == []
    assert receiver.bodies("orders") == [b"in time"]


def test_it_expires_while_the_daemon_is_down_and_dead_letters_survive_a_kill(hosts: Hosts):
    daemon = hosts.daemon(delivery=QUICK)
    options = ["--time-to-reach-queue", "1s"]
    for kind in ("transactional", "recoverable"):
        daemon.send(nowhere(), kind.encode(), f"--{kind}", *options)
    daemon.restart()
    before = daemon.wait_for(DEADXACT, 1), daemon.wait_for(DEADLETTER, 1)

    daemon.restart()

    assert (daemon.peek(DEADXACT), daemon.peek(DEADLETTER)) == before
    assert [body(message) for message in before[0]] == [b"transactional"]
    assert [body(message) for message in before[1]] == [b"recoverable"]


# --- refused at the destination: the packets ----------------------------------------------


def check_final_ack(ack: wire.Message, message: bytes, message_class: int) -> None:
    """Check QB 2.2.5.1: all fields that identify the message are copied from it."""
    original = wire.parse(message)
    assert isinstance(original, wire.Message)
    assert original.transaction is not None
    header = original.transaction
    assert ack.message_class == message_class
    assert ack.order_body() == (header.sequence_id, header.number, header.previous)
    assert ack.final_body() == (original.source, original.message_id)


@pytest.mark.parametrize("dead_letter", [False, True])
def test_a_transactional_message_to_a_plain_queue_is_refused_and_kept_here(
    receiver: Daemon, remote: RemoteQueueManager, dead_letter: bool
):
    peer = remote.connect(receiver.port, source="127.0.0.2")
    sequence = remote.new_sequence()
    packet = remote.transactional(
        "plain",
        sequence,
        1,
        body=b"misdirected",
        label="why",
        dead_letter=dead_letter,
        admin=wire.private("admin", "TCP:127.0.0.2"),
        ack_bits=wire.NA,
    )

    peer.send(packet)
    peer.wait(lambda: bool(peer.final_acks), what="the final ack")
    nack = peer.receive()
    peer.wait_stored()

    check_final_ack(peer.final_acks[0], packet, 0x8009)
    assert nack.message_class == 0x8009
    assert nack.body == b"misdirected"
    assert nack.correlation == remote.guid + struct.pack("<I", 1)
    assert nack.recoverable
    assert nack.transaction is None
    assert receiver.bodies("plain") == []
    (dead,) = receiver.receive(DEADXACT)
    assert body(dead) == b"misdirected"
    assert dead["label"] == "why"
    assert dead["class"] == "nack_not_transactional_queue"
    assert dead["reason"]
    assert peer.order_acks == []


def test_without_an_admin_queue_only_the_final_ack_is_sent(
    receiver: Daemon, remote: RemoteQueueManager
):
    peer = remote.connect(receiver.port)
    packet = remote.transactional("plain", remote.new_sequence(), 1)

    peer.send(packet)
    peer.wait(lambda: bool(peer.final_acks), what="the final ack")
    peer.wait_stored()
    peer.read_for(0.5)

    check_final_ack(peer.final_acks[0], packet, 0x8009)
    assert peer.inbox == []
    receiver.receive(DEADXACT)


def test_a_retransmitted_refused_message_is_refused_again_and_kept_once(
    receiver: Daemon, remote: RemoteQueueManager
):
    peer = remote.connect(receiver.port)
    packet = remote.transactional("plain", remote.new_sequence(), 1)

    for count in (1, 2):
        peer.send(packet)
        peer.wait(lambda count=count: len(peer.final_acks) >= count, what="the final ack")
    peer.wait_stored()

    assert len(receiver.receive(DEADXACT)) == 1


def test_a_transactional_message_to_an_unknown_queue_is_answered_by_a_final_ack_only(
    receiver: Daemon, remote: RemoteQueueManager
):
    peer = remote.connect(receiver.port, source="127.0.0.2")
    packet = remote.transactional(
        "nosuchqueue",
        remote.new_sequence(),
        1,
        admin=wire.private("admin", "TCP:127.0.0.2"),
        ack_bits=wire.NA,
    )

    peer.send(packet)
    peer.wait(lambda: bool(peer.final_acks), what="the final ack")
    peer.wait_stored()
    peer.read_for(0.5)

    check_final_ack(peer.final_acks[0], packet, 0x8000)
    assert peer.inbox == [], "the admin NACK is one of the insecure five"
    receiver.receive(DEADXACT)


def test_with_the_setting_an_unknown_queue_is_reported_to_the_admin_queue_too(hosts: Hosts):
    daemon = hosts.daemon(delivery={"insecure_nacks": True})
    remote = hosts.remote()
    peer = remote.connect(daemon.port, source="127.0.0.2")
    admin = wire.private("admin", "TCP:127.0.0.2")
    packet = remote.transactional(
        "nosuchqueue", remote.new_sequence(), 1, admin=admin, ack_bits=wire.NA
    )

    peer.send(packet)
    nack = peer.receive()
    peer.wait(lambda: bool(peer.final_acks), what="the final ack")

    assert nack.message_class == 0x8000


def test_a_final_ack_waits_for_the_disk(receiver: Daemon, remote: RemoteQueueManager):
    peer = remote.connect(receiver.port)
    with held_disk(receiver.folder):
        peer.send(remote.transactional("plain", remote.new_sequence(), 1))
        peer.read_for(1.0)
        assert peer.final_acks == []
        assert peer.unstored == {1}

    peer.wait(lambda: bool(peer.final_acks), what="the final ack")
    assert len(receiver.receive(DEADXACT)) == 1


def test_a_refused_message_does_not_stop_the_stream_of_another_queue(
    receiver: Daemon, remote: RemoteQueueManager
):
    peer = remote.connect(receiver.port)
    good, bad = remote.new_sequence(), remote.new_sequence()

    for number in (1, 2, 3):
        peer.send(remote.transactional("plain", bad, number))
        peer.send(remote.transactional("orders", good, number))
    peer.wait_order_ack(good, 3)
    peer.wait(lambda: len(peer.final_acks) == 3, what="three final acks")

    assert receiver.bodies("orders") == [b"1", b"2", b"3"]
    assert sorted(body(message) for message in receiver.receive(DEADXACT)) == [b"1", b"2", b"3"]


def test_the_kept_message_survives_a_kill_and_its_resend(hosts: Hosts):
    daemon = hosts.daemon()
    daemon.create("plain")
    remote = hosts.remote()
    packet = remote.transactional("plain", remote.new_sequence(), 1, body=b"kept")
    peer = remote.connect(daemon.port)
    peer.send(packet)
    peer.wait_stored()

    daemon.restart()
    peer = remote.connect(daemon.port)
    peer.send(packet)
    peer.wait_stored()
    peer.wait(lambda: bool(peer.final_acks), what="the final ack again")

    (dead,) = daemon.receive(DEADXACT)
    assert body(dead) == b"kept"


# --- both ends are daemons ----------------------------------------------------------------


def destination_at(daemon: Daemon, queue: str) -> str:
    return f"DIRECT=TCP:127.0.0.1:{daemon.port}\\private$\\{queue}"


def test_a_transactional_message_to_a_plain_queue_ends_in_both_dead_letter_queues(
    sender: Daemon, receiver: Daemon
):
    sent = sender.send(destination_at(receiver, "plain"), b"misdirected", "--transactional")

    (there,) = receiver.wait_for(DEADXACT, 1)
    (here,) = sender.wait_for(DEADXACT, 1)

    for dead in (there, here):
        assert dead["id"] == sent
        assert body(dead) == b"misdirected"
        assert dead["class"] == "nack_not_transactional_queue"
        assert dead["reason"]
    wait_until(lambda: outgoing(sender, receiver.port) == 0)
    assert receiver.receive("plain") == []
    assert len(receiver.receive(DEADXACT)) == 1
    assert len(sender.receive(DEADXACT)) == 1


def test_without_dead_lettering_it_is_kept_only_at_the_destination(
    sender: Daemon, receiver: Daemon
):
    destination = destination_at(receiver, "plain")
    sent = sender.send(destination, b"misdirected", "--transactional", "--no-dead-letter")
    marker = sender.send(destination, b"marker", "--transactional")

    sender.wait_for(DEADXACT, 1)

    assert [message["id"] for message in sender.receive(DEADXACT)] == [marker]
    assert [message["id"] for message in receiver.receive(DEADXACT)] == [sent, marker]
    wait_until(lambda: outgoing(sender, receiver.port) == 0)


def test_a_transactional_message_to_an_unknown_queue_returns_to_the_sender(
    sender: Daemon, receiver: Daemon
):
    sent = sender.send(destination_at(receiver, "unknown"), b"lost", "--transactional")

    (dead,) = sender.wait_for(DEADXACT, 1)

    assert dead["id"] == sent
    assert dead["class"] == "nack_bad_destination_queue"
    wait_until(lambda: outgoing(sender, receiver.port) == 0)
    sender.receive(DEADXACT)
    receiver.receive(DEADXACT)


def test_after_a_refusal_the_queue_may_be_created_and_the_rest_arrives(
    sender: Daemon, receiver: Daemon
):
    destination = destination_at(receiver, "later")
    sender.send(destination, b"1", "--transactional")
    sender.wait_for(DEADXACT, 1)
    sender.receive(DEADXACT)
    receiver.receive(DEADXACT)

    receiver.create("later", transactional=True)
    for text in (b"2", b"3"):
        sender.send(destination, text, "--transactional")

    receiver.wait_for("later", 2)
    assert receiver.bodies("later") == [b"2", b"3"]


def test_a_plain_message_to_a_transactional_queue_is_refused_with_its_class(
    sender: Daemon, receiver: Daemon, remote: RemoteQueueManager
):
    # For a plain message "delivered" means that the next queue manager acknowledged it (digest
    # 20): the sender has deleted it, and only the admin queue gets a further notification.
    sender.send(destination_at(receiver, "orders"), b"misdirected", "--recoverable")
    peer = remote.connect(receiver.port)
    peer.send(remote.transactional("orders", remote.new_sequence(), 1, body=b"marker"))
    peer.wait_stored()
    wait_until(lambda: outgoing(sender, receiver.port) == 0)

    assert receiver.bodies("orders") == [b"marker"]


def test_a_local_send_of_the_wrong_kind_is_refused_at_once(receiver: Daemon):
    for queue, kind in (
        ("orders", "recoverable"),
        ("orders", "express"),
        ("plain", "transactional"),
    ):
        done = receiver.cli("send", queue, "--body-base64", "eA==", f"--{kind}", check=False)
        assert done.returncode == 4, (queue, kind, done.stderr)
    assert receiver.receive("orders") == receiver.receive("plain") == []
