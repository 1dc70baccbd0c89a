"""Limits of the door, each with its error condition; names of links that are taken over."""

from __future__ import annotations

import time
from typing import Any

import pytest

from tests.amqp.door import AmqpDoor, door_of
from tests.patience import END_S, LOOK_S
from tests.process.harness import Hosts

proton = pytest.importorskip("proton")
from proton import ConnectionException, Message  # noqa: E402
from proton.utils import BlockingConnection, ConnectionClosed, LinkDetached  # noqa: E402

from tests.amqp import frames  # noqa: E402
from tests.amqp.frames import RawClient  # noqa: E402

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


def raw(door: AmqpDoor, *data: bytes, idle_ms: int | None = None) -> RawClient:
    """Connect, and send the first frames."""
    client = RawClient(door.port)
    client.write(frames.opening(idle_ms=idle_ms), *data)
    client.read_until(frames.BEGIN)
    return client


def test_a_client_with_many_unsettled_bytes_gets_no_more(hosts: Hosts) -> None:
    with door_of(hosts, "orders", amqp={"unsettled": "64KiB"}) as door:
        door.daemon.send_all("orders", [b"%d" % each + b"x" * 30_000 for each in range(6)])
        connection = connect(door)
        receiver = connection.create_receiver("orders")
        assert [body_of(receiver)[:1] for _ in range(3)] == [b"0", b"1", b"2"]
        receiver.link.flow(1)  # it waits
        connection.create_sender("orders")  # the door has read the credit before it answers
        other = connect(door).create_receiver("orders")
        assert body_of(other)[:1] == b"3"
        receiver.accept()
        assert body_of(receiver)[:1] == b"4"
        connection.close()


def test_a_silent_client_gets_the_condition_and_a_heartbeat_keeps_one(hosts: Hosts) -> None:
    with door_of(hosts, "orders", amqp={"idle_timeout": "1s"}) as door, raw(door) as silent:
        kept = connect(door)  # this client sends heartbeats
        closed = silent.read_until(frames.CLOSE)
        assert closed.error == "amqp:resource-limit-exceeded"
        assert silent.read() is None
        kept.create_sender("orders").send(Message(body="still here"))
        kept.close()


def test_too_many_sessions_end_the_connection(hosts: Hosts) -> None:
    with (
        door_of(hosts, "orders", amqp={"sessions_max": 3}) as door,
        RawClient(door.port) as client,
    ):
        client.write(frames.opening())
        assert client.read_until(frames.OPEN).fields[3] == 2  # the highest channel
        begin = (None, proton.uint(0), proton.uint(100), proton.uint(100))
        for channel in (1, 2):
            client.read_until(frames.BEGIN)
            client.write(frames.encoded(frames.BEGIN, *begin, channel=channel))
        client.read_until(frames.BEGIN)
        client.write(frames.encoded(frames.BEGIN, *begin, channel=3))
        assert client.read_until(frames.CLOSE).error == "amqp:connection:framing-error"


def test_more_messages_than_credit_end_the_link(hosts: Hosts) -> None:
    with (
        door_of(hosts, "orders", amqp={"credit": 5}) as door,
        raw(door, frames.attach("greedy", 0, frames.SENDER, "orders")) as client,
    ):
        assert client.read_until(frames.FLOW).fields[6] == 5
        message = bytes(Message(body="x").encode())
        client.write(*(frames.transfer(0, number, message) for number in range(200)))
        while (frame := client.read()) is not None and frame.code not in (
            frames.DETACH, frames.CLOSE,
        ):  # fmt: skip
            pass
        assert frame is not None
        assert "limit-exceeded" in frame.error


def test_a_message_before_the_first_credit_ends_the_connection(hosts: Hosts) -> None:
    message = bytes(Message(body="x").encode())
    hasty = frames.attach("hasty", 0, frames.SENDER, "orders") + frames.transfer(0, 0, message)
    with door_of(hosts, "orders") as door, RawClient(door.port) as client:
        client.write(frames.opening() + hasty)
        assert client.read_until(frames.CLOSE).error.startswith("amqp:")
        assert client.read() is None


def test_incomplete_messages_of_all_links_have_a_limit_together(hosts: Hosts) -> None:
    amqp = {"message": "600KiB", "waiting": "1MiB"}
    with door_of(hosts, "orders", amqp=amqp) as door, raw(door) as client:
        for handle in range(4):
            client.write(frames.attach(f"part {handle}", handle, frames.SENDER, "orders"))
            client.read_until(frames.FLOW)
        begun = bytes(Message(body=b"x" * 60_000, inferred=True).encode())
        for handle in range(4):
            client.write(*[frames.transfer(handle, handle, begun, more=True)] * 7)
        assert client.read_until(frames.DETACH).error == "amqp:resource-limit-exceeded"


def test_frames_larger_than_the_limit_end_the_connection(hosts: Hosts) -> None:
    with (
        door_of(hosts, "orders", amqp={"frame": "4KiB"}) as door,
        raw(door, frames.attach("large", 0, frames.SENDER, "orders")) as client,
    ):
        client.read_until(frames.FLOW)
        client.write(frames.transfer(0, 0, bytes(Message(body="x" * 10_000).encode())))
        assert client.read_until(frames.CLOSE).error == "amqp:connection:framing-error"


def test_dynamic_queues_of_a_killed_door_are_deleted_by_its_next_start(hosts: Hosts) -> None:
    with door_of(hosts, "orders") as door:
        daemon = door.daemon
        daemon.cli("acl", "grant", "anonymous", "create-queue", "host")
        connection = connect(door)
        dynamic = connection.create_receiver(None, dynamic=True)
        name = dynamic.link.remote_source.address
        connection.create_sender(name).send(Message(body="answer"))
        daemon.create("amqp-reply-of-another")
        door.restart()
        deadline = time.monotonic() + END_S
        while name in (names := [each["name"] for each in daemon.json("queue", "list")]):
            assert time.monotonic() < deadline, "it stays"
            time.sleep(LOOK_S)
        assert any(each.endswith("orders") for each in names)
        assert any(each.endswith("amqp-reply-of-another") for each in names)
        again = connect(door).create_receiver(None, dynamic=True)
        assert again.link.remote_source.address != name
