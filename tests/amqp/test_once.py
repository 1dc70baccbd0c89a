"""Messages that are sent once, however often a client repeats them."""

from __future__ import annotations

import pytest

from tests.amqp.door import door_of
from tests.patience import END_S
from tests.process.harness import Hosts

proton = pytest.importorskip("proton")
from proton import Message, symbol  # noqa: E402
from proton.utils import BlockingConnection, SendException  # noqa: E402


def test_a_repeated_message_is_sent_once_also_after_kills(hosts: Hosts) -> None:
    with door_of(hosts, transactional=("orders",)) as door:
        for attempt in range(3):
            connection = BlockingConnection(door.url, timeout=END_S)
            sender = connection.create_sender("orders")
            for number in range(5):
                once = {symbol("x-opt-msmq-once"): f"order {number}"}
                sender.send(Message(body=f"{number}", durable=True, annotations=once))
            if attempt == 0:
                door.restart()
            elif attempt == 1:
                door.daemon.restart()
            else:
                with pytest.raises(SendException):
                    sender.send(Message(body="x", annotations={symbol("x-opt-msmq-once"): 5}))
                connection.close()
        bodies = [body["body_base64"] for body in door.daemon.peek("orders")]
        assert len(bodies) == 5
        assert len(set(bodies)) == 5
