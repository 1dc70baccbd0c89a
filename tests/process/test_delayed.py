"""Delayed messages through the commands, across kills of the daemon."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.process.harness import DEADLETTER, Daemon, Hosts, body


@pytest.fixture
def daemon(hosts: Hosts) -> Daemon:
    return hosts.daemon()


def listed(daemon: Daemon, *queue: str) -> list[dict[str, Any]]:
    return daemon.json("delayed", "list", *queue)


def test_a_delayed_message_is_listed_cancelled_and_delivered(daemon: Daemon):
    daemon.create("orders")
    later = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
    first = daemon.send("orders", b"1", "--deliver-at", later, "--label", "one")
    second = daemon.send("orders", b"2", "--delay", "1h")
    assert [each["id"] for each in listed(daemon, "orders")] == [first, second]
    assert listed(daemon)[0]["label"] == "one"
    daemon.send("orders", b"3", "--delay", "500ms")
    assert b"one" in daemon.cli("peek", "orders", "--delayed").stdout
    assert daemon.json("status")[0]["delayed_messages"] >= 2
    (why,) = daemon.json("why", first)
    assert why["state"] == "delayed"
    assert later[:16].replace("T", " ") in why["sentences"][0]

    (message,) = daemon.wait_for("orders", 1)
    assert body(message) == b"3"
    daemon.receive("orders")

    daemon.kill()
    daemon.start()
    assert [each["id"] for each in listed(daemon)] == [first, second]
    daemon.cli("delayed", "cancel", first, "--yes")
    assert daemon.json("why", first)[0]["state"] == "cancelled"
    assert [each["id"] for each in listed(daemon)] == [second]
    (show,) = daemon.json("queue", "show", "orders")
    assert (show["messages"], show["delayed_messages"]) == (0, 1)


def test_a_sent_message_cannot_be_cancelled(daemon: Daemon):
    daemon.create("orders")
    sent = daemon.send("orders", b"1")
    failed = daemon.cli("delayed", "cancel", sent, "--yes", check=False)
    assert failed.returncode == 3
    assert b"is not delayed" in failed.stderr


@pytest.mark.parametrize("options", [("--deliver-at", "soon"), ("--delay", "x")])
def test_a_bad_time_is_refused(daemon: Daemon, options: tuple[str, str]):
    daemon.create("orders")
    assert daemon.cli("send", "orders", "1", *options, check=False).returncode == 2


def test_a_message_whose_time_passed_while_the_daemon_was_down_is_sent_at_its_start(
    daemon: Daemon,
):
    daemon.create("orders", transactional=True)
    daemon.send("orders", b"1", "--delay", "1s")
    daemon.kill()
    daemon.start()
    (message,) = daemon.wait_for("orders", 1)
    assert body(message) == b"1"
    assert daemon.receive(DEADLETTER) == []
