"""Release of sent messages: session acks, order acks and final acks.

The peer is the acceptor; the daemon connects to it because of `qmd send`.
QB 3.1.5.5, 3.1.5.6, 3.1.7.1; digest 15.
"""

from __future__ import annotations

import pytest

from tests.process import wire
from tests.process.connection import Closed
from tests.process.data_folder import held_disk
from tests.process.harness import DEADXACT, Daemon, Hosts
from tests.process.outgoing import QUICK, SLOW, place, send, sequence_of
from tests.process.remote import Listener, RemoteQueueManager


@pytest.fixture(scope="module")
def shared(shared_hosts: Hosts) -> Daemon:
    """Start a daemon without timed retransmission: a duplicate must have another cause."""
    daemon = shared_hosts.daemon(delivery=SLOW)
    daemon.create("here")
    return daemon


@pytest.fixture
def listener(remote: RemoteQueueManager) -> Listener:
    return remote.listen()


# --- what a session ack releases ----------------------------------------------------------


def test_only_its_bit_releases_a_recoverable_message(daemon: Daemon, listener: Listener):
    destination = listener.destination("q")
    send(daemon, destination, *[b"%d" % n for n in range(6)], kind="recoverable")
    peer = listener.accept(auto_ack=False)
    peer.receive_many(6)

    # All four are counted; 1, 2 and 4 are stored.
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


def test_an_acknowledged_message_is_deleted_from_the_outgoing_queue(
    daemon: Daemon, listener: Listener
):
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


def test_a_session_without_acknowledgments_is_closed_and_retried(hosts: Hosts):
    # The wire's AckTimeout is at least 20 s; the daemon's own limit is a setting.
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


def test_when_all_messages_are_order_acknowledged_a_new_sequence_begins(
    daemon: Daemon, listener: Listener
):
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
    # MQ 2.2.20.4: a bit means "persisted".  The persisted fact is that the sender may release.
    send(daemon, listener.destination("q"), b"1", b"2")
    peer = listener.accept()
    sequence = sequence_of(peer.receive_many(2)[0])
    with held_disk(daemon.folder):
        peer.order_ack(sequence, 2)
        peer.read_for(1.0)
        assert peer.unstored == {1}

    peer.wait_stored()


def test_a_message_released_by_an_acknowledged_order_ack_is_never_sent_again(hosts: Hosts):
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


def test_an_order_ack_releases_only_the_messages_that_it_covers(daemon: Daemon, listener: Listener):
    send(daemon, listener.destination("q"), b"1", b"2", b"3", b"4")
    peer = listener.accept()
    sequence = sequence_of(peer.receive_many(4)[0])
    peer.order_ack(sequence, 2)
    peer.wait_stored()
    peer.close()

    second = listener.accept()
    again = second.receive_many(2)

    # The first message in the queue is sent with previous 0 (digest 15.2).
    assert [(message.body, place(message)) for message in again] == [(b"3", (3, 0)), (b"4", (4, 3))]
    second.read_for(0.3)
    assert second.inbox == []


@pytest.mark.parametrize(
    "wrong",
    ["another sequence", "an older sequence", "an absurd number of another sequence", "number 0"],
)
def test_an_invalid_order_ack_releases_nothing(daemon: Daemon, listener: Listener, wrong: str):
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


def test_an_order_ack_of_unsent_messages_has_no_effect(daemon: Daemon, listener: Listener):
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
    # The next message is linked around it.
    assert [(message.body, place(message)) for message in again] == [(b"1", (1, 0)), (b"3", (3, 1))]
    second.order_ack(sequence, 3)
    second.wait_stored()


def test_a_final_ack_has_no_bit_before_the_dead_letter_is_on_disk(
    daemon: Daemon, listener: Listener
):
    send(daemon, listener.destination("q"), b"1")
    peer = listener.accept()
    message = peer.receive()
    with held_disk(daemon.folder):
        peer.final_ack(message, 0x8009)
        peer.read_for(1.0)
        assert peer.unstored == {1}

    peer.wait_stored()
    assert len(daemon.receive(DEADXACT)) == 1


def test_a_negative_final_ack_of_a_message_without_dead_lettering_deletes_it(
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


def test_a_final_ack_for_a_message_of_another_source_changes_nothing(
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
