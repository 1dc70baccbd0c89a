"""Outcomes wait for their commit: the answers of the daemon are held meanwhile."""

from __future__ import annotations

import time
from typing import Any

import pytest

from tests.amqp import frames
from tests.amqp.door import AmqpDoor, door_of, gated_door_of
from tests.amqp.proxies import Gate
from tests.patience import END_S, LOOK_S
from tests.process.harness import Hosts

proton = pytest.importorskip("proton")
from proton import ConnectionException, Delivery, Endpoint, Message  # noqa: E402
from proton.handlers import MessagingHandler  # noqa: E402
from proton.reactor import Container  # noqa: E402
from proton.utils import BlockingConnection, LinkDetached  # noqa: E402


def connect(door: AmqpDoor) -> Any:
    return BlockingConnection(door.url, timeout=END_S)


def pass_through_door(connection: Any) -> None:
    """Wait until the door has processed everything that was sent to it before."""
    session = connection.conn.session()
    session.open()
    connection.wait(lambda: not session.state & Endpoint.REMOTE_UNINIT, timeout=END_S)


def test_an_outcome_of_a_link_that_has_ended_settles_no_other_message(hosts: Hosts) -> None:
    with gated_door_of(hosts, "orders") as (door, gate):
        connection = connect(door)
        first = connection.create_sender("orders", name="first")
        second = connection.create_sender("orders", name="second")
        gate.hold()
        before = gate.requests
        first.link.send(Message(body="one"))
        gate_passed(gate, connection, before + 1)
        first.link.send(Message(body=b"x" * 9_000_000, inferred=True))  # too large: it ends
        with pytest.raises(LinkDetached):
            connection.wait(lambda: False, timeout=END_S)
        first.link.close()
        pass_through_door(connection)
        delivery = second.link.send(Message(body="two"))
        pass_through_door(connection)
        gate.release(1)  # the commit of the first message
        gate_passed(gate, connection, before + 2)
        pass_through_door(connection)
        assert not delivery.settled
        gate.release()
        connection.wait(lambda: delivery.settled, timeout=END_S)
        assert delivery.remote_state == Delivery.ACCEPTED
        connection.close()
        assert door.daemon.count("orders") == 2


def gate_passed(gate: Gate, connection: Any, requests: int) -> None:
    """Wait until the door has made so many requests; the client goes on meanwhile."""
    deadline = time.monotonic() + END_S
    connection.container.timeout = 0.02
    while gate.requests < requests:
        assert time.monotonic() < deadline, "the door makes no request"
        connection.container.process()


def test_accepted_messages_wait_together_and_are_removed_though_their_client_leaves(
    hosts: Hosts,
) -> None:
    with gated_door_of(hosts, "orders") as (door, gate):
        connection = connect(door)
        sender = connection.create_sender("orders")
        for _ in range(6):
            sender.send(Message(body="one"))
        connection.close()
        with frames.RawClient(door.port) as client:
            client.write(
                frames.opening(), frames.attach("in", 0, frames.RECEIVER, "orders"), credit(6)
            )
            for _ in range(6):
                client.read_until(frames.TRANSFER)
            gate.hold()
            before = gate.requests
            for number in range(6):
                client.write(frames.settled(number, number, role=frames.RECEIVER))
                client.write(session(number + 1))
                client.read_until(frames.BEGIN)
            gate.wait_requests(before + 2)
            assert gate.requests == before + 2  # the others wait for the answers
        gate.release()
        deadline = time.monotonic() + END_S
        while left := door.daemon.count("orders"):
            assert time.monotonic() < deadline, f"{left} messages were not removed"
            time.sleep(LOOK_S)


def credit(count: int) -> bytes:
    """Return the frame by which a receiver gives credit."""
    windows = [proton.uint(each) for each in (0, 10_000, 0, 10_000)]
    return frames.encoded(frames.FLOW, *windows, proton.uint(0), proton.uint(0), proton.uint(count))


def session(channel: int) -> bytes:
    """Return the frame that begins a session."""
    numbers = proton.uint(0), proton.uint(100), proton.uint(100)
    return frames.encoded(frames.BEGIN, None, *numbers, channel=channel)


def test_a_client_that_settles_in_many_small_writes_is_read_to_the_end(hosts: Hosts) -> None:
    with door_of(hosts, "orders") as door:
        connection = connect(door)
        link = connection.create_sender("orders").link
        sent = [link.send(Message(body="one", durable=True)) for _ in range(200)]
        connection.wait(lambda: all(each.settled for each in sent), timeout=END_S)
        other = connect(door)  # it only receives, so that its settlements are read together
        receiver = other.create_receiver("orders", credit=200)
        for _ in range(200):
            receiver.receive(END_S)
            receiver.accept()
        pass_through_door(other)
        deadline = time.monotonic() + END_S
        while door.daemon.count("orders"):
            assert time.monotonic() < deadline, "accepted messages are not removed"
        link.send(Message(body="two"))
        pass_through_door(connection)
        assert receiver.receive(END_S).body == "two"
        other.close()
        connection.close()
        assert door.daemon.count("orders") == 1


def test_a_message_without_an_outcome_is_not_rejected(hosts: Hosts) -> None:
    with gated_door_of(hosts, "orders") as (door, gate):
        connection = connect(door)
        sender = connection.create_sender("orders")
        gate.hold()
        before = gate.requests
        delivery = sender.link.send(Message(body="one"))
        gate_passed(gate, connection, before + 1)
        door.daemon.wait_for("orders", 1)  # it was stored, and its answer is lost
        gate.cut()
        with pytest.raises(ConnectionException, match="connection:forced"):
            connection.wait(lambda: delivery.settled, timeout=END_S)
        assert not delivery.settled
        gate.release()


class Lost(MessagingHandler):
    """Receives a message, whose queue is deleted before it accepts it in a transaction."""

    def __init__(self, door: AmqpDoor) -> None:
        super().__init__(auto_accept=False, prefetch=0)
        self._door = door
        self.result = ""

    def on_start(self, event: Any) -> None:
        connection = self._connection = event.container.connect(self._door.url, reconnect=False)
        self._receiver = event.container.create_receiver(connection, "in")
        self._sender = event.container.create_sender(connection, "out")
        event.container.declare_transaction(connection, handler=self, settle_before_discharge=True)

    def on_transaction_declared(self, event: Any) -> None:
        self._transaction = event.transaction
        self._receiver.flow(1)

    def on_message(self, event: Any) -> None:
        self._question = event.delivery
        self._transaction.send(self._sender, Message(body="answer"))

    def on_settled(self, event: Any) -> None:
        if event.link == self._sender:  # the answer is part of the transaction
            self._door.daemon.cli("queue", "delete", "in", "--yes")
            self._transaction.accept(self._question)
            self._transaction.commit()

    def on_transaction_committed(self, event: Any) -> None:
        self.result = "committed"
        self._connection.close()

    def on_transaction_commit_failed(self, event: Any) -> None:
        self.result = "failed"
        self._connection.close()


def test_a_commit_fails_if_a_message_cannot_become_part_of_it(hosts: Hosts) -> None:
    with door_of(hosts, transactional=("in", "out")) as door:
        door.daemon.send("in", b"question", "--transactional")
        lost = Lost(door)
        Container(lost).run()
        assert lost.result == "failed"
        assert door.daemon.count("out") == 0


def test_a_removal_is_settled_after_its_commit(hosts: Hosts) -> None:
    with gated_door_of(hosts, "orders") as (door, gate):
        door.daemon.send_all("orders", [b"1", b"2", b"3"])
        connection = connect(door)
        receiver = connection.create_receiver("orders", credit=3)
        deliveries = []
        for _ in range(3):
            receiver.receive(timeout=END_S)
            deliveries.append(receiver.fetcher.unsettled.pop())
        gate.hold()
        before = gate.requests
        for delivery, state in zip(
            deliveries, (Delivery.ACCEPTED, Delivery.REJECTED, Delivery.MODIFIED), strict=True
        ):
            if state == Delivery.MODIFIED:
                delivery.local.failed = True
            delivery.update(state)  # it waits for the settlement of the door
        gate_passed(gate, connection, before + 3)
        pass_through_door(connection)
        assert not any(delivery.settled for delivery in deliveries)
        gate.release()
        connection.wait(lambda: all(delivery.settled for delivery in deliveries), timeout=END_S)
        connection.close()
        assert door.daemon.count("orders") == 1


def test_a_link_that_is_closed_while_it_is_opened_gets_both_answers(hosts: Hosts) -> None:
    with gated_door_of(hosts, "orders") as (door, gate):
        connection = connect(door)
        gate.hold()
        link = connection.conn.session().sender("hasty")
        link.session.open()
        link.target.address = "orders"
        link.open()
        link.close()
        connection.wait(lambda: bool(link.state & Endpoint.REMOTE_CLOSED), timeout=END_S)
        gate.release()
        connection.create_sender("orders").send(Message(body="after"))
        connection.close()


def test_sessions_end_with_their_links_and_make_room_for_others(hosts: Hosts) -> None:
    with door_of(hosts, "orders", amqp={"sessions_max": 5, "links_max": 5}) as door:
        connection = connect(door)
        for number in range(30):
            session = connection.conn.session()
            session.open()
            link = session.sender("one")
            link.target.address = "orders"
            link.open()
            connection.wait(lambda link=link: link.credit > 0, timeout=END_S)
            link.send(Message(body=number))
            session.close()
            connection.wait(
                lambda each=session: bool(each.state & Endpoint.REMOTE_CLOSED), timeout=END_S
            )
            session.free()
        connection.close()
        assert door.daemon.count("orders") == 30


def test_a_message_that_is_undeliverable_here_goes_to_another_link(hosts: Hosts) -> None:
    with door_of(hosts, transactional=("orders",)) as door:
        connection = connect(door)
        sender = connection.create_sender("orders")
        for body in ("first", "second"):
            sender.send(Message(body=body))
        receiver = connection.create_receiver("orders", credit=1)
        assert receiver.receive(timeout=END_S).body == "first"
        delivery = receiver.fetcher.unsettled[0]
        delivery.local.undeliverable = True
        delivery.local.failed = True
        receiver.settle(Delivery.MODIFIED)
        # The link has credit again, and the first message is at its place.
        assert receiver.receive(timeout=END_S).body == "second"
        receiver.accept()
        other = connection.create_receiver("orders", name="other", credit=1)
        got = other.receive(timeout=END_S)
        assert (got.body, got.delivery_count) == ("first", 1)
        other.accept()
        connection.close()
        assert door.daemon.count("orders") == 0
