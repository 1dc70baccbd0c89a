"""Messages through the door, sent and received by qpid-proton's blocking client."""

from __future__ import annotations

import base64
import uuid
from typing import Any

import pytest

from qmd.bodies.bus_headers import parse_headers
from tests.amqp.door import AmqpDoor, door_of
from tests.patience import END_S
from tests.process.harness import Hosts

proton = pytest.importorskip("proton")
from proton import Message, symbol  # noqa: E402
from proton.reactor import AtMostOnce, Copy  # noqa: E402
from proton.utils import BlockingConnection, LinkDetached, SendException  # noqa: E402

VALUES: dict[str, Any] = {
    "null": None,
    "true": True,
    "false": False,
    "ubyte": proton.ubyte(255),
    "ushort": proton.ushort(65535),
    "uint": proton.uint(2**32 - 1),
    "ulong": proton.ulong(2**64 - 1),
    "byte": proton.byte(-128),
    "short": proton.short(-32768),
    "int": proton.int32(-(2**31)),
    "long": -(2**63),
    "float": proton.float32(1.5),
    "double": 0.1,
    "char": proton.char("é"),
    "timestamp": proton.timestamp(1_700_000_000_123),
    "late timestamp": proton.timestamp(2**62),
    "uuid": uuid.UUID("12345678-1234-5678-1234-567812345678"),
    "binary": b"\0\1\xff",
    "string": "é\u4e00\U0001f600",
    "empty string": "",
    "string with null at the end": "a\0",
    "symbol": symbol("amqp"),
    "decimal32": proton.decimal32(12345),
    "decimal64": proton.decimal64(2**60),
    "decimal128": proton.decimal128(bytes(range(16))),
    "list": [1, "a", None, [True]],
    "map": {"a": 1, proton.ulong(7): [symbol("x")], "n": {"deep": b"x"}},
    "array": proton.Array(proton.UNDESCRIBED, proton.Data.INT, *map(proton.int32, range(3))),
    "described": proton.Described(symbol("example:kind"), [1, "x"]),
    "long string": "x" * 3_000_000,
}


def connect(door: AmqpDoor) -> Any:
    return BlockingConnection(door.url, timeout=END_S)


def kinds(value: Any) -> Any:
    """Return a value with the types of all its parts."""
    if isinstance(value, dict):
        return {(type(key).__name__, str(key)): kinds(each) for key, each in value.items()}
    if isinstance(value, list):
        return [kinds(each) for each in value]
    if isinstance(value, memoryview):
        value = bytes(value)
    if isinstance(value, proton.Array):
        return ("array", value.type, [kinds(each) for each in value.elements])
    if isinstance(value, proton.Described):
        return ("described", kinds(value.descriptor), kinds(value.value))
    return type(value).__name__, value


def test_every_type_is_returned_in_bodies_properties_and_annotations(hosts: Hosts) -> None:
    with door_of(hosts, "types") as door:
        connection = connect(door)
        sender, receiver = connection.create_sender("types"), connection.create_receiver("types")
        for name, value in VALUES.items():
            simple = not isinstance(value, dict | list | proton.Array | proton.Described)
            short = name != "long string"
            sent = Message(
                body=value,
                properties={"value": value} if simple and short else None,
                annotations={symbol("x-opt-value"): value} if short else None,
            )
            sender.send(sent)
            got = receiver.receive(timeout=END_S)
            receiver.accept()
            assert kinds(got.body) == kinds(value), name
            assert not got.inferred
            if simple and short:
                assert kinds(got.properties) == kinds({"value": value}), name
            if short:
                assert kinds(got.annotations[symbol("x-opt-value")]) == kinds(value), name
        connection.close()


def test_data_and_sequences_are_returned_as_they_came(hosts: Hosts) -> None:
    with door_of(hosts, "bodies") as door:
        connection = connect(door)
        sender, receiver = connection.create_sender("bodies"), connection.create_receiver("bodies")
        for body in (b"", b"x" * 300, b"y" * 4_000_000, [1, "two", 3.0], []):
            sender.send(Message(body=body, inferred=True))
            got = receiver.receive(timeout=END_S)
            receiver.accept()
            assert got.inferred
            found = bytes(got.body) if isinstance(got.body, memoryview) else got.body
            assert found == body
        connection.close()


def test_header_and_properties_are_returned(hosts: Hosts) -> None:
    with door_of(hosts, "headers") as door:
        connection = connect(door)
        sender, receiver = (
            connection.create_sender("headers"),
            connection.create_receiver("headers"),
        )
        for identifier in (
            "text", b"bytes", proton.ulong(17), uuid.UUID(int=5),
        ):  # fmt: skip
            sent = Message(
                body="x",
                durable=True,
                priority=6,
                id=identifier,
                correlation_id=identifier,
                user_id=b"ann",
                address="headers",
                subject="a subject",
                reply_to="answers",
                content_type="application/json",
                content_encoding="gzip",
                creation_time=1_700_000_000.5,
                group_id="g",
                group_sequence=7,
                reply_to_group_id="h",
                ttl=3600,
            )
            sender.send(sent)
            got = receiver.receive(timeout=END_S)
            receiver.accept()
            for name in (
                *("durable", "priority", "id", "correlation_id", "user_id", "address", "subject"),
                *("reply_to", "content_type", "content_encoding", "creation_time", "group_id"),
                *("group_sequence", "reply_to_group_id"),
            ):
                assert getattr(got, name) == getattr(sent, name), name
            assert 0 < got.ttl <= 3600
        for priority in range(10):
            sender.send(Message(body="p", priority=priority))
            assert receiver.receive(timeout=END_S).priority == priority
            receiver.accept()
        long = "s" * 400
        sender.send(Message(body="p", subject=long))
        assert receiver.receive(timeout=END_S).subject == long
        receiver.accept()
        connection.close()


def test_properties_of_msmq_come_from_annotations_and_go_to_them(hosts: Hosts) -> None:
    with door_of(hosts, "orders", "answers") as door:
        connection = connect(door)
        connection.create_sender("orders").send(
            Message(
                body=b"<order/>",
                inferred=True,
                subject="order 17",
                annotations={
                    symbol("x-opt-msmq-application-tag"): 42,
                    symbol("x-opt-msmq-admin-queue"): "answers",
                    symbol("x-opt-msmq-acknowledge"): "positive_arrival,negative_receive",
                    symbol("x-opt-msmq-journal"): True,
                    symbol("x-opt-msmq-time-to-reach-queue"): 60,
                    symbol("x-opt-msmq-extension"): b"\1\2",
                },
            )
        )
        [shown] = door.daemon.peek("orders")
        assert shown["label"] == "order 17"
        assert shown["application_tag"] == 42
        assert shown["admin_queue"].endswith("answers")
        assert shown["acknowledge"] == ["positive_arrival", "negative_receive"]
        assert shown["journal"]
        assert shown["time_to_reach_queue"] == 60
        receiver = connection.create_receiver("orders")
        got = receiver.receive(timeout=END_S)
        assert got.annotations[symbol("x-opt-msmq-application-tag")] == 42
        assert bytes(got.annotations[symbol("x-opt-msmq-extension")]) == b"\1\2"
        receiver.accept()
        connection.close()


HEADERS = {
    "NServiceBus.MessageId": "6f1f3c1e-6a57-4b8e-9f0e-2d9a7c64a2c1",
    "NServiceBus.EnclosedMessageTypes": "Shop.PlaceOrder, Shop",
    "NServiceBus.ContentType": "text/xml",
    "NServiceBus.ReplyToAddress": "answers@web1",
}


def test_headers_of_a_service_bus_are_application_properties_both_ways(hosts: Hosts) -> None:
    with door_of(hosts, "orders") as door:
        connection = connect(door)
        sender = connection.create_sender("orders")
        mark = {symbol("x-opt-msmq-service-bus"): "NServiceBus"}
        sender.send(Message(body=b"<o/>", inferred=True, properties=HEADERS, annotations=mark))

        [shown] = door.daemon.peek("orders")
        extension = base64.b64decode(shown["extension_base64"])
        assert parse_headers(extension) == HEADERS
        assert extension.endswith(b"</ArrayOfHeaderInfo>"), "an endpoint of .NET reads all of it"
        got = connection.create_receiver("orders").receive(timeout=END_S)
        assert got.properties == HEADERS
        assert got.annotations[symbol("x-opt-msmq-service-bus")] == "NServiceBus"
        assert (got.content_type, got.reply_to) == ("text/xml", "DIRECT=OS:web1\\private$\\answers")

        with pytest.raises(SendException):
            sender.send(Message(body=b"", properties={"NServiceBus.Retries": 3}, annotations=mark))
        connection.close()


def test_a_native_message_has_its_properties_in_amqp(hosts: Hosts) -> None:
    with door_of(hosts, "orders") as door:
        sent = door.daemon.send("orders", "grüße".encode("utf-16-le"), "--label", "native",
                                "--body-type", "VT_LPWSTR")  # fmt: skip
        connection = connect(door)
        receiver = connection.create_receiver("orders")
        got = receiver.receive(timeout=END_S)
        receiver.accept()
        assert got.body == "grüße"
        assert got.subject == "native"
        assert got.id == sent
        assert got.durable
        connection.close()


def test_settled_messages_that_are_not_durable_are_express(hosts: Hosts) -> None:
    with door_of(hosts, "plain", transactional=("exact",)) as door:
        connection = connect(door)
        for queue in ("plain", "exact"):
            sender = connection.create_sender(queue, options=AtMostOnce())
            sender.send(Message(body="x"))
        connection.close()
        deliveries = {
            queue: door.daemon.wait_for(queue, 1)[0]["delivery"] for queue in ("plain", "exact")
        }
        assert deliveries == {"plain": "express", "exact": "transactional"}


def test_a_refused_message_has_the_id_the_cause_and_the_remedy(hosts: Hosts) -> None:
    with door_of(hosts, "small") as door:
        door.daemon.cli("queue", "set", "small", "--quota", "64KiB")
        connection = connect(door)
        sender = connection.create_sender("small")
        delivery = sender.link.send(Message(body=b"x" * 100_000, inferred=True))
        connection.wait(lambda: delivery.settled)
        assert delivery.remote_state == proton.Delivery.REJECTED
        condition = delivery.remote.condition
        assert condition.name == "amqp:resource-limit-exceeded"
        assert condition.description.startswith("QM-")
        assert {"id", "code", "cause", "remedy"} <= set(condition.info)
        with pytest.raises(LinkDetached, match="not-found"):
            connection.create_sender("nowhere")
        connection.close()


def test_settlement_removes_returns_and_rejects(hosts: Hosts) -> None:
    with door_of(hosts, "work") as door:
        connection = connect(door)
        sender = connection.create_sender("work")
        for body in ("accept", "release", "reject", "keep"):
            sender.send(Message(body=body))
        receiver = connection.create_receiver("work", credit=4)
        found = [receiver.receive(timeout=END_S) for _ in range(4)]
        assert [each.body for each in found] == ["accept", "release", "reject", "keep"]
        receiver.accept()
        receiver.release(delivered=False)
        receiver.reject()
        connection.close()  # the last one is returned

        again = connect(door)
        left = [again.create_receiver("work", credit=5).receive(timeout=END_S) for _ in range(1)]
        assert left[0].body == "release"
        again.close()
        dead = door.daemon.json("dead-letter", "list")
        assert dead
        assert [each["label"] for each in door.daemon.peek("work")] == ["", ""]


def test_competing_consumers_share_a_queue_and_a_browser_leaves_it(hosts: Hosts) -> None:
    with door_of(hosts, "shared") as door:
        connection = connect(door)
        sender = connection.create_sender("shared")
        for number in range(20):
            sender.send(Message(body=number))
        browser = connection.create_receiver("shared", options=Copy())
        assert [browser.receive(timeout=END_S).body for _ in range(20)] == list(range(20))
        browser.close()
        one = connection.create_receiver("shared", name="one")
        two = connection.create_receiver("shared", name="two")
        bodies = []
        for _ in range(10):
            for receiver in (one, two):
                bodies.append(receiver.receive(timeout=END_S).body)
                receiver.accept()
        assert bodies == list(range(20))
        connection.close()
        assert door.daemon.count("shared") == 0
