"""Bridges to a real RabbitMQ, by AMQP 1.0."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.bridge.bridges import Bridges
from tests.bridge.brokers import RabbitServer
from tests.process.harness import Daemon, body

OUT, IN = "/amq/queue/shop-out", "/amq/queue/shop-in"


@contextmanager
def connection(server: RabbitServer) -> Iterator[Any]:
    from proton.utils import BlockingConnection

    found = BlockingConnection(server.url, timeout=20, user="guest", password="guest")
    try:
        yield found
    finally:
        found.close()


def publish(server: RabbitServer, *messages: Any) -> None:
    with connection(server) as opened:
        sender = opened.create_sender(IN)
        for each in messages:
            sender.send(each)


def numbered(first: int, last: int) -> list[Any]:
    from proton import Message

    return [
        Message(
            id=f"m{n}", body=b"%d" % n, durable=True, inferred=True, properties={"region": "east"}
        )
        for n in range(first, last + 1)
    ]


def taken(server: RabbitServer, wait_s: float = 1.0) -> list[Any]:
    """Take all messages of the outward queue."""
    from proton import Timeout

    found: list[Any] = []
    with connection(server) as opened:
        receiver = opened.create_receiver(OUT, credit=100)
        try:
            while True:
                found.append(receiver.receive(timeout=wait_s))
                receiver.accept()
        except Timeout:
            return found


def definitions(server: RabbitServer, password_file: str) -> dict[str, dict[str, Any]]:
    common = {"kind": "amqp", "url": server.url, "user": "guest", "password_file": password_file}
    return {
        "out": {**common, "direction": "out", "queue": "outbox", "address": OUT, "batch": 20},
        "in": {**common, "direction": "in", "queue": "inbox", "address": IN, "batch": 20},
    }


@pytest.fixture
def made(daemon: Daemon, rabbit: RabbitServer, bridges: Callable[..., Bridges]) -> Bridges:
    daemon.create("outbox", "inbox", transactional=True)
    password = rabbit.folder / "password"
    password.write_text("guest\n")
    return bridges(**definitions(rabbit, str(password)))


@pytest.mark.slow
def test_rabbitmq_both_ways_with_kills_of_every_process(
    daemon: Daemon, rabbit: RabbitServer, made: Bridges
):
    """Inward exactly once.  Outward at least once, and doubled only by a kill of the bridge."""
    first = daemon.send("outbox", b"0", "--label", "order 0", "--property", "weight:=3")
    assert [row["ok"] for row in made.cli("check")] == [True, True]
    made.start()
    (message,) = made.wait(lambda: taken(rabbit), "the first message")
    assert (bytes(message.body), message.id, message.subject) == (b"0", first, "order 0")
    assert message.properties == {"weight": 3}
    sent = 0

    def more() -> None:
        nonlocal sent
        before, sent = sent, sent + 100
        daemon.send_all(
            "outbox", [b"%d" % n for n in range(before + 1, sent + 1)], "--transactional"
        )
        publish(rabbit, *numbered(before + 1, sent))

    more()
    daemon.wait_for("inbox", 5)
    daemon.restart()
    more()
    daemon.wait_for("inbox", 105)
    made.restart()
    more()
    daemon.wait_for("inbox", 205)
    rabbit.restart()
    more()
    made.wait(lambda: daemon.count("inbox") >= sent, "all messages inward")
    made.wait(lambda: daemon.count("outbox") == 0, "an empty outbox")

    expected = [b"%d" % n for n in range(1, sent + 1)]
    inward = daemon.receive("inbox")
    assert [body(each) for each in inward] == expected
    assert inward[0]["properties"] == {"region": "east"}
    outward = taken(rabbit)
    bodies = [bytes(each.body) for each in outward]
    assert list(dict.fromkeys(bodies)) == expected
    doubled = [each for each, times in Counter(bodies).items() if times > 1]
    assert len(doubled) <= 2 * 20, "one batch for each kill of the bridge or the broker"
    ids = {bytes(each.body): each.id for each in outward}
    assert len(set(ids.values())) == sent
    made.stop()
    daemon.wait_for("private$\\bridge.in", 1)


def test_wrong_passwords_and_addresses_are_named(
    daemon: Daemon, rabbit: RabbitServer, made: Bridges
):
    wrong = rabbit.folder / "wrong"
    wrong.write_text("wrong\n")
    made.define(**definitions(rabbit, str(wrong)))

    rows = made.cli("check", check=False)
    assert [row["ok"] for row in rows] == [False, False]
    assert all(row["text"] for row in rows)
