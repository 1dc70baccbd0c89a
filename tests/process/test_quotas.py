"""Quotas: exact bytes, also after kills; the class for a peer, and the command for an operator."""

from __future__ import annotations

import json
import re
from typing import Any

from tests.process import wire
from tests.process.harness import Daemon, Hosts, body
from tests.process.remote import RemoteQueueManager


def shown(daemon: Daemon, queue: str) -> dict[str, Any]:
    (found,) = daemon.json("queue", "show", queue)
    return found


def test_the_bytes_are_those_of_the_packets_and_the_same_after_a_kill(
    hosts: Hosts, remote: RemoteQueueManager
):
    daemon = hosts.daemon()
    daemon.create("orders")
    peer = remote.connect(daemon.port)
    packets = [
        remote.message("orders", b"x" * size, recoverable=True) for size in (0, 1, 1000, 70_001)
    ]
    for packet in packets:
        peer.send_now(packet)
    peer.wait_stored()

    assert shown(daemon, "orders")["bytes"] == sum(map(len, packets))
    daemon.restart()

    assert shown(daemon, "orders")["bytes"] == sum(map(len, packets))
    (status,) = daemon.json("status")
    assert status["bytes"] == sum(map(len, packets))
    daemon.json("receive", "orders")
    assert shown(daemon, "orders")["bytes"] == sum(map(len, packets[1:]))


def test_a_peer_is_notified_of_a_full_queue_and_fitting_messages_are_accepted(
    hosts: Hosts, remote: RemoteQueueManager
):
    daemon = hosts.daemon()
    daemon.create("orders")
    daemon.create("strict", transactional=True)
    peer = remote.connect(daemon.port)
    asking = {"admin": wire.private("acks"), "ack_bits": wire.NA}
    packet = remote.message("orders", b"x" * 500, recoverable=True, **asking)
    daemon.cli("queue", "set", "orders", "--quota", f"{2 * len(packet)}B")
    peer.send_now(packet)
    peer.send_now(remote.message("orders", b"y" * 500, recoverable=True, **asking))
    over = remote.message("orders", b"z", recoverable=True, message_id=4711, **asking)
    peer.send_now(over)

    reported = peer.receive()
    assert (reported.message_class, reported.body) == (0x8003, b"z")
    assert [body(each)[:1] for each in daemon.receive("orders")] == [b"x", b"y"]

    daemon.cli("queue", "set", "strict", "--quota", "0B")
    peer.send_now(remote.transactional("strict", remote.new_sequence(), 1))
    peer.wait(lambda: bool(peer.final_acks))
    assert [each.message_class for each in peer.final_acks] == [0x8003]


def test_a_local_sender_gets_the_full_quota_and_the_command_that_helps(hosts: Hosts):
    daemon = hosts.daemon()
    daemon.create("orders")
    daemon.cli("queue", "set", "orders", "--quota", "1000B")

    refused = daemon.cli("send", "orders", "x" * 1000, check=False)

    assert refused.returncode == 4
    text = refused.stderr.decode()
    assert re.search(
        r"private\$\\orders is full: 0 of 1000 bytes \(0 %\) are used, and \d+ more", text
    )
    command = re.search(r"qmd (queue set '[^']+' --quota \S+)", text)
    assert command is not None, text
    _, _, name, _, quota = command[1].split()
    daemon.cli("queue", "set", name.strip("'"), "--quota", quota)
    daemon.cli("send", "orders", "x" * 1000)
    assert daemon.count("orders") == 1


def test_a_queue_that_fills_up_warns_in_the_log_and_in_the_status(hosts: Hosts):
    daemon = hosts.daemon()
    daemon.create("orders")
    daemon.cli("queue", "set", "orders", "--quota", "10kB")

    for _ in range(8):
        daemon.send("orders", b"x" * 900)

    lines = [
        json.loads(line)
        for line in daemon.log.read_text().splitlines()
        if '"quota_nearly_reached"' in line
    ]
    assert [line["percent"] for line in lines] == [70, 85]
    assert {line["queue"] for line in lines} == {"private$\\orders"}
    assert "qmd queue set" in lines[0]["remedy"]
    (status,) = daemon.json("status")
    (warning,) = status["quota_warnings"]
    assert (warning["what"], warning["reached_percent"]) == ("private$\\orders", 85)
    assert shown(daemon, "orders")["quota_warning_percent"] == 85


def test_a_file_above_the_limit_is_not_even_read(hosts: Hosts, tmp_path):
    daemon = hosts.daemon(quotas={"message_bytes_max": "1MB"})
    daemon.create("orders")
    with (tmp_path / "huge").open("wb") as sparse:
        sparse.truncate(1 << 40)  # too large to read in time, or to hold in memory

    refused = daemon.cli("send", "orders", "--file", str(tmp_path / "huge"), check=False)

    assert refused.returncode == 4
    assert "1000000 are allowed" in refused.stderr.decode()
