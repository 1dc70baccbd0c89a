"""Messages as headers, and back."""

from __future__ import annotations

import pytest

from protocol.names.format_name import parse_format_name
from qmd.bridge.ends import Recent
from qmd.bridge.envelope import (
    Unusable,
    document_of,
    headers_of,
    message_of,
    message_of_document,
)
from qmd.bridge.process import metrics
from qmd.client.message import Message
from qmd.client.new_message import new_message
from qmd.control_protocol.messages import EXPRESS, NewMessage, StoredMessage
from qmd.message.addresses import NO_ADDRESS, queue_address, reply_address
from qmd.message.build import compose

QUEUE = "private$\\orders"


def stored(new: NewMessage) -> Message:
    """Return a message as it is in a queue."""
    response = NO_ADDRESS
    if new.response_queue:
        response = reply_address(parse_format_name(new.response_queue))
    packet = compose(
        new,
        source=bytes(range(16)),
        destination=queue_address(parse_format_name("DIRECT=OS:a\\private$\\orders")),
        admin=NO_ADDRESS,
        response=response,
        message_number=7,
        sent_time_s=1_760_000_000,
        delivery=EXPRESS,
        position=None,
    )
    return Message(StoredMessage(1, 1_760_000_000_000, packet))


FULL = new_message(
    QUEUE,
    "zehn Schrauben",
    label="Bestellung für „Müller“",
    priority=6,
    properties={"region": "east", "weight": 3, "urgent": True},
    group="customer 17",
    content_type="text/plain",
    application_tag=9,
    correlation_id="03020100-0504-0706-0809-0a0b0c0d0e0f\\5",
    response_queue="DIRECT=OS:b\\private$\\replies",
    time_to_be_received_s=60,
    extension=b"\0\1",
)


def same(new: NewMessage, old: NewMessage) -> bool:
    names = ("body", "label", "priority", "body_type", "correlation_id", "application_tag",
             "extension", "response_queue", "time_to_be_received_s")  # fmt: skip
    return all(getattr(new, name) == getattr(old, name) for name in names)


def test_all_properties_return():
    message = stored(FULL)
    headers = headers_of(message)

    assert all(text.isascii() and text.isprintable() for text in headers.values())
    assert same(message_of(headers, message.body, QUEUE), FULL)
    assert same(message_of_document(document_of(message), QUEUE), FULL)


def test_a_plain_message_has_few_headers():
    assert set(headers_of(stored(new_message(QUEUE, b"x")))) == {
        "qmd-id", "qmd-priority", "qmd-time-to-reach-queue-s", "qmd-dead-letter",
    }  # fmt: skip


def test_other_headers_are_properties():
    message = stored(message_of({"region": "east", "Qmd-Label": "a"}, b"x", QUEUE))

    assert (message.label, dict(message.properties)) == ("a", {"region": "east"})


@pytest.mark.parametrize(
    "headers",
    [
        {"qmd-priority": "high"},
        {"qmd-priority": "9"},
        {"qmd-label": "x" * 300},
        {"qmd-properties": "[1]"},
        {"qmd-properties": "[" * 10_000},
        {"qmd-correlation-id": "?"},
    ],
)
def test_headers_that_are_no_message_are_refused(headers: dict[str, str]):
    with pytest.raises(Unusable):
        message_of(headers, b"x", QUEUE)


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b'{"body_base64": 1}', b"[" * 10_000])
def test_documents_that_are_no_message_are_refused(content: bytes):
    with pytest.raises(Unusable):
        message_of_document(content, QUEUE)


def test_recent_ids_are_limited():
    recent = Recent(2, ["a"])
    for each in ("b", "a", "c"):
        recent.add(each)

    assert list(recent) == ["a", "c"]
    assert "b" not in recent


def test_metrics():
    row = {"name": "a", "kind": "nats", "direction": "in", "state": "running",
           "messages": 3, "refused": 1, "errors": 2}  # fmt: skip
    text = metrics([row])

    assert 'qmd_bridge_messages_total{bridge="a",kind="nats",direction="in"} 3' in text
    assert text.count("# TYPE") == 4
