"""The order of messages while several requests of the door are under way, and one is refused."""

from __future__ import annotations

import base64

import pytest

from tests.amqp import frames
from tests.amqp.door import AmqpDoor, door_of, gated_door_of
from tests.amqp.test_settlement import connect, gate_passed, pass_through_door
from tests.patience import END_S
from tests.process.harness import Hosts

proton = pytest.importorskip("proton")
from proton import Delivery, Message  # noqa: E402

ACCEPTED, REJECTED = Delivery.ACCEPTED, Delivery.REJECTED


@pytest.mark.parametrize("refused", [1, 2, 3])
def test_no_message_overtakes_those_of_a_refused_request(hosts: Hosts, refused: int) -> None:
    """Three requests of two messages are under way; in one of them a message is refused."""
    with gated_door_of(hosts, "orders") as (door, gate):
        connection = connect(door)
        sender = connection.create_sender(None)
        gate.hold()
        before, deliveries = gate.requests, []
        for request in range(1, 4):
            for place in range(2):
                is_bad = request == refused and place == 1
                text = f"{request}{place}"
                message = Message(
                    body=text, address="missing" if is_bad else "orders", durable=True
                )
                deliveries.append(sender.link.send(message))
            gate_passed(gate, connection, before + request)
        assert not any(each.settled for each in deliveries)
        settled: list[int] = []
        gate.release()
        connection.wait(lambda: _settled(deliveries, settled) == 6, timeout=END_S)

        bad = 2 * refused - 1
        states = [each.remote_state for each in deliveries]
        assert states == [REJECTED if at == bad else ACCEPTED for at in range(6)]
        assert settled == sorted(settled)
        expected = [f"{at // 2 + 1}{at % 2}" for at in range(6) if at != bad]
        found = [base64.b64decode(each["body_base64"]) for each in door.daemon.peek("orders")]
        assert [each.decode("utf-16-le") for each in found] == expected
        connection.close()


def test_no_more_than_four_requests_are_under_way(hosts: Hosts) -> None:
    with gated_door_of(hosts, "orders") as (door, gate):
        connection = connect(door)
        sender = connection.create_sender("orders")
        gate.hold()
        before, deliveries = gate.requests, []
        for number in range(4):
            deliveries.append(sender.link.send(Message(body=f"{number}", durable=True)))
            gate_passed(gate, connection, before + number + 1)
        for number in range(4, 9):
            deliveries.append(sender.link.send(Message(body=f"{number}", durable=True)))
            pass_through_door(connection)
        assert gate.requests == before + 4
        gate.release()
        connection.wait(lambda: all(each.settled for each in deliveries), timeout=END_S)
        assert gate.requests == before + 5  # the others had gathered for one
        connection.close()
        found = [base64.b64decode(each["body_base64"]) for each in door.daemon.peek("orders")]
        assert [each.decode("utf-16-le") for each in found] == [f"{each}" for each in range(9)]


def _settled(deliveries: list[object], order: list[int]) -> int:
    """Return how many are settled; note their places in the order in which they became so."""
    for at, each in enumerate(deliveries):
        if each.settled and at not in order:  # type: ignore[attr-defined]
            order.append(at)
    return len(order)


def test_messages_whose_frames_alternate_on_two_links_arrive_once(hosts: Hosts) -> None:
    bodies = [b"%d" % number * 100 for number in range(6)]
    encoded = [bytes(Message(body=each, inferred=True).encode()) for each in bodies]
    with door_of(hosts, "one", "two") as door, frames.RawClient(door.port) as client:
        client.write(frames.opening())
        for handle, queue in enumerate(("one", "two")):
            client.write(frames.attach(queue, handle, frames.SENDER, queue))
            client.read_until(frames.FLOW)
        halves = [
            frames.transfer(number % 2, number, part, more=more)
            for first in (0, 2)
            for more, half in ((True, slice(50)), (False, slice(50, None)))
            for number in (first, first + 1)
            for part in (encoded[number][half],)
        ]
        complete = [frames.transfer(number % 2, number, encoded[number]) for number in (4, 5)]
        client.write(*halves, *complete)  # the door reads them together
        accepted = 0
        while accepted < len(bodies):  # the door promises nothing before
            _, first, last, *_ = [*client.read_until(frames.DISPOSITION).fields, None]
            accepted += (first if last is None else last) - first + 1
        client.write(frames.encoded(frames.CLOSE))
        client.read_until(frames.CLOSE)
        for start, queue in enumerate(("one", "two")):
            assert received(door, queue) == bodies[start::2]


def received(door: AmqpDoor, queue: str) -> list[bytes]:
    connection = connect(door)
    receiver = connection.create_receiver(queue)
    messages = [receiver.receive(END_S) for _ in range(door.daemon.count(queue))]
    connection.close()
    return [bytes(each.body or b"") for each in messages]
