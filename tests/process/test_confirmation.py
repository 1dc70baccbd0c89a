"""The transaction confirmation process of real daemons, with an independent peer.

QB 3.1.5.6, 3.1.5.7, 3.1.7.2.2, 3.1.7.17; "Transaction Confirmation Process".  Timers are short and
real; the tests assert outcomes and their order, and no times.

"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from qmd.client import NotTaken, connect
from tests.patience import END_S, LOOK_S
from tests.process import wire
from tests.process.data_folder import held_disk
from tests.process.harness import DEADXACT, Daemon, Hosts, body
from tests.process.peer import Peer
from tests.process.remote import Listener, RemoteQueueManager
from tests.process.wire import Message

JOURNAL = "DIRECT=OS:.\\SYSTEM$;JOURNAL"
QUICK = {"resend": ["500ms"], "retry_first": "50ms", "retry_max": "200ms"}
RECEIVED = 0x4000
UNRECEIVED = {
    0xC000: "nack_queue_deleted",
    0xC001: "nack_queue_purged",
    0xC002: "nack_receive_timeout",
    0xC004: "nack_receive_rejected",
}


@pytest.fixture
def daemon(hosts: Hosts) -> Daemon:
    return hosts.daemon(delivery=QUICK)


@pytest.fixture
def listener(remote: RemoteQueueManager) -> Listener:
    return remote.listen()


def wait_until(condition: Callable[[], object], timeout_s: float = END_S) -> None:
    """Poll until the condition holds; the polls take the time."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(LOOK_S)


def shown(daemon: Daemon, destination: str) -> dict[str, Any]:
    (facts,) = daemon.json("outgoing", "show", destination)
    return facts


def awaiting(daemon: Daemon, destination: str) -> tuple[int, int]:
    """Return the numbers of messages on their way, and of those that wait for their receipt."""
    facts = shown(daemon, destination)
    return facts["messages"], facts["awaiting"]


def order_ack(peer: Peer, message: Message) -> None:
    assert message.transaction is not None
    peer.order_ack(message.transaction.sequence_id, message.transaction.number)
    peer.wait_stored()


def send(daemon: Daemon, destination: str, content: bytes, *options: str) -> str:
    return daemon.send(destination, content, "--transactional", "--dead-letter", *options)


# --- the daemon is the source ---


def test_an_accepted_message_is_kept_and_counted_until_it_is_received(
    daemon: Daemon, listener: Listener
):
    destination = listener.destination("q")
    sent = send(daemon, destination, b"1", "--label", "why")
    daemon.send(destination, b"silent", "--transactional")
    peer = listener.accept()
    first, second = peer.receive_many(2)

    order_ack(peer, second)

    assert awaiting(daemon, destination) == (0, 1)
    facts = shown(daemon, destination)
    (status,) = daemon.json("status")
    assert status["bytes"] == facts["awaiting_bytes"] >= len(first.raw)
    (waiting,) = daemon.json("outgoing", "awaiting", destination)
    assert (waiting["id"], waiting["label"], waiting["given_up_in_s"]) == (sent, "why", None)
    assert "the receipt is not confirmed yet" in facts["explanation"]

    peer.final_ack(first, RECEIVED)
    peer.wait_stored()

    assert awaiting(daemon, destination) == (0, 0)
    (status,) = daemon.json("status")
    assert status["bytes"] == 0
    assert daemon.peek(DEADXACT) == []


@pytest.mark.parametrize("overtaking", [False, True])
def test_each_final_ack_ends_its_message_in_its_place(
    daemon: Daemon, listener: Listener, overtaking: bool
):
    """Send the final ack after the order ack, or before it: then it counts as both."""
    destination = listener.destination("q")
    classes = [RECEIVED, *UNRECEIVED]
    for message_class in classes:
        send(daemon, destination, b"%04x" % message_class, "--journal")
    peer = listener.accept()
    messages = peer.receive_many(len(classes))
    if not overtaking:
        order_ack(peer, messages[-1])

    for message, message_class in zip(messages, classes, strict=True):
        peer.final_ack(message, message_class)
    peer.wait_stored()

    assert awaiting(daemon, destination) == (0, 0)
    assert daemon.bodies(JOURNAL) == [b"4000"]
    dead = {body(message): message for message in daemon.receive(DEADXACT)}
    assert {content: message["class"] for content, message in dead.items()} == {
        b"%04x" % message_class: name for message_class, name in UNRECEIVED.items()
    }
    assert all(message["reason"] for message in dead.values())


def test_without_dead_lettering_the_message_is_deleted(daemon: Daemon, listener: Listener):
    destination = listener.destination("q")
    daemon.send(destination, b"1", "--transactional", "--no-dead-letter", "--journal")
    peer = listener.accept()
    message = peer.receive()
    order_ack(peer, message)
    assert awaiting(daemon, destination) == (0, 1)

    peer.final_ack(message, 0xC001)
    peer.wait_stored()

    assert awaiting(daemon, destination) == (0, 0)
    assert daemon.peek(DEADXACT) == daemon.peek(JOURNAL) == []


def test_a_final_ack_has_no_bit_before_its_consequence_is_on_disk(
    daemon: Daemon, listener: Listener
):
    send(daemon, listener.destination("q"), b"1")
    peer = listener.accept()
    message = peer.receive()
    order_ack(peer, message)
    with held_disk(daemon.folder):
        peer.final_ack(message, RECEIVED)
        peer.read_for(1.0)
        assert peer.unstored == {2}

    peer.wait_stored()
    assert awaiting(daemon, listener.destination("q")) == (0, 0)


def test_after_a_kill_between_order_ack_and_final_ack_it_waits_and_asks_again(
    daemon: Daemon, listener: Listener
):
    destination = listener.destination("q")
    send(daemon, destination, b"1")
    send(daemon, destination, b"2")
    first = listener.accept()
    one, two = first.receive_many(2)
    order_ack(first, two)

    daemon.restart()

    # No message is to be sent, and the daemon connects nevertheless: the peer with the
    # answer may not be able to connect to it.
    second = listener.accept()
    assert awaiting(daemon, destination) == (0, 2)
    second.final_ack(one, RECEIVED)
    second.final_ack(two, 0xC001)
    second.wait_stored()
    assert second.inbox == []
    daemon.restart()
    assert awaiting(daemon, destination) == (0, 0)
    assert daemon.bodies(DEADXACT) == [b"2"]


def test_killed_while_final_acks_come_every_message_ends_in_one_place(
    daemon: Daemon, listener: Listener
):
    destination = listener.destination("q")
    numbers = [b"%d" % number for number in range(40)]
    daemon.send_all(destination, numbers, "--transactional", "--dead-letter", "--journal")
    peer = listener.accept()
    messages = peer.receive_many(len(numbers))
    classes = {message.message_id: (RECEIVED, 0xC004)[index % 2] for index, message in
               enumerate(messages)}  # fmt: skip
    for message in messages[:20]:
        peer.final_ack(message, classes[message.message_id])
    daemon.restart()
    again = listener.accept()
    again.auto_ack = True

    for message in messages:  # the first half possibly for the second time
        again.final_ack(message, classes[message.message_id])
    again.wait_stored()

    assert awaiting(daemon, destination) == (0, 0)
    assert sorted(daemon.bodies(JOURNAL), key=int) == numbers[::2]
    assert sorted(map(body, daemon.receive(DEADXACT)), key=int) == numbers[1::2]


@pytest.mark.parametrize(
    ("delay", "options"),
    [
        ("", ["--time-to-be-received", "2s"]),
        ("", ["--time-to-be-received", "2s", "--time-to-reach-queue", "1s"]),
        ("1s", ["--time-to-be-received", "2s", "--time-to-reach-queue", "30s"]),
    ],
)
def test_unconfirmed_after_its_interval_it_is_a_dead_letter_though_the_daemon_was_killed_meanwhile(
    hosts: Hosts, remote: RemoteQueueManager, delay: str, options: list[str]
):
    daemon = hosts.daemon(delivery={**QUICK, "xact_delay_receive_nack": delay})
    listener = remote.listen()
    destination = listener.destination("q")
    # A time-to-be-received is enough to request confirmation.
    sent = daemon.send(destination, b"1", "--transactional", *options)
    send(daemon, destination, b"for ever")
    peer = listener.accept()
    messages = peer.receive_many(2)
    order_ack(peer, messages[1])
    assert awaiting(daemon, destination) == (0, 2)

    daemon.restart()
    (dead,) = daemon.wait_for(DEADXACT, 1)

    assert (dead["id"], dead["class"]) == (sent, "nack_receive_timeout")
    assert "was not confirmed" in dead["reason"]
    assert awaiting(daemon, destination) == (0, 1)
    # Late, and recorded; the dead letter stays.
    again = listener.accept()
    again.final_ack(messages[0], RECEIVED)
    again.wait_stored()
    assert len(daemon.peek(DEADXACT)) == 1
    assert "confirmed_too_late" in daemon.tail()


def test_an_operator_can_give_up_waiting(daemon: Daemon, listener: Listener):
    destination = listener.destination("q")
    send(daemon, destination, b"1")
    peer = listener.accept()
    order_ack(peer, peer.receive())

    (reported,) = daemon.json("outgoing", "give-up", destination, "--yes")

    assert reported == {"destination": destination, "given_up": 1}
    assert awaiting(daemon, destination) == (0, 0)
    (dead,) = daemon.receive(DEADXACT)
    assert dead["class"] == "nack_receive_timeout"
    assert "operator" in dead["reason"]


def test_the_switch_makes_every_transactional_message_ask(hosts: Hosts, remote: RemoteQueueManager):
    daemon = hosts.daemon(delivery={**QUICK, "xact_dead_letter_always": True})
    listener = remote.listen()
    destination = listener.destination("q")
    daemon.send(destination, b"1", "--transactional", "--no-dead-letter")
    peer = listener.accept()
    message = peer.receive()

    assert message.flags & wire.JN
    order_ack(peer, message)
    assert awaiting(daemon, destination) == (0, 1)


# --- the daemon is the destination ---


def final(message: Message) -> tuple[int, int, tuple[bytes, int]]:
    return message.message_class, message.order_body()[1], message.final_body()


def accepted(peer: Peer, sequence: int, *numbers: int, **properties: object) -> None:
    for number in numbers:
        peer.send(
            peer.owner.transactional(
                "orders", sequence, number, message_id=100 + number, **properties
            )
        )
    peer.wait_stored()


@pytest.mark.parametrize("asking", [{"dead_letter": True}, {"journal": True}])
def test_each_end_in_a_queue_is_reported_to_the_source(
    daemon: Daemon, remote: RemoteQueueManager, asking: dict[str, bool]
):
    daemon.create("orders", transactional=True)
    sequence = remote.new_sequence()
    peer = remote.connect(daemon.port)
    accepted(peer, sequence, 1, 2, **asking)
    accepted(peer, sequence, 3, time_to_be_received=1, **asking)

    daemon.cli("receive", "orders")
    (reported,) = daemon.json("reject", "orders", "--reason", "no such customer", "--yes")
    peer.wait(lambda: len(peer.final_acks) == 3, what="three final acks")

    assert reported["id"].endswith("\\102")
    assert sorted(map(final, peer.final_acks)) == [
        (RECEIVED, 1, (remote.guid, 101)),
        (0xC002, 3, (remote.guid, 103)),
        (0xC004, 2, (remote.guid, 102)),
    ]
    if asking.get("dead_letter"):  # the source has processed it
        assert daemon.peek(DEADXACT) == []
    else:
        assert [body(message) for message in daemon.peek(DEADXACT)] == [b"2"]


def test_a_purge_and_a_deletion_are_reported_to_the_source(
    daemon: Daemon, remote: RemoteQueueManager
):
    daemon.create("orders", transactional=True)
    sequence = remote.new_sequence()
    peer = remote.connect(daemon.port)
    accepted(peer, sequence, 1, dead_letter=True)
    daemon.cli("queue", "purge", "orders", "--yes")
    accepted(peer, sequence, 2, dead_letter=True)
    daemon.cli("queue", "delete", "orders", "--yes")

    peer.wait(lambda: len(peer.final_acks) == 2, what="two final acks")

    assert [final(ack)[:2] for ack in peer.final_acks] == [(0xC001, 1), (0xC000, 2)]
    assert daemon.peek(DEADXACT) == []


def test_a_final_ack_survives_a_kill_and_comes_with_the_next_session(
    daemon: Daemon, remote: RemoteQueueManager
):
    daemon.create("orders", transactional=True)
    sequence = remote.new_sequence()
    peer = remote.connect(daemon.port)
    accepted(peer, sequence, 1, 2, dead_letter=True)
    peer.close()
    daemon.cli("receive", "orders", "--count", "2")

    daemon.restart()
    again = remote.connect(daemon.port)
    again.wait(lambda: len(again.final_acks) == 2, what="the final acks")

    assert [final(ack)[:2] for ack in again.final_acks] == [(RECEIVED, 1), (RECEIVED, 2)]
    wait_until(lambda: not sum(row["messages"] for row in daemon.json("outgoing", "list")))
    again.close()
    daemon.terminate()  # a kill may restore released messages
    daemon.start()
    third = remote.connect(daemon.port)
    third.read_for(0.5)
    assert third.final_acks == []


def test_without_a_request_no_final_ack_is_sent(daemon: Daemon, remote: RemoteQueueManager):
    daemon.create("orders", transactional=True)
    peer = remote.connect(daemon.port)
    accepted(peer, remote.new_sequence(), 1)
    daemon.cli("receive", "orders")
    peer.read_for(0.5)

    assert peer.final_acks == peer.inbox == []


@pytest.mark.parametrize("kind", ["express", "recoverable", "transactional"])
def test_the_administration_queue_is_notified_of_each_requested_end(
    daemon: Daemon, remote: RemoteQueueManager, kind: str
):
    daemon.create("orders", transactional=kind == "transactional")
    sequence = remote.new_sequence()
    peer = remote.connect(daemon.port, source="127.0.0.2")

    def deliver(number: int, **properties: Any) -> None:
        properties = {
            "message_id": 100 + number,
            "admin": wire.private("admin", "TCP:127.0.0.2"),
            "ack_bits": wire.PR | wire.NR,
            **properties,
        }
        if kind == "transactional":
            peer.send(remote.transactional("orders", sequence, number, **properties))
        else:
            peer.send(remote.message("orders", b"%d" % number, recoverable=kind == "recoverable",
                                     **properties))  # fmt: skip
        peer.wait_acknowledged()
        wait_until(lambda: daemon.count("orders") == 1)

    deliver(1)
    daemon.cli("receive", "orders")
    deliver(2)
    daemon.cli("reject", "orders", "--yes")
    deliver(3)
    daemon.cli("queue", "purge", "orders", "--yes")
    deliver(4, ack_bits=0)
    daemon.cli("receive", "orders")
    reported = peer.receive_many(3)
    peer.read_for(0.5)

    assert peer.inbox == []
    assert {each.message_class: (each.correlation[16:], each.body) for each in reported} == {
        RECEIVED: ((101).to_bytes(4, "little"), b""),
        0xC004: ((102).to_bytes(4, "little"), b"2"),
        0xC001: ((103).to_bytes(4, "little"), b"3"),
    }
    assert all(each.recoverable == (kind != "express") for each in reported)
    assert all(each.correlation[:16] == remote.guid for each in reported)


# --- both ends are daemons ---


def test_both_dead_letter_queues_and_the_journal_agree_about_where_each_message_ended(
    hosts: Hosts,
):
    source = hosts.daemon(delivery=QUICK)
    target = hosts.daemon(delivery=QUICK)
    target.create("orders", transactional=True)
    destination = f"DIRECT=TCP:127.0.0.1:{target.port}\\private$\\orders"
    for content in (b"received", b"rejected"):
        send(source, destination, content, "--journal")
    target.wait_for("orders", 2)
    target.cli("receive", "orders")
    target.cli("reject", "orders", "--yes")
    send(source, destination, b"late", "--time-to-be-received", "1s")

    wait_until(lambda: awaiting(source, destination) == (0, 0))

    assert source.bodies(JOURNAL) == [b"received"]
    assert [(body(dead), dead["class"]) for dead in source.peek(DEADXACT)] == [
        (b"rejected", "nack_receive_rejected"),
        (b"late", "nack_receive_timeout"),
    ]
    assert target.peek(DEADXACT) == []


def test_with_kills_of_both_daemons_every_message_ends_in_one_place(hosts: Hosts):
    """Half of the messages are received, half rejected, and some expire; each is journaled or a
    dead letter at its source, and the two sides agree.
    """
    source, target = (hosts.daemon(delivery=QUICK) for _ in range(2))
    target.create("orders", transactional=True)
    destination = f"DIRECT=TCP:127.0.0.1:{target.port}\\private$\\orders"
    numbers = [b"%d" % number for number in range(120)]
    received: set[bytes] = set()
    rejected: set[bytes] = set()
    done = threading.Event()

    async def work() -> None:
        async with connect(target.folder / "qmd.sock", reconnect_s=60) as qm:
            while not done.is_set():
                try:
                    async with await qm.take("orders", 3, timeout_s=0.2) as taken:
                        if not taken:
                            continue
                        contents = {message.body for message in taken.messages}
                        if int(taken.messages[0].body) % 2:
                            await taken.reject("odd")
                            rejected.update(contents)
                        else:
                            await taken.remove()
                            received.update(contents)
                except NotTaken:
                    pass  # they are in the queue again

    worker = threading.Thread(target=asyncio.run, args=(work(),), daemon=True)
    worker.start()
    options = ("--transactional", "--dead-letter", "--journal")
    for round_, daemon in enumerate((source, target) * 3):
        part = numbers[20 * round_ : 20 * round_ + 20]
        source.send_all(destination, part[:15], *options)
        source.send_all(destination, part[15:], *options, "--time-to-be-received", "1s")
        daemon.restart()
    wait_until(lambda: awaiting(source, destination) == (0, 0), 120)
    done.set()
    worker.join(30)

    journaled, dead = source.bodies(JOURNAL), source.peek(DEADXACT)
    unreceived = {body(message): message["class"] for message in dead}
    assert sorted(journaled + list(unreceived), key=int) == numbers
    assert len(dead) == len(unreceived)
    # Given up here before the final ack arrived: it may be recent, or lost in a kill.
    late = {each for each, name in unreceived.items() if name != "nack_receive_rejected"}
    assert rejected <= unreceived.keys()
    assert set(journaled) == received - late
    assert unreceived.keys() - late == rejected - late
    assert target.peek(DEADXACT) == []
