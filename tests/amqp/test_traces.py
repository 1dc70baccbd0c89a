"""The context of a trace goes through the live doors for AMQP and HTTP, in both directions."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import pytest

from tests.amqp.door import door_of
from tests.patience import END_S
from tests.process.harness import Hosts
from tests.process.http_door import HttpDoor

proton = pytest.importorskip("proton")
pytest.importorskip("httptools")
from proton import Message  # noqa: E402
from proton.utils import BlockingConnection  # noqa: E402

PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
OTHER = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
CONTEXT = {"traceparent": PARENT, "tracestate": "vendor=1"}


def test_a_trace_passes_from_amqp_to_http_and_back(hosts: Hosts) -> None:
    with door_of(hosts, "orders") as door:
        http = HttpDoor(door.daemon)
        try:
            client = http.start().client()
            connection = BlockingConnection(door.url, timeout=END_S)
            sender = connection.create_sender("orders")
            receiver = connection.create_receiver("orders")
            path = f"/v1/queues/{quote('orders')}/messages"

            # Over AMQP they are application properties; the door for HTTP shows them.
            sender.send(Message(body="1", properties=dict(CONTEXT)))
            (shown,) = client.json("GET", path)["messages"]
            assert CONTEXT.items() <= shown["properties"].items()
            # The door keeps the context for the receiver over AMQP.
            assert CONTEXT.items() <= receive(receiver).items()
            # Over HTTP they are headers of the request, and come out as application properties.
            client.json("POST", path, {"body": "2"}, status=201, **CONTEXT)
            assert CONTEXT.items() <= receive(receiver).items()
            # A context in the properties of the message wins.
            own = {"body": "3", "properties": {"traceparent": OTHER}}
            client.json("POST", path, own, status=201, **CONTEXT)
            assert receive(receiver)["traceparent"] == OTHER
            connection.close()

            # The daemon has noted the context of each, for the export of spans.
            sent = [
                each["traceparent"]
                for each in door.daemon.json("events", "tail")
                if each["kind"] == "sent" and "traceparent" in each
            ]
            assert sent == [PARENT, PARENT, OTHER]
        finally:
            http.kill()


def receive(receiver: Any) -> dict[str, Any]:
    """Receive a message, settle it, and return its application properties."""
    message = receiver.receive(timeout=END_S)
    receiver.accept()
    return dict(message.properties)
