"""Selectors over AMQP refer to the values that receivers see."""

from __future__ import annotations

from typing import Any

import pytest

from tests.amqp.door import AmqpDoor, door_of
from tests.patience import END_S
from tests.process.harness import Hosts

proton = pytest.importorskip("proton")
from proton import Delivery, Message  # noqa: E402
from proton.reactor import Copy, Selector  # noqa: E402
from proton.utils import BlockingConnection  # noqa: E402


def connect(door: AmqpDoor) -> Any:
    return BlockingConnection(door.url, timeout=END_S)


@pytest.mark.parametrize("kind", ["transactional", "plain"])
def test_selectors_see_the_priority_and_the_mode_of_the_header(hosts: Hosts, kind: str) -> None:
    with door_of(hosts, "plain", transactional=("transactional",)) as door:
        connection = connect(door)
        sender = connection.create_sender(kind)
        for number in range(10):
            sender.send(Message(body=number, priority=number, durable=number % 2 == 0))
        sender.send(Message(body=10, durable=True))  # 4, as for JMS
        expected = {
            **{f"JMSPriority = {number}": [number] for number in (0, 1, 5, 8, 9)},
            "amqp.priority = 4": [4, 10],
            "JMSPriority > 6 AND JMSDeliveryMode = 'PERSISTENT'": [8],
            "JMSDeliveryMode = 'NON_PERSISTENT'": [1, 3, 5, 7, 9],
            "NOT amqp.durable AND JMSPriority BETWEEN 3 AND 5": [3, 5],
        }
        for number, (where, bodies) in enumerate(expected.items()):
            receiver = connection.create_receiver(
                kind, name=f"r{number}", credit=20, options=[Copy(), Selector(where)]
            )
            found = sorted(receiver.receive(timeout=END_S).body for _ in bodies)
            assert found == bodies, where
            receiver.close()
        connection.close()


def test_the_first_acquirer_and_the_delivery_time_come_out(hosts: Hosts) -> None:
    with door_of(hosts, "orders") as door:
        connection = connect(door)
        time = proton.symbol("x-opt-delivery-time")
        at = proton.timestamp(1_700_000_000_000)  # in the past: delivered at once
        sent = Message(body="x", first_acquirer=True, annotations={time: at})
        sender = connection.create_sender("orders")
        sender.send(sent)
        receiver = connection.create_receiver("orders", credit=1)
        got = receiver.receive(timeout=END_S)
        assert got.first_acquirer
        assert got.annotations[time] == at
        receiver.fetcher.unsettled[0].local.failed = True
        receiver.settle(Delivery.MODIFIED)
        again = receiver.receive(timeout=END_S)
        assert (again.body, again.first_acquirer, again.delivery_count) == ("x", False, 1)
        receiver.accept()
        sender.send(Message(body="y"))
        assert not receiver.receive(timeout=END_S).first_acquirer
        receiver.accept()
        connection.close()
