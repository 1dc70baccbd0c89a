"""Queues by `$management`, by right only, and dynamic queues that end with their link."""

from __future__ import annotations

from typing import Any

import pytest

from tests.amqp.door import door_of
from tests.patience import END_S
from tests.process.harness import Hosts

proton = pytest.importorskip("proton")
from proton import Message, symbol  # noqa: E402
from proton.reactor import Filter, Selector  # noqa: E402
from proton.utils import BlockingConnection, LinkDetached, SendException, SyncRequestResponse  # noqa: E402


def test_queues_are_managed_by_right_only(hosts: Hosts) -> None:
    with door_of(hosts, "orders") as door:
        connection = BlockingConnection(door.url, timeout=END_S)
        answers = connection.create_receiver("$management", credit=10)
        requests = connection.create_sender("$management")

        def ask(operation: str, name: str = "", **attributes: Any) -> tuple[int, Any]:
            requests.send(
                Message(
                    id=operation + name,
                    reply_to="$management",
                    properties={"operation": operation, "type": "org.qmd.queue", "name": name},
                    body=attributes,
                )
            )
            answer = answers.receive(timeout=END_S)
            assert answer.correlation_id == operation + name
            return answer.properties["statusCode"], answer.body

        assert ask("CREATE", "new")[0] == 403
        door.daemon.cli("acl", "grant", "anonymous", "create-queue", "host")
        status, made = ask("CREATE", "new", transactional=True, label="made here")
        assert status == 201
        assert made["transactional"] is True
        assert ask("CREATE", "new")[0] == 409
        assert ask("READ", "new")[1]["label"] == "made here"
        assert ask("READ", "nowhere")[0] == 404
        connection.create_sender("new").send(Message(body="x"))
        assert ask("PURGE", "new") == (200, {"messages": 1})
        status, table = ask("QUERY", attributeNames=["name", "messages"])
        assert status == 200
        assert table["attributeNames"] == ["name", "messages"]
        assert any("new" in row[0] for row in table["results"])
        assert ask("DELETE", "new")[0] == 204
        assert ask("DELETE", "orders")[0] == 204  # "full" was granted on it
        assert ask("NONSENSE")[0] == 501
        connection.close()


def test_a_client_that_takes_no_answers_is_refused_after_some_megabytes(hosts: Hosts) -> None:
    with door_of(hosts) as door:
        door.daemon.cli("queue", "create", *(f"q{each}" for each in range(1500)))
        connection = BlockingConnection(door.url, timeout=END_S)
        connection.create_receiver("$management", credit=0, name="answers")
        requests = connection.create_sender("$management", name="requests")
        query = {"operation": "QUERY", "type": "org.qmd.queue"}
        request, taken = Message(reply_to="$management", properties=query, body={}), 0
        with pytest.raises(SendException):  # noqa: PT012
            while taken < 100:
                requests.send(request)
                taken += 1
        connection.close()

        again = BlockingConnection(door.url, timeout=END_S)
        answers = again.create_receiver("$management", credit=1)
        again.create_sender("$management").send(request)
        answer = answers.receive(timeout=END_S)
        again.close()

    assert 1 <= taken < 20
    assert len(answer.body["results"]) >= 1500


def test_a_dynamic_queue_carries_answers_and_ends_with_its_link(hosts: Hosts) -> None:
    with door_of(hosts, "requests") as door:
        connection = BlockingConnection(door.url, timeout=END_S)
        with pytest.raises(LinkDetached, match="create-queue"):
            connection.create_receiver(None, dynamic=True, credit=1)
        door.daemon.cli("acl", "grant", "anonymous", "create-queue", "host")
        client = SyncRequestResponse(connection, "$management")
        answer = client.call(Message(properties={"operation": "GET-TYPES"}, body={}))
        assert answer.properties["statusCode"] == 200
        names = [each["name"] for each in door.daemon.json("queue", "list")]
        assert any("amqp-reply-" in name for name in names)
        connection.close()
        again = BlockingConnection(door.url, timeout=END_S)
        door.terminate()  # it deletes the queues of clients that have left before it ends
        names = [each["name"] for each in door.daemon.json("queue", "list")]
        assert not any("amqp-reply-" in name for name in names)
        door.start()
        assert again is not None


def test_a_selector_chooses_messages(hosts: Hosts) -> None:
    with door_of(hosts, "orders") as door:
        connection = BlockingConnection(door.url, timeout=END_S)
        sender = connection.create_sender("orders")
        for number in range(6):
            region = "east" if number % 2 else "west"
            sender.send(Message(body=number, properties={"region": region, "number": number}))
        receiver = connection.create_receiver(
            "orders", credit=10, options=Selector("region = 'east' AND number > 1")
        )
        assert [receiver.receive(timeout=END_S).body for _ in range(2)] == [3, 5]
        receiver.accept()
        receiver.accept()
        receiver.close()
        bad = Selector("region =")
        with pytest.raises(LinkDetached, match="invalid-field"):
            connection.create_receiver("orders", name="bad", options=bad)
        other = Filter({symbol("x"): proton.Described(symbol("example:filter"), "y")})
        with pytest.raises(LinkDetached, match="not-implemented"):
            connection.create_receiver("orders", name="other", options=other)
        # A filter without effect must not be confirmed as one in place (clause 3.5.8).
        plain = Filter({symbol("jms-selector"): "region = 'east'"})
        with pytest.raises(LinkDetached, match="invalid-field"):
            connection.create_receiver("orders", name="plain", options=plain)
        code = symbol("apache.org:selector-filter:string")
        two = Filter({symbol(each): proton.Described(code, "number > 1") for each in "ab"})
        with pytest.raises(LinkDetached, match="not-implemented"):
            connection.create_receiver("orders", name="two", options=two)
        connection.close()
        assert door.daemon.count("orders") == 4


def test_a_delayed_message_comes_later(hosts: Hosts) -> None:
    with door_of(hosts, "orders") as door:
        connection = BlockingConnection(door.url, timeout=END_S)
        sender = connection.create_sender("orders")
        far = proton.timestamp(32_503_680_000_000)  # the year 3000
        sender.send(Message(body="late", annotations={symbol("x-opt-delivery-time"): far}))
        delay = {symbol("x-opt-delivery-delay"): proton.ulong(1)}
        sender.send(Message(body="soon", annotations=delay))
        receiver = connection.create_receiver("orders", credit=10)
        assert receiver.receive(timeout=END_S).body == "soon"
        receiver.accept()
        connection.close()
        assert door.daemon.count("orders") == 0
