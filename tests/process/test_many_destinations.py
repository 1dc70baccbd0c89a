"""One message to many queues, with real daemons and a peer that implements only the wire."""

from __future__ import annotations

import random
import sqlite3
import subprocess
import sys
import time
from contextlib import closing

import pytest

from tests.patience import END_S
from tests.process import wire
from tests.process.command_line import ROOT
from tests.process.data_folder import database
from tests.process.harness import Daemon, Hosts, body, empty_queues
from tests.process.remote import Listener
from tests.process.test_two_daemons import QUICK, direct, wait_count
from tests.stored_packets import unshared_parts

COUNT = 120


@pytest.fixture
def daemon(hosts: Hosts) -> Daemon:
    return hosts.daemon(delivery=QUICK)


@pytest.fixture
def listener(hosts: Hosts) -> Listener:
    return hosts.remote().listen()


def start_worker(daemon: Daemon, *queues: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "tests.process.many_worker", str(daemon.folder / "qmd.sock")]
    return subprocess.Popen([*command, *queues, str(COUNT)], cwd=ROOT)


def beginnings(daemon: Daemon, queue: str) -> list[bytes]:
    return [body(message).rstrip(b"\0").strip() for message in daemon.peek(queue)]


@pytest.mark.parametrize("victim", ["the sender", "a receiver"])
def test_the_example_of_the_source_document_holds_with_any_kill(hosts: Hosts, victim: str):
    sender, near, far = (hosts.daemon(delivery=QUICK) for _ in range(3))
    near.create("q1", "q2", transactional=True)
    far.create("q3", transactional=True)
    queues = direct(near, "q1"), direct(near, "q2"), direct(far, "q3")
    dice = random.Random(victim)

    worker = start_worker(sender, *queues)
    for turn in range(4):
        time.sleep(dice.uniform(0.2, 0.6))
        daemon = sender if victim == "the sender" else (near, far)[turn % 2]
        daemon.kill()
        daemon.start()
    assert worker.wait(END_S) == 0

    rounds = range(COUNT)
    for daemon, queue, kinds in ((near, "q1", (1,)), (near, "q2", (1, 2, 3)), (far, "q3", (2,))):
        expected = [b"M%d %d" % (kind, round_) for round_ in rounds for kind in kinds]
        wait_count(daemon, queue, len(expected))
        assert beginnings(daemon, queue) == expected


@pytest.mark.parametrize("kind", ["recoverable", "transactional"])
def test_a_kill_in_the_middle_of_a_commit_leaves_all_copies_or_none(daemon: Daemon, kind: str):
    queues = "one", "two", "three"
    daemon.create(*queues, transactional=kind == "transactional")
    dice = random.Random(kind)
    text = "{n} " + "x" * 3000

    for _ in range(3):
        sender = daemon.spawn_cli("send", ",".join(queues), text, "--count", "100000", f"--{kind}")
        wait_count(daemon, "one", daemon.count("one") + 1)
        time.sleep(dice.uniform(0.0, 0.2))
        daemon.kill()
        sender.kill()
        sender.communicate()
        daemon.start()
        assert len({daemon.count(queue) for queue in queues}) == 1

    assert daemon.count("one")
    found = [beginnings(daemon, queue) for queue in queues]
    assert found[0] == found[1] == found[2]
    daemon.terminate()
    assert parts_of(daemon) > 0
    daemon.start()
    empty_queues(daemon)
    daemon.terminate()
    assert parts_of(daemon) == 0
    daemon.start()


def parts_of(daemon: Daemon) -> int:
    """Return the number of stored parts of packets of a stopped daemon; each must be referenced."""
    with closing(sqlite3.connect(database(daemon.folder))) as db:
        assert not unshared_parts(db)
        return int(db.execute("SELECT count(*) FROM shared_part").fetchone()[0])


def test_each_packet_names_its_own_queue_and_lists_all(hosts: Hosts, daemon: Daemon):
    daemon.create("here")
    one, other = hosts.remote().listen(), hosts.remote().listen()
    names = one.destination("a"), other.destination("b"), "here"

    (sent,) = daemon.json("send", ",".join(names), "x" * 1000, "--recoverable")

    assert len(sent["copies"]) == 3
    assert sent["id"] == sent["copies"][0]
    listed = ["tcp:127.0.0.1\\private$\\a", "tcp:127.0.0.1\\private$\\b"]
    for listener, own, id_ in zip((one, other), listed, sent["copies"], strict=False):
        message = listener.accept().receive()
        assert message.destination.text.lower() == own
        assert id_.endswith(f"\\{message.message_id}")
        assert message.body == b"x" * 1000
        assert message.queues is not None
        found = [name.text.lower() for name in message.queues.destinations]
        assert found[:2] == listed
        assert found[2].endswith("\\private$\\here")
    (kept,) = daemon.peek("here")
    assert len(kept["destinations"]) == 3
    assert kept["id"] == sent["copies"][2]


def test_one_queue_is_not_listed(daemon: Daemon, listener: Listener):
    daemon.send(listener.destination("a"), b"x")

    assert listener.accept().receive().queues is None


def test_a_packet_that_lists_queues_goes_to_its_own_and_the_list_is_kept(
    hosts: Hosts, daemon: Daemon
):
    daemon.create("orders")
    names = "TCP:127.0.0.1\\private$\\orders", "OS:hostb\\private$\\copies"
    remote = hosts.remote()
    peer = remote.connect(daemon.port)

    peer.send(remote.message("orders", b"listed", multi_queue=wire.multi_queue_header(names)))

    (message,) = daemon.wait_for("orders", 1)
    assert body(message) == b"listed"
    assert message["destinations"] == [f"DIRECT={name}" for name in names]


def test_copies_of_an_older_sender_are_messages_like_any_other(hosts: Hosts, daemon: Daemon):
    """A sender without such names sends to explicit destinations, with one number for each."""
    daemon.create("one", "two")
    remote = hosts.remote()
    peer = remote.connect(daemon.port)

    for queue in ("one", "two"):
        peer.send(remote.message(queue, b"plain", recoverable=True))

    for queue in ("one", "two"):
        (message,) = daemon.wait_for(queue, 1)
        assert message["destinations"] == []


def test_a_read_only_element_is_named_and_nothing_is_sent(daemon: Daemon):
    daemon.create("one")

    failed = daemon.cli("send", "one,DIRECT=OS:.\\SYSTEM$;DEADLETTER", "x", check=False)

    assert failed.returncode
    assert b"element 2" in failed.stderr
    assert daemon.count("one") == 0
