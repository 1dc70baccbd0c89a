"""Conversations of a real daemon with the strict host, which judges each byte and each rule."""

from __future__ import annotations

import ast
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.patience import END_S, LOOK_S
from tests.process.harness import Cleaner, Daemon, Hosts
from tests.process.outgoing import send
from tests.strict_host.encoding import Name
from tests.strict_host.manner import POLITE, Manner
from tests.strict_host.sockets import SocketHost

DELIVERY = {"resend": ["700ms"], "retry_first": "50ms", "retry_max": "200ms"}

HostMaker = Callable[..., SocketHost]


@pytest.fixture(scope="module")
def shared(shared_hosts: Hosts) -> Daemon:
    daemon = shared_hosts.daemon(delivery=DELIVERY)
    daemon.create("plain")
    daemon.create("orders", transactional=True)
    return daemon


@pytest.fixture
def daemon(shared: Daemon, clean: Cleaner) -> Daemon:
    return clean(shared)


@pytest.fixture
def strict(daemon: Daemon) -> Iterator[HostMaker]:
    """Return a maker of strict hosts; all of them must find the daemon without fault."""
    made: list[SocketHost] = []

    def make(manner: Manner = POLITE, seed: int = 1) -> SocketHost:
        host = SocketHost(manner=manner, seed=seed)
        made.append(host)
        host.target = daemon.port
        return host

    try:
        yield make
    finally:
        for host in made:
            host.close()
    for host in made:
        host.host.verdict.assert_clean()


def test_the_strict_host_shares_no_code_with_qmd_and_its_other_peers() -> None:
    folder = Path(__file__).parents[1] / "strict_host"
    imported: set[str] = set()
    for path in folder.glob("*.py"):
        if path.stem in ("walk", "__main__"):  # they start daemons
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                imported |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                imported.add(str(node.module))
    own = {name for name in imported if name.partition(".")[0] not in sys.stdlib_module_names}
    allowed = ("tests.strict_host", "tests.simulation.", "tests.patience")
    assert [name for name in sorted(own) if not name.startswith(allowed)] == []


@pytest.mark.parametrize(
    ("cut", "untidy"),
    [("whole", True), ("joined", False), ("random", True), ("bytes", False)],
)
def test_messages_go_both_ways(daemon: Daemon, strict: HostMaker, cut: str, untidy: bool) -> None:
    peer = strict(replace(POLITE, cut=cut, untidy=untidy, piggyback=0.5))
    bodies = [b"%d" % number for number in range(70)]
    send(daemon, peer.destination("q"), *bodies)
    for kind in ("express", "recoverable"):
        send(daemon, peer.destination(kind), *bodies, kind=kind)
    with peer as host:
        for body in bodies:
            host.send_in_order("orders", body)
            host.send("plain", body, recoverable=True)
    peer.wait(lambda host: len(host.bodies("q")) == 70, "messages of the daemon")
    peer.wait(lambda host: len(host.bodies("express")) == 70, "express messages")
    peer.wait(lambda host: len(host.bodies("recoverable")) == 70, "recoverable messages")
    peer.wait(lambda host: not host.sending.table, "acknowledgments of the daemon")
    wait_idle(daemon, peer)
    assert peer.host.bodies("q") == bodies
    assert daemon.bodies("orders") == bodies
    assert daemon.bodies("plain") == bodies


@pytest.mark.parametrize(
    "change",
    [
        {"window": 1},
        {"window": 2, "untidy": True},
        {"bits_left": 0.5, "ack_after": 3},
        {"order_ack_copies": 2, "stale_order_acks": True},
        {"order_ack_delay_s": 0.3, "final_ack_delay_s": 0.1},
        {"names_by_guid": True, "piggyback": 1.0},
        {"system": 0x0510},
    ],
    ids=str,
)
def test_a_stream_of_the_daemon_survives_each_manner(
    daemon: Daemon, strict: HostMaker, change: dict[str, Any]
) -> None:
    peer = strict(replace(POLITE, **change))
    bodies = [b"%d" % number for number in range(100)]
    send(daemon, peer.destination("q"), *bodies[:50])
    send(daemon, peer.destination("express"), *bodies, kind="express")
    peer.wait(lambda host: len(host.bodies("q")) == 50, "the first half")
    peer.close_sessions()
    send(daemon, peer.destination("q"), *bodies[50:])
    peer.wait(lambda host: host.bodies("q") == bodies, "the second half")
    peer.wait(lambda host: host.bodies("express") == bodies, "express messages")
    wait_idle(daemon, peer)


def wait_idle(daemon: Daemon, peer: SocketHost) -> None:
    """Wait until the daemon has nothing left for the host."""
    deadline = time.monotonic() + END_S
    while any(queue["messages"] for queue in outgoing(daemon, peer)):
        assert time.monotonic() < deadline, (outgoing(daemon, peer), peer.report())
        time.sleep(LOOK_S)


def outgoing(daemon: Daemon, peer: SocketHost) -> list[dict[str, object]]:
    rows = daemon.json("outgoing", "list")
    return [row for row in rows if f":{peer.port}" in str(row["destination"])]


def test_a_zero_window_in_the_parameters_counts_as_one(daemon: Daemon, strict: HostMaker) -> None:
    peer = strict(replace(POLITE, window=0, ack_after=1))
    send(daemon, peer.destination("q"), b"1", b"2", b"3")
    peer.wait(lambda host: host.bodies("q"), "the first message")
    with peer as host:
        host.behave(POLITE)  # 0 is legal in ConnectionParameters only: QB 2.2.2.1, MQ 2.2.20.4
    peer.wait(lambda host: host.bodies("q") == [b"1", b"2", b"3"], "the others")


def test_a_session_ack_that_acknowledges_nothing_changes_nothing(
    daemon: Daemon, strict: HostMaker
) -> None:
    peer = strict(replace(POLITE, sleeps=True))
    send(daemon, peer.destination("q"), b"1", b"2")
    peer.wait(lambda host: len(host.bodies("q")) == 2, "messages")
    with peer as host:
        for _ in range(5):
            host.sessions[0].acknowledge_nothing()
    (row,) = outgoing(daemon, peer)
    assert row["messages"] == 2
    with peer as host:
        host.behave(POLITE)
    wait_idle(daemon, peer)


def test_messages_without_order_acks_are_sent_again_until_one_comes(
    daemon: Daemon, strict: HostMaker
) -> None:
    peer = strict(replace(POLITE, order_acks_withheld=True))
    send(daemon, peer.destination("q"), b"1", b"2", b"3")
    peer.wait(
        lambda host: [len(times) for times in host.receiving.times.values()] >= [3] * 3,
        "two resends of each",
    )
    (row,) = outgoing(daemon, peer)
    assert row["messages"] == 3
    with peer as host:
        host.behave(POLITE)
    wait_idle(daemon, peer)
    assert peer.host.bodies("q") == [b"1", b"2", b"3"]
    # All in their order each time, on the session that lives: QB 3.1.6.5.
    assert (
        len({session for each in peer.host.receiving.sessions_of.values() for session in each}) == 1
    )


def test_the_sequence_of_a_restarted_host_goes_on(daemon: Daemon, strict: HostMaker) -> None:
    peer = strict(replace(POLITE, piggyback=0.5))
    with peer as host:
        for number in range(40):
            host.send_in_order("orders", b"%d" % number)
        host.has_gaps = True
    peer.wait(lambda host: host.sending.order_acked, "some order ack")
    with peer as host:
        host.restart()
        for number in range(40, 50):
            host.send_in_order("orders", b"%d" % number)
    peer.wait(lambda host: not host.sending.table, "order acks")
    assert daemon.bodies("orders") == [b"%d" % number for number in range(50)]


@pytest.mark.parametrize("keeps_previous", [False, True])
def test_expired_messages_leave_gaps_that_the_next_ones_bridge(
    daemon: Daemon, strict: HostMaker, keeps_previous: bool
) -> None:
    peer = strict(replace(POLITE, keeps_previous=keeps_previous))
    with peer as host:
        items = [host.send_in_order("orders", b"%d" % number) for number in range(20)]
        # The numbers are given; then every third message expires before it is transmitted again.
        for item in items:
            host.sending.number(item)
        host.has_gaps = True
        for item in items[1:19:3]:
            host.sending.drop(item)
    kept = [b"%d" % number for number in range(20) if (number - 1) % 3 or number >= 19]
    peer.wait(lambda host: not host.sending.table, "order acks")
    assert daemon.bodies("orders") == kept


def test_an_acknowledged_message_outlives_a_kill(daemon: Daemon, strict: HostMaker) -> None:
    peer = strict(replace(POLITE, piggyback=0.5))
    with peer as host:
        for number in range(300):
            host.send_in_order("orders", b"%d" % number)
            host.send("plain", b"%d" % number, recoverable=True)
    for count in (10, 100, 200, 300, 400, 500):
        _kill_at(daemon, peer, count)
        with peer as host:
            left = {item.draft.message_id for item in host.sending.table}
            sent = dict(host.sending.sent)
        daemon.start()
        for queue in ("orders", "plain"):
            there = {int(each["id"].rpartition("\\")[2]) for each in daemon.peek(queue)}
            name = f"\\private$\\{queue}"
            gone = {key for key, item in sent.items() if item.draft.to.text.endswith(name)} - left
            assert gone <= there, f"acknowledged, and not in {queue}: {sorted(gone - there)}"
    peer.wait(lambda host: not host.sending.table, "acknowledgments")
    bodies = [b"%d" % number for number in range(300)]
    assert daemon.bodies("orders") == bodies
    assert sorted(daemon.bodies("plain"), key=int) == bodies


def _kill_at(daemon: Daemon, peer: SocketHost, count: int) -> None:
    """Kill the daemon in the moment in which an acknowledgment ends message number `count`."""
    is_dead = threading.Event()
    pid = daemon.pid

    def kill(settled: int) -> None:
        if settled >= count and not is_dead.is_set():
            os.kill(pid, signal.SIGKILL)
            is_dead.set()

    peer.daemon_is_killed = True
    with peer as host:
        host.sending.on_settled = kill
        kill(host.sending.settled)
    assert is_dead.wait(END_S), peer.report()
    with peer as host:
        host.sending.on_settled = None
    daemon.kill()


def test_a_queue_of_the_source_is_named_by_its_number(daemon: Daemon, strict: HostMaker) -> None:
    peer = strict()
    (manager,) = daemon.json("status")
    (queue,) = daemon.json("queue", "show", "private$\\plain")
    name = f"PRIVATE={manager['queue_manager']}\\{queue['number']:x}"
    daemon.send(
        peer.destination("q"), b"1",
        "--response-queue", name, "--admin-queue", name, "--acknowledge", "positive-arrival",
    )  # fmt: skip
    peer.wait(lambda host: host.bodies("q"), "the message")

    (arrived,) = peer.host.receiving.queues["q"]
    assert (arrived.admin, arrived.response) == (Name(2, number=queue["number"]),) * 2
