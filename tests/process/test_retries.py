"""Retry policies through the commands, across kills of the daemon."""

from __future__ import annotations

import asyncio

import pytest

from qmd.client import connect
from tests.process.harness import DEADXACT, Daemon, Hosts, body


@pytest.fixture
def daemon(hosts: Hosts) -> Daemon:
    return hosts.daemon()


def fail(daemon: Daemon, queue: str) -> None:
    """Receive a message in a transaction, and abort that."""

    async def receive() -> None:
        async with connect(daemon.folder / "qmd.sock") as qm:
            transaction = qm.transaction()
            await transaction.begin()
            assert await transaction.receive(queue, timeout_s=60) is not None
            await transaction.abort("no stock")

    asyncio.run(receive())


def test_a_message_is_tried_again_and_ends_with_its_reason(daemon: Daemon):
    daemon.cli(
        *("queue", "create", "orders", "--transactional", "--retry-attempts", "3"),
        *("--retry-delay", "100ms", "--retry-factor", "1", "--retry-jitter", "0"),
    )
    (shown,) = daemon.json("queue", "show", "orders")
    assert shown["retry"]["attempts"] == 3
    assert shown["retry"]["end"] == "poison"
    sent = daemon.send("orders", b"1")

    fail(daemon, "orders")
    fail(daemon, "orders")  # it has come back by itself
    daemon.kill()
    daemon.start()
    fail(daemon, "orders")

    (message,) = daemon.receive("orders;poison")
    assert (body(message), message["abort_count"]) == (b"1", 3)
    kinds = [event["kind"] for event in daemon.json("trace", sent)]
    assert kinds == ["sent", *["aborted", "moved", "moved"] * 2, "aborted", "moved", "received"]


def test_a_waiting_message_says_when_it_is_tried_again(daemon: Daemon):
    daemon.cli("queue", "create", "orders", "--transactional", "--retry-delay", "1h")
    sent = daemon.send("orders", b"1")
    fail(daemon, "orders")
    (why,) = daemon.json("why", sent)
    assert "no stock" in why["sentences"][0]
    assert "returns to its place" in why["sentences"][0]
    daemon.cli("move", "orders;retry", "orders", "--all")
    daemon.cli("queue", "set", "orders", "--retry-attempts", "2", "--retry-end", "dead-letter")
    fail(daemon, "orders")
    (letter,) = daemon.receive(DEADXACT)
    assert "no stock" in letter["reason"]

    daemon.cli("queue", "set", "orders", "--no-retry")
    assert daemon.json("queue", "show", "orders")[0]["retry"] is None
