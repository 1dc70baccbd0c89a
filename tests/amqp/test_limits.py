"""Limits of the door, each with its error condition; names of links that are taken over."""

from __future__ import annotations

from typing import Any

import pytest

from tests.amqp.door import AmqpDoor, door_of
from tests.patience import END_S
from tests.process.harness import Hosts

proton = pytest.importorskip("proton")
from proton import ConnectionException, Message  # noqa: E402
from proton.utils import BlockingConnection, ConnectionClosed, LinkDetached  # noqa: E402

SMALL = {"connections_max": 3, "links_max": 4, "message": "64KiB", "unsettled_max": 5}


def connect(door: AmqpDoor, **options: Any) -> Any:
    return BlockingConnection(door.url, timeout=END_S, **options)


def test_each_limit_has_its_condition(hosts: Hosts) -> None:
    with door_of(hosts, "orders", amqp=SMALL) as door:
        connection = connect(door)
        sender = connection.create_sender("orders")
        with pytest.raises((LinkDetached, ConnectionClosed), match="message-size-exceeded"):
            sender.send(Message(body=b"x" * 100_000, inferred=True))
        for number in range(3):
            connection.create_sender("orders", name=f"link {number}")
        connection.create_sender("orders", name="link 3")
        with pytest.raises(LinkDetached, match=r"resource-limit-exceeded.*4 links"):
            connection.create_sender("orders", name="link 4")
        others = [connect(door) for _ in range(2)]
        with pytest.raises((ConnectionException, ConnectionClosed), match="resource-limit"):
            connect(door).create_sender("orders", name="one too many")
        for each in (connection, *others):
            each.close()


def test_a_client_that_settles_nothing_gets_no_more_than_the_limit(hosts: Hosts) -> None:
    with door_of(hosts, "orders", amqp=SMALL) as door:
        door.daemon.send_all("orders", [b"%d" % number for number in range(8)])
        connection = connect(door)
        receiver = connection.create_receiver("orders", credit=8)
        bodies = [body_of(receiver) for _ in range(5)]
        other = connect(door).create_receiver("orders", credit=3)
        bodies += [body_of(other) for _ in range(3)]
        assert bodies == [b"%d" % number for number in range(8)]
        for _ in range(5):
            receiver.accept()
        connection.close()


def test_the_name_of_a_link_is_taken_over(hosts: Hosts) -> None:
    with door_of(hosts, "orders") as door:
        old = BlockingConnection(door.url, timeout=END_S, container=named("worker"))
        first = old.create_receiver("orders", name="work", credit=1)
        new = BlockingConnection(door.url, timeout=END_S, container=named("worker"))
        second = new.create_receiver("orders", name="work", credit=1)
        door.daemon.send("orders", b"x")
        assert body_of(second) == b"x"
        second.accept()
        with pytest.raises(LinkDetached, match="stolen"):
            first.receive(timeout=END_S)
        new.close()


def named(name: str) -> Any:
    """Return a container with an id."""
    from proton.reactor import Container

    container = Container()
    container.container_id = name
    return container


def body_of(receiver: Any) -> bytes:
    """Return the body of the next message; its bytes end with the message."""
    message = receiver.receive(timeout=END_S)
    return bytes(message.body)
