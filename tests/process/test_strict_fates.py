"""The fates of messages between a daemon and the strict host: final acks, refusals, windows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.process.harness import DEADXACT, JOURNAL, Cleaner, Daemon, Hosts, empty_queues
from tests.process.outgoing import send
from tests.strict_host.encoding import JN, JP, Name
from tests.strict_host.host import StrictHost
from tests.strict_host.manner import POLITE
from tests.strict_host.sockets import SocketHost

DELIVERY = {"resend": ["700ms"], "retry_first": "50ms", "retry_max": "200ms"}
FINAL_WANTED = 2


@pytest.fixture(scope="module")
def shared(shared_hosts: Hosts) -> Daemon:
    # A small window: a host that follows the letter of QB 3.1.7.1 sends 64 messages all the same.
    daemon = shared_hosts.daemon(delivery={**DELIVERY, "window_size": 16})
    daemon.create("plain")
    daemon.create("orders", "purged", transactional=True)
    return daemon


@pytest.fixture
def daemon(shared: Daemon, clean: Cleaner) -> Daemon:
    return clean(shared)


@pytest.fixture
def peer(daemon: Daemon) -> Iterator[SocketHost]:
    peer = SocketHost(manner=replace(POLITE, piggyback=0.3, untidy=True))
    peer.target = daemon.port
    try:
        yield peer
    finally:
        peer.close()
    peer.host.verdict.assert_clean()


def classes(host: StrictHost) -> Counter[int]:
    return Counter(message_class for message_class, _ in host.sending.final_acks)


def test_each_end_of_a_transactional_message_has_its_final_ack(
    daemon: Daemon, peer: SocketHost
) -> None:
    with peer as host:
        for fields in ({"journal": JN}, {"journal": JP}, {"flags": 12 | FINAL_WANTED}, {}):
            host.send_in_order("orders", b"received", **fields)
            host.send_in_order("purged", b"purged", **fields)
            host.send_in_order("nowhere", b"no such queue", **fields)
            host.send_in_order("plain", b"not transactional", **fields)
    peer.wait(lambda host: classes(host)[0x8000] >= 4, "refusals without a queue")
    peer.wait(lambda host: classes(host)[0x8009] >= 4, "refusals by a plain queue")
    peer.wait(lambda host: not host.sending.pending, "order acks")
    assert daemon.bodies("orders") == [b"received"] * 4
    daemon.cli("queue", "purge", "private$\\purged", "--yes")
    peer.wait(lambda host: classes(host)[0x4000] >= 3, "confirmations of receipt")
    peer.wait(lambda host: classes(host)[0xC001] >= 3, "final acks of the purge")
    # Without JN, JP and FA neither a receipt nor a purge is confirmed: QB 3.1.7.2.2.
    found = {
        (message_class, item.draft.message_id)
        for message_class, item in peer.host.sending.final_acks
    }
    assert Counter(message_class for message_class, _ in found) == {
        0x4000: 3,
        0xC001: 3,
        0x8000: 4,
        0x8009: 4,
    }


def test_each_requested_administration_acknowledgment_comes(
    daemon: Daemon, peer: SocketHost
) -> None:
    acks_here = Name(2, number=8)
    with peer as host:
        for acks in range(1, 16):
            fields = {"acks": acks, "admin": acks_here}
            host.send("plain", b"%d" % acks, recoverable=acks % 2 == 0, **fields)
            host.send("orders", b"in no transaction", recoverable=acks % 2 == 1, **fields)
    peer.wait(lambda host: not host.sending.table, "session acks")
    assert len(daemon.bodies("plain")) == 15
    # Eight of the fifteen combinations have each bit.
    peer.wait(lambda host: len(host.sending.admin_acks) >= 24, "acknowledgments")
    found = Counter(each.message_class for each in peer.host.sending.admin_acks)
    assert found == {2: 8, 0x4000: 8, 0x800A: 8}


@pytest.mark.parametrize("message_class", [0x8003, 0x8004, 0x8009])
def test_refused_messages_become_dead_letters_and_the_next_ones_arrive(
    daemon: Daemon, peer: SocketHost, message_class: int
) -> None:
    empty_queues(daemon)  # refused messages of others are kept there as well
    with peer as host:
        host.receiving.refusing["q"] = message_class
        host.has_gaps = True
    send(daemon, peer.destination("q"), b"1", b"2", b"3")
    dead = daemon.wait_for(DEADXACT, 3)
    assert [each["class_number"] for each in dead] == [message_class] * 3
    with peer as host:
        host.receiving.refusing.clear()
    send(daemon, peer.destination("q"), b"4")
    peer.wait(lambda host: host.bodies("q") == [b"4"], "the next message")
    assert len(daemon.bodies(DEADXACT)) == 3


def test_a_journal_keeps_what_the_host_has_confirmed(daemon: Daemon, peer: SocketHost) -> None:
    send(daemon, peer.destination("q"), b"1", b"2", kind="transactional")
    daemon.send(peer.destination("q"), b"3", "--transactional", "--journal")
    peer.wait(lambda host: len(host.bodies("q")) == 3, "messages")
    daemon.wait_for(JOURNAL, 1)
    assert daemon.bodies(JOURNAL) == [b"3"]


def test_messages_to_another_queue_manager_are_not_delivered_here(
    daemon: Daemon, peer: SocketHost
) -> None:
    with peer as host:
        host.send(Name(3, number=16), b"astray", address=bytes(range(16)), recoverable=True)
        host.send("plain", b"here", recoverable=True)
    peer.wait(lambda host: not host.sending.table, "session acks")
    assert daemon.bodies("plain") == [b"here"]


def test_a_message_that_expired_before_its_receipt_does_not_block_the_next(
    daemon: Daemon, peer: SocketHost
) -> None:
    with peer as host:
        host.behave(replace(POLITE, breaks_off=True))
        host.has_gaps = True
    daemon.send(
        peer.destination("q"),
        b"1",
        "--transactional",
        "--time-to-reach-queue",
        "1s",
        "--dead-letter",
    )
    send(daemon, peer.destination("q"), b"2")
    peer.wait(lambda host: len(host.ended) > 1, "two sessions that broke off")
    daemon.wait_for(DEADXACT, 1)
    with peer as host:
        host.behave(POLITE)
    # Its previous number is 0, since nothing precedes it any more: notes 19.
    peer.wait(lambda host: host.bodies("q") == [b"2"], "the next message")
