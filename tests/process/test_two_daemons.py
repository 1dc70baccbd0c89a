"""Two real daemons, a connection that is cut, and SIGKILL: exactly once, in order."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from tests.patience import END_S, LOOK_S
from tests.process.harness import Daemon, Hosts, body

QUICK: dict[str, Any] = {
    "resend": ["500ms", "1s"],
    "retry_first": "20ms",
    "retry_max": "100ms",
}


@pytest.fixture
def pair(hosts: Hosts) -> tuple[Daemon, Daemon]:
    first, second = hosts.daemon(delivery=QUICK), hosts.daemon(delivery=QUICK)
    return first, second


def texts(first: int, last: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, last + 1)]


def direct(daemon: Daemon, queue: str) -> str:
    return f"DIRECT=TCP:127.0.0.1:{daemon.port}\\private$\\{queue}"


def wait_count(daemon: Daemon, queue: str, count: int, timeout_s: float = END_S) -> int:
    """Poll until `count` messages are in a queue; return their number."""
    deadline = time.monotonic() + timeout_s
    while (found := daemon.count(queue)) < count and time.monotonic() < deadline:
        time.sleep(LOOK_S)
    return found


def wait_sent(daemon: Daemon, timeout_s: float = END_S) -> None:
    """Poll until no message is on its way any more."""
    deadline = time.monotonic() + timeout_s
    while any(row["messages"] for row in daemon.json("outgoing", "list")):
        assert time.monotonic() < deadline, daemon.json("outgoing", "list")
        time.sleep(LOOK_S)


def test_transactional_messages_arrive_once_and_in_order_with_any_kill_and_cut(
    hosts: Hosts, pair: tuple[Daemon, Daemon]
):
    sender, receiver = pair
    receiver.create("orders", transactional=True)
    proxy = hosts.proxy(receiver.port)
    destination = proxy.destination("orders")
    sent: list[bytes] = []

    def send(count: int) -> None:
        batch = texts(len(sent) + 1, len(sent) + count)
        sender.send_all(destination, batch, "--transactional")
        sent.extend(batch)

    send(500)
    proxy.cut()
    send(300)
    receiver.restart()
    send(300)
    sender.restart()
    proxy.cut()
    receiver.kill()
    send(300)
    sender.kill()
    receiver.start()
    sender.start()
    send(300)
    proxy.cut()
    receiver.restart()
    sender.restart()
    send(300)

    wait_count(receiver, "orders", len(sent))
    kept = receiver.receive("orders")
    assert [body(message) for message in kept] == sent == texts(1, 2000)
    assert len({message["id"] for message in kept}) == 2000
    wait_sent(sender)
    assert receiver.receive("orders") == []


def test_kills_while_messages_are_in_transit(hosts: Hosts, pair: tuple[Daemon, Daemon]):
    sender, receiver = pair
    receiver.create("orders", transactional=True)
    proxy = hosts.proxy(receiver.port)
    sender.cli("outgoing", "list")
    sender.send_all(proxy.destination("orders"), texts(1, 4000), "--transactional")

    # Each kill follows a little more traffic, in the middle of the transmission.
    for victim in (receiver, sender, receiver, sender, receiver):
        proxy.wait_passed(60_000)
        victim.restart()
        proxy.cut()

    wait_count(receiver, "orders", 4000)
    assert [body(message) for message in receiver.receive("orders")] == texts(1, 4000)
    wait_sent(sender)


def test_recoverable_messages_arrive_once_with_any_kill_and_cut(
    hosts: Hosts, pair: tuple[Daemon, Daemon]
):
    sender, receiver = pair
    receiver.create("plain")
    proxy = hosts.proxy(receiver.port)
    destination = proxy.destination("plain")

    sender.send_all(destination, texts(1, 400), "--recoverable")
    receiver.restart()
    sender.send_all(destination, texts(401, 800), "--recoverable")
    proxy.cut()
    sender.restart()
    sender.send_all(destination, texts(801, 1000), "--recoverable")
    receiver.restart()

    wait_count(receiver, "plain", 1000)
    wait_sent(sender)
    assert sorted(int(body(message)) for message in receiver.receive("plain")) == list(
        range(1, 1001)
    )


def test_express_messages_arrive_at_most_once_and_all_of_them_without_a_crash(
    hosts: Hosts, pair: tuple[Daemon, Daemon]
):
    sender, receiver = pair
    receiver.create("plain")
    proxy = hosts.proxy(receiver.port)

    for first in range(1, 501, 100):
        sender.send_all(proxy.destination("plain"), texts(first, first + 99), "--express")
        proxy.cut()

    wait_count(receiver, "plain", 500)
    wait_sent(sender, 60)
    assert sorted(int(body(message)) for message in receiver.receive("plain")) == list(
        range(1, 501)
    )


def test_both_directions_and_two_queues_at_once(hosts: Hosts, pair: tuple[Daemon, Daemon]):
    left, right = pair
    for daemon in pair:
        daemon.create("orders", "bills", transactional=True)
    to_right, to_left = hosts.proxy(right.port), hosts.proxy(left.port)
    errors: list[BaseException] = []

    def feed(daemon: Daemon, destination: str) -> None:
        try:
            daemon.send_all(destination, texts(1, 1000), "--transactional")
        except BaseException as error:
            errors.append(error)

    threads = [
        threading.Thread(target=feed, args=(daemon, proxy.destination(queue)))
        for daemon, proxy in ((left, to_right), (right, to_left))
        for queue in ("orders", "bills")
    ]
    for thread in threads:
        thread.start()
    for proxy in (to_right, to_left, to_right, to_left):
        proxy.cut_after(50_000)
        proxy.wait_cut()
    for thread in threads:
        thread.join()
    assert errors == []
    left.restart()
    right.restart()

    for daemon in pair:
        for queue in ("orders", "bills"):
            wait_count(daemon, queue, 1000)
            assert [body(message) for message in daemon.receive(queue)] == texts(1, 1000)
    for daemon in pair:
        wait_sent(daemon)


def test_a_receiver_that_was_down_for_long_gets_all_messages_after_its_start(
    pair: tuple[Daemon, Daemon],
):
    sender, receiver = pair
    receiver.create("orders", transactional=True)
    receiver.kill()

    sender.send_all(direct(receiver, "orders"), texts(1, 1500), "--transactional")
    sender.restart()
    receiver.start()

    wait_count(receiver, "orders", 1500)
    assert [body(message) for message in receiver.receive("orders")] == texts(1, 1500)
    wait_sent(sender)


def test_a_receiver_that_lost_its_state_continues_with_the_messages_in_the_queue(
    hosts: Hosts, pair: tuple[Daemon, Daemon]
):
    # The crash scenario of the source document on the EOD algorithm: previous 0 for the first.
    sender, receiver = pair
    receiver.create("orders", transactional=True)
    proxy = hosts.proxy(receiver.port)
    destination = proxy.destination("orders")
    sender.send_all(destination, texts(1, 10), "--transactional")
    wait_count(receiver, "orders", 10)
    receiver.kill()
    sender.send_all(destination, texts(11, 20), "--transactional")

    new = hosts.daemon(delivery=QUICK)
    new.create("orders", transactional=True)
    proxy.retarget(new.port)

    wait_count(new, "orders", 10)
    kept = [body(message) for message in new.receive("orders")]
    # The last acknowledgment of the first ten may be lost.
    assert kept[-10:] == texts(11, 20)
    assert kept == texts(21 - len(kept), 20)
    wait_sent(sender)


def test_receives_during_the_arrival_lose_and_repeat_nothing(
    hosts: Hosts, pair: tuple[Daemon, Daemon]
):
    sender, receiver = pair
    receiver.create("orders", transactional=True)
    proxy = hosts.proxy(receiver.port)
    feeder = threading.Thread(
        target=sender.send_all,
        args=(proxy.destination("orders"), texts(1, 1500), "--transactional"),
    )
    feeder.start()
    got: list[bytes] = []
    deadline = time.monotonic() + END_S
    while len(got) < 1500 and time.monotonic() < deadline:
        got += receiver.bodies("orders")
        if len(got) > 500 and proxy.connections < 3:
            proxy.cut()
    feeder.join()

    assert got == texts(1, 1500)


def test_an_acknowledgment_message_returns_to_a_local_admin_queue(
    pair: tuple[Daemon, Daemon],
):
    sender, receiver = pair
    receiver.create("plain")
    sender.create("answers")
    sent = sender.send(
        direct(receiver, "plain"), b"misdirected", "--transactional",
        "--admin-queue", direct(sender, "answers"), "--acknowledge", "full-reach-queue",
    )  # fmt: skip

    (answer,) = sender.wait_for("answers", 1)

    assert answer["class"] == "nack_not_transactional_queue"
    assert answer["correlation_id"] == sent
    assert body(answer) == b"misdirected"


def test_a_daemon_that_sends_to_its_own_address_delivers_to_itself(pair: tuple[Daemon, Daemon]):
    daemon, _ = pair
    daemon.create("orders", transactional=True)

    daemon.send_all(direct(daemon, "orders"), texts(1, 20), "--transactional")

    wait_count(daemon, "orders", 20)
    assert [body(message) for message in daemon.receive("orders")] == texts(1, 20)
    wait_sent(daemon)
