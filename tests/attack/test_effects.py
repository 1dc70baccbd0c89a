"""Attacks by consequences: packets that make this computer do work, store rows or connect."""

from __future__ import annotations

import contextlib
import socket
import sqlite3
import time
from typing import Any

import pytest

from tests.patience import END_S
from tests.process import wire
from tests.process.harness import DEADLETTER, Daemon, Hosts
from tests.process.peer import Peer
from tests.process.processes import open_files
from tests.process.remote import RemoteQueueManager

#: A hundred addresses at which nothing answers; all are of this computer, so that none is asked.
DEAD = [f"TCP:127.77.1.{number}\\private$\\acks" for number in range(1, 101)]

ARRIVED = 0x0002  # the class of an acknowledgment of arrival, [MS-MQMQ] 2.2.18.1.6


def asking(remote: RemoteQueueManager, admins: list[str], **properties: object) -> bytes:
    """Return a message that asks for acknowledgments to these queues."""
    defaults: dict[str, object] = {
        "body": b"please acknowledge",
        "recoverable": True,
        "ack_bits": wire.PA | wire.NA | wire.PR | wire.NR,
        "admin": wire.direct(admins[0]),
        "multi_queue": wire.multi_queue_header(["OS:victim\\private$\\plain"], admins),
    }
    return remote.message("plain", **{**defaults, **properties})  # type: ignore[arg-type]


def deliver(peer: Peer, messages: list[bytes]) -> None:
    """Send recoverable messages, and wait until the daemon has stored them and their effects."""
    peer.send_many(messages)
    peer.wait_stored()


def limits(daemon: Daemon) -> dict[str, Any]:
    (status,) = daemon.json("status")
    limits: dict[str, Any] = status["consequences"]["acknowledgments"]
    return limits


def start(hosts: Hosts, **settings: object) -> Daemon:
    daemon = hosts.daemon(consequences=settings)
    daemon.create("plain", "side")
    return daemon


def test_a_message_causes_no_connection_to_another_computer_than_its_sender(
    hosts: Hosts, remote: RemoteQueueManager
):
    daemon = start(hosts)
    before = open_files(daemon.pid)
    peer = remote.connect(daemon.port)

    with socket.create_server(("127.0.0.9", 0)) as third:
        port = third.getsockname()[1]
        third.settimeout(0.5)
        admins = [f"TCP:127.0.0.9:{port}\\private$\\acks", *DEAD[1:]]
        deliver(peer, [asking(remote, admins) for _ in range(5)])
        with pytest.raises(TimeoutError):
            third.accept()

    assert daemon.json("outgoing", "list") == []
    assert open_files(daemon.pid) < before + 10
    assert daemon.count("plain") == 5
    assert limits(daemon)["not_made"] == {"administration queue elsewhere": 500}
    (why, *_) = [
        event for event in daemon.json("events", "tail") if event["kind"] == "unacknowledged"
    ]
    assert "acknowledge_to" in why["reason"]


def test_the_queues_that_one_host_asks_for_are_limited_and_applications_have_the_others(
    hosts: Hosts, remote: RemoteQueueManager
):
    daemon = start(hosts, queues_per_host=20, queues=30)
    before = open_files(daemon.pid)
    peer = remote.connect(daemon.port)
    own = [f"TCP:127.0.0.1:{port}\\private$\\acks" for port in range(40_001, 40_101)]

    deliver(peer, [asking(remote, own)])
    with RemoteQueueManager() as other:
        from_elsewhere = [each.replace("127.0.0.1", "127.0.0.2") for each in own]
        second = other.connect(daemon.port, source="127.0.0.2")
        deliver(second, [asking(other, from_elsewhere)])

    assert len(daemon.json("outgoing", "list")) == 30
    shares = {each["host"]: each["queues"] for each in limits(daemon)["hosts"]}
    assert shares == {"127.0.0.1": 20, "127.0.0.2": 10}
    assert daemon.count("plain") == 2
    assert open_files(daemon.pid) < before + 25

    with RemoteQueueManager() as bystander:
        listener = bystander.listen()
        daemon.send(listener.destination("orders"), b"of an application", "--recoverable")
        assert listener.accept().receive().body == b"of an application"


def test_names_of_computers_in_packets_are_not_looked_up(hosts: Hosts, remote: RemoteQueueManager):
    daemon = start(hosts)
    peer = remote.connect(daemon.port)
    names = [f"OS:made-up-{number}.invalid\\private$\\acks" for number in range(100)]

    peer.send(asking(remote, names))

    received = peer.receive_many(100)  # they come back to the sender, which may have these names
    assert {each.message_class for each in received} == {ARRIVED}
    for queue in daemon.json("outgoing", "list"):
        assert " via " in queue["destination"]


def test_acknowledgments_that_wait_for_one_host_are_limited_in_number_and_bytes(
    hosts: Hosts, remote: RemoteQueueManager
):
    daemon = start(hosts, acknowledgments_per_host=10, waiting_per_host="10kB")
    peer = remote.connect(daemon.port)
    closed = ["TCP:127.0.0.1:1\\private$\\acks"]

    deliver(peer, [asking(remote, closed) for _ in range(30)])
    (queue,) = daemon.json("outgoing", "list")
    assert queue["messages"] == 10
    assert daemon.count("plain") == 30

    other = RemoteQueueManager()
    with other:
        large = other.connect(daemon.port, source="127.0.0.2")
        refused = [
            asking(
                other,
                ["TCP:127.0.0.2:1\\private$\\acks"],
                sent_time=wire.now_s() - 100,
                time_to_reach_queue=1,  # a negative acknowledgment brings the body back
                body=bytes(4000),
            )
            for _ in range(6)
        ]
        deliver(large, refused)
        shares = {each["host"]: each["bytes"] for each in limits(daemon)["hosts"]}
    assert 4000 < shares["127.0.0.2"] <= 10_000
    assert limits(daemon)["not_made"] == {"no room or no way": 24}


def test_further_administration_queues_of_a_flood_are_not_acknowledged(
    hosts: Hosts, remote: RemoteQueueManager
):
    daemon = start(hosts, copies_per_second=1)
    peer = remote.connect(daemon.port)
    own = [f"OS:me\\private$\\acks{number}" for number in range(20)]

    peer.send_many([asking(remote, own) for _ in range(5)])

    firsts = [each for each in peer.receive_many(15) if each.destination.text == own[0]]
    assert len(firsts) == 5  # one for each message
    refused = limits(daemon)["not_made"]["too many administration queues"]
    assert 80 <= refused <= 90
    assert daemon.count("plain") == 5


def test_acknowledgments_that_others_ask_for_expire(hosts: Hosts, remote: RemoteQueueManager):
    daemon = start(hosts, age="1s")
    peer = remote.connect(daemon.port)

    deliver(peer, [asking(remote, ["TCP:127.0.0.1:1\\private$\\acks"])])

    deadline = time.monotonic() + END_S
    while daemon.json("outgoing", "list")[0]["messages"]:
        assert time.monotonic() < deadline
        time.sleep(0.2)
    kinds = [event["kind"] for event in daemon.json("events", "tail")]
    assert "expired" in kinds


def test_an_operator_can_permit_acknowledgments_to_other_computers(
    hosts: Hosts, remote: RemoteQueueManager
):
    daemon = hosts.daemon(peers={"acknowledge_to": ["127.0.0.9"]})
    daemon.create("plain")

    with socket.create_server(("127.0.0.9", 0)) as third:
        third.settimeout(END_S)
        port = third.getsockname()[1]
        peer = remote.connect(daemon.port)
        peer.send(asking(remote, [f"TCP:127.0.0.9:{port}\\private$\\acks"]))
        connection, _ = third.accept()
        connection.close()


def test_the_acknowledgments_of_a_former_run_stay_limited(hosts: Hosts, remote: RemoteQueueManager):
    daemon = start(hosts, queues_per_host=5)
    peer = remote.connect(daemon.port)
    own = [f"TCP:127.0.0.1:{port}\\private$\\acks" for port in range(40_001, 40_021)]
    deliver(peer, [asking(remote, own)])
    daemon.restart()

    assert limits(daemon)["queues"] == 5
    with contextlib.closing(remote.connect(daemon.port)) as again:
        deliver(again, [asking(remote, own[10:])])
        assert limits(daemon)["queues"] == 5


def refused(remote: RemoteQueueManager, size: int) -> bytes:
    """Return a message to a queue that does not exist, which becomes a dead letter."""
    return remote.message(
        "nowhere", bytes(size), recoverable=True, destination=wire.private("nowhere")
    )


def letters(daemon: Daemon) -> dict[str, Any]:
    (status,) = daemon.json("status")
    letters: dict[str, Any] = status["consequences"]["dead_letters"]
    return letters


def test_refused_messages_have_a_budget_which_is_not_that_of_applications(
    hosts: Hosts, remote: RemoteQueueManager
):
    # A sixteenth of the computer quota is for dead letters of other hosts.
    daemon = hosts.daemon(quotas={"computer": "4MB"})
    daemon.create("plain")
    peer = remote.connect(daemon.port)
    for _ in range(4):
        peer.send_many([refused(remote, 40_000) for _ in range(10)])
    peer.wait_stored()

    used = letters(daemon)
    assert used["bytes"] <= 250_000 // 2  # half of the budget for one host
    assert used["ended"] >= 36
    assert daemon.count(DEADLETTER) == used["dead_letters"] <= 3
    (status,) = daemon.json("status")
    assert status["bytes"] < 250_000

    # The application has the whole quota.
    daemon.send_all(r"private$\plain", [b"x" * 440_000] * 9, "--recoverable")
    assert daemon.count("plain") == 9

    # The end of each dead letter is explained.
    ended = [event for event in daemon.json("events", "tail", "--kind", "purged", "--lines", "100")]
    assert ended
    assert "oldest of the host with the most of them" in ended[0]["reason"]


def test_a_flood_of_refused_messages_does_not_end_the_dead_letters_of_another_host(
    hosts: Hosts,
):
    daemon = hosts.daemon(quotas={"computer": "4MB"})
    with RemoteQueueManager() as genuine:
        peer = genuine.connect(daemon.port, source="127.0.0.2")
        peer.send_many([refused(genuine, 10_000) for _ in range(5)])
        peer.wait_stored()

        for source in ("127.0.0.1", "127.0.0.3", "127.0.0.4"):  # more than the budget together
            with RemoteQueueManager() as hostile:
                flood = hostile.connect(daemon.port, source=source)
                flood.send_many([refused(hostile, 40_000) for _ in range(30)])
                flood.wait_stored()

        kept = {each["host"]: each["dead_letters"] for each in letters(daemon)["hosts"]}
    assert kept["127.0.0.2"] == 5
    assert kept["127.0.0.4"] <= 3
    assert sum(kept.values()) <= 5 + 5


def test_a_dead_letter_that_is_larger_than_the_budget_is_not_kept_and_that_is_recorded(
    hosts: Hosts, remote: RemoteQueueManager
):
    daemon = hosts.daemon(quotas={"computer": "4MB"})
    peer = remote.connect(daemon.port)

    peer.send(refused(remote, 300_000))
    peer.wait_stored()

    assert daemon.count(DEADLETTER) == 0
    assert letters(daemon)["not_kept"] == 1
    (event,) = daemon.json("events", "tail", "--kind", "discarded")
    assert "dead_letters" in event["reason"]


def test_the_budget_of_dead_letters_holds_after_a_restart(hosts: Hosts, remote: RemoteQueueManager):
    daemon = hosts.daemon(quotas={"computer": "4MB"})
    peer = remote.connect(daemon.port)
    peer.send_many([refused(remote, 40_000) for _ in range(3)])
    peer.wait_stored()
    before = letters(daemon)

    daemon.restart()

    after = letters(daemon)
    assert (after["bytes"], after["hosts"]) == (before["bytes"], before["hosts"])
    with contextlib.closing(remote.connect(daemon.port)) as again:
        again.send_many([refused(remote, 40_000) for _ in range(5)])
        again.wait_stored()
    assert letters(daemon)["bytes"] <= 125_000


def test_a_flood_of_refused_messages_does_not_push_the_history_of_others_out_of_the_log(
    hosts: Hosts, remote: RemoteQueueManager
):
    daemon = hosts.daemon(events={"size": "1MB"})
    daemon.create("plain")
    with RemoteQueueManager() as genuine:
        peer = genuine.connect(daemon.port, source="127.0.0.2")
        peer.send(genuine.message("plain", b"genuine", recoverable=True))
        peer.wait_stored()

        hostile = remote.connect(daemon.port)
        for part in range(20):
            names = [f"made-up-{part}-{each}-{'x' * 60}" for each in range(100)]
            hostile.send_many([remote.message(name, b"junk", recoverable=True) for name in names])
        hostile.wait_stored()

    (accepted,) = daemon.json("events", "tail", "--kind", "accepted", "--lines", "9")
    assert accepted["queue"] == r"private$\plain"
    refusals = daemon.json("events", "tail", "--kind", "refused", "--lines", "3000")
    assert 50 < len(refusals) < 400
    (status,) = daemon.json("status")
    assert status["consequences"]["events_not_listed"] >= 1600
    assert status["refused"] == 2000


def test_a_host_that_states_the_guid_of_another_causes_no_acknowledgments_to_that_one(
    hosts: Hosts, remote: RemoteQueueManager
):
    daemon = start(hosts)
    peer = remote.connect(daemon.port)
    peer.send(remote.message("plain", b"genuine", recoverable=True))
    peer.wait_stored()

    with RemoteQueueManager(guid=remote.guid) as impostor:
        hostile = impostor.connect(daemon.port, source="127.0.0.2")
        packets = [
            asking(impostor, ["OS:genuine\\private$\\acks"], message_id=7000 + each)
            for each in range(20)
        ]
        hostile.send_many(packets)
        hostile.wait_stored()

    assert peer.read_for(0.5) == 0 or peer.inbox == []
    assert limits(daemon)["not_made"] == {"administration queue elsewhere": 20}


def test_the_acknowledgments_of_one_message_share_its_body(
    hosts: Hosts, remote: RemoteQueueManager
):
    daemon = start(hosts)
    peer = remote.connect(daemon.port)
    own = [f"TCP:127.0.0.1:{port}\\private$\\acks" for port in range(40_001, 40_041)]

    late: dict[str, Any] = {"sent_time": wire.now_s() - 100, "time_to_reach_queue": 1}
    peer.send(asking(remote, own, body=b"a long body " * 5000, **late))
    peer.wait_stored()

    assert limits(daemon)["queues"] == 40
    assert limits(daemon)["bytes"] > 40 * 60_000
    daemon.terminate()
    assert stored_bytes(daemon) < 10 * 60_000
    daemon.start()  # the parts are found again
    assert limits(daemon)["bytes"] > 40 * 60_000


def stored_bytes(daemon: Daemon) -> int:
    """Return the bytes of all outgoing packets and of their shared parts on the disk."""
    with contextlib.closing(sqlite3.connect(daemon.folder / "data" / "queues.db")) as db:
        queries = ("SELECT packet FROM outgoing", "SELECT packet FROM shared_part")
        return sum(len(packet) for query in queries for (packet,) in db.execute(query))
