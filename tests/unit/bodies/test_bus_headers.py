"""Headers of NServiceBus, Rebus and MassTransit in the extension of a message."""

from __future__ import annotations

import contextlib
import json
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qmd.bodies.bus_headers import (
    FRAMEWORKS,
    format_name,
    interpret_headers,
    parse_headers,
    read_bus_headers,
    reply_headers,
    write_bus_headers,
)
from qmd.bodies.content import write_content
from qmd.bodies.errors import UnreadableBody

SENT = datetime(2026, 1, 2, 3, 4, 5, 678901, UTC)
# As XmlSerializer writes a list of HeaderInfo; its writer does not check characters.
FAILED = (
    b'<?xml version="1.0" encoding="utf-8"?>'
    b'<ArrayOfHeaderInfo xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance"'
    b' xmlns:xsd="http://www.w3.org/2001/XMLSchema">'
    b"<HeaderInfo><Key>NServiceBus.MessageId</Key><Value>8f-1</Value></HeaderInfo>"
    b"<HeaderInfo><Key>NServiceBus.CorrelationId</Key><Value>8f-0</Value></HeaderInfo>"
    b"<HeaderInfo><Key>NServiceBus.ConversationId</Key><Value>c1</Value></HeaderInfo>"
    b"<HeaderInfo><Key>NServiceBus.EnclosedMessageTypes</Key>"
    b"<Value>Shop.Order, Shop, Version=1.0.0.0;Shop.IOrder, Shop</Value></HeaderInfo>"
    b"<HeaderInfo><Key>NServiceBus.ContentType</Key><Value>text/xml</Value></HeaderInfo>"
    b"<HeaderInfo><Key>NServiceBus.MessageIntent</Key><Value>Send</Value></HeaderInfo>"
    b"<HeaderInfo><Key>NServiceBus.ReplyToAddress</Key><Value>web@HOSTA</Value></HeaderInfo>"
    b"<HeaderInfo><Key>NServiceBus.FailedQ</Key><Value>billing@HOSTB</Value></HeaderInfo>"
    b"<HeaderInfo><Key>NServiceBus.Retries</Key><Value>3</Value></HeaderInfo>"
    b"<HeaderInfo><Key>NServiceBus.TimeSent</Key><Value>2026-01-02 03:04:05:678901 Z</Value>"
    b"</HeaderInfo>"
    b"<HeaderInfo><Key>NServiceBus.TimeOfFailure</Key><Value>2026-01-02 03:05:00:000000 Z</Value>"
    b"</HeaderInfo>"
    b"<HeaderInfo><Key>NServiceBus.ExceptionInfo.ExceptionType</Key><Value>System.Exception</Value>"
    b"</HeaderInfo>"
    b"<HeaderInfo><Key>NServiceBus.ExceptionInfo.Message</Key>"
    b"<Value>no &lt;price&gt;&#x1F;\n   at Shop</Value></HeaderInfo>"
    b"<HeaderInfo><Key>Empty</Key><Value /></HeaderInfo>"
    b"<HeaderInfo><Key>Absent</Key></HeaderInfo>"
    b"</ArrayOfHeaderInfo>"
)
REBUS: dict[str, str] = {
    "rbs2-msg-id": "a1",
    "rbs2-msg-type": "Shop.Order, Shop",
    "rbs2-content-type": "application/json;charset=utf-8",
    "rbs2-corr-id": "a0",
    "rbs2-corr-seq": "4",
    "rbs2-return-address": "web@hosta",
    "rbs2-intent": "p2p",
    "rbs2-senttime": "2026-01-02T04:04:05.6789010+01:00",
    "rbs2-defer-count": "2",
    "rbs2-source-queue": "billing@hostb",
    "rbs2-error-details": "System.Exception: no price\r\n   at Shop",
}
ENVELOPE: dict[str, Any] = {
    "messageId": "m1",
    "conversationId": "c1",
    "sourceAddress": "msmq://hosta/web",
    "responseAddress": "msmq://hosta/web?tx=true",
    "retryCount": 1,
    "messageType": ["urn:message:Shop:Order", "urn:message:Shop:IOrder"],
    "headers": {"tenant": "7", "odd": None},
    "message": {"Article": "screw"},
}


def test_a_failed_message_of_nservicebus():
    found = read_bus_headers(FAILED)
    assert found is not None
    assert found.framework == "NServiceBus"
    assert (found.message_id, found.correlation_id, found.conversation_id) == ("8f-1", "8f-0", "c1")
    assert found.message_types == ("Shop.Order, Shop, Version=1.0.0.0", "Shop.IOrder, Shop")
    assert (found.content_type, found.intent, found.is_control) == ("text/xml", "Send", False)
    assert (found.return_address, found.failed_queue) == ("web@HOSTA", "billing@HOSTB")
    assert found.error == "System.Exception: no <price>\ufffd\n   at Shop"
    assert found.retries == 3
    assert found.sent_at == SENT
    assert found.failed_at == datetime(2026, 1, 2, 3, 5, tzinfo=UTC)
    assert (found.headers["Empty"], found.headers["Absent"]) == ("", "")
    assert found.summary == (
        "NServiceBus: Shop.Order; Send; replies to web@HOSTA; 3 retries;"
        " failed in billing@HOSTB; System.Exception: no <price>\ufffd"
    )
    assert json.loads(json.dumps(found.to_json()))["failed_queue"] == "billing@HOSTB"


@pytest.mark.parametrize("change", [b"\0", b"\0\0 old bytes <a>", b"\n"])
def test_bytes_behind_the_end_are_ignored(change: bytes):
    assert parse_headers(FAILED + change) == parse_headers(FAILED)
    assert parse_headers(b"\xef\xbb\xbf" + FAILED) == parse_headers(FAILED)


def test_a_subscription_of_nservicebus_is_a_control_message():
    headers = {
        "NServiceBus.ControlMessage": "True",
        "NServiceBus.MessageIntent": "Subscribe",
        "SubscriptionMessageType": "Shop.Paid, Shop",
        "NServiceBus.ReplyToAddress": "web@hosta",
    }
    found = read_bus_headers(write_bus_headers("NServiceBus", headers))
    assert found is not None
    assert found.is_control
    assert found.summary == (
        "NServiceBus: control message; Shop.Paid; Subscribe; replies to web@hosta"
    )


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-7"])
def test_a_failed_message_of_rebus(encoding: str):
    text = json.dumps(REBUS)
    data = text.encode(encoding)
    if encoding == "utf-7":  # .NET encodes the first brace, Python does not
        data = b"+AHs-" + text[1:].encode("utf-7")
    found = read_bus_headers(data)
    assert found is not None
    assert found.framework == "Rebus"
    assert (found.message_id, found.correlation_id, found.retries) == ("a1", "a0", 2)
    assert found.sent_at == SENT
    assert found.summary == (
        "Rebus: Shop.Order; p2p; replies to web@hosta; 2 retries; failed in billing@hostb;"
        " System.Exception: no price"
    )


def test_names_of_the_first_rebus_and_its_control_messages():
    old = {"rebus-msg-id": "1", "rebus-return-address": "a@b", "rebus-source-queue": "c@d"}
    found = interpret_headers(old)
    assert found is not None
    assert (found.message_id, found.return_address, found.failed_queue) == ("1", "a@b", "c@d")

    request = {"rbs2-msg-type": "Rebus.Messages.Control.SubscribeRequest, Rebus"}
    found = interpret_headers(request)
    assert found is not None
    assert found.is_control


@pytest.mark.parametrize("kind", ["json", "xml"])
def test_the_envelope_of_masstransit(kind: str):
    envelope: dict[str, Any] = ENVELOPE
    if kind == "xml":
        envelope = {
            name: str(text) if name == "retryCount" else text for name, text in envelope.items()
        }
    body, _ = write_content(envelope, kind, root="envelope")
    extension = json.dumps({"Content-Type": f"application/vnd.masstransit+{kind}"}).encode()
    found = read_bus_headers(extension, body)
    assert found is not None
    assert found.framework == "MassTransit"
    assert (found.message_id, found.conversation_id, found.retries) == ("m1", "c1", 1)
    assert found.message_types == ("urn:message:Shop:Order", "urn:message:Shop:IOrder")
    assert found.headers["tenant"] == "7"
    assert found.return_address == "msmq://hosta/web?tx=true"
    assert found.summary == (
        "MassTransit: Shop:Order; replies to msmq://hosta/web?tx=true; 1 retry"
    )
    assert read_bus_headers(b"", body, f"application/vnd.masstransit+{kind}") == found


def test_an_encrypted_body_of_masstransit_has_its_type_only():
    extension = b'{"Content-Type":"application/vnd.masstransit+aes","Original-Message-Id":"9"}'
    found = read_bus_headers(extension, b"\0\1\2")
    assert found is not None
    assert (found.message_id, found.message_types) == ("9", ())
    assert found.summary == "MassTransit: 2 headers"


@pytest.mark.parametrize(
    "extension",
    [
        b"",
        b"of the application",
        b"{",
        b'{"a": "b"}',
        b'["rbs2-msg-id"]',
        b'{"rbs2-msg-id": {}}',
        b'{"rbs2-msg-id": "\\ud800"}',
        b"+AHs-" + b"\xff",
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b"<Other/>",
        b"<ArrayOfHeaderInfo>",
        b"<x><ArrayOfHeaderInfo/></x>",
        b"<ArrayOfHeaderInfo><Other/></ArrayOfHeaderInfo>",
        FAILED.replace(b"NServiceBus.FailedQ", b"NServiceBus.MessageId"),
        b'<!DOCTYPE a [<!ENTITY b "NServiceBus.x">]><ArrayOfHeaderInfo><HeaderInfo><Key>&b;</Key>'
        b"</HeaderInfo></ArrayOfHeaderInfo>",
    ],
    ids=range(16),
)
def test_other_extensions_have_no_headers(extension: bytes):
    assert read_bus_headers(extension) is None


@pytest.mark.parametrize("framework", FRAMEWORKS)
@given(
    st.dictionaries(
        st.text(st.characters(exclude_categories=("Cs", "Cc")), min_size=1),
        st.text(st.characters(exclude_categories=("Cs", "Cc")) | st.sampled_from("\r\n\t<&>\"'")),
    )
)
@settings(max_examples=100, deadline=None)
def test_headers_come_back(framework: str, headers: dict[str, str]):
    assert parse_headers(write_bus_headers(framework, headers)) == headers


@given(st.binary(max_size=60), st.sampled_from([b"{", b"<ArrayOfHeaderInfo>", b"+AHs", b""]))
@settings(max_examples=300, deadline=None)
def test_any_extension_is_read_or_refused(rest: bytes, start: bytes):
    with contextlib.suppress(UnreadableBody):
        parse_headers(start + rest)


def test_headers_without_a_form_are_refused():
    with pytest.raises(UnreadableBody, match="XML"):
        write_bus_headers("NServiceBus", {"a": "\1"})
    with pytest.raises(ValueError, match="NServiceBus, Rebus"):
        write_bus_headers("Other", {})


@pytest.mark.parametrize(
    ("address", "name"),
    [
        ("web@HOSTA", r"DIRECT=OS:HOSTA\private$\web"),
        ("web@10.0.0.5", r"DIRECT=TCP:10.0.0.5\private$\web"),
        ("shop.web.error@a.example", r"DIRECT=OS:a.example\private$\shop.web.error"),
        ("private$\\web@hosta", r"DIRECT=OS:hosta\private$\web"),
        ("msmq://hosta/web?tx=true", r"DIRECT=OS:hosta\private$\web"),
        *((text, None) for text in ("web", "web@localhost", "web@.", "msmq://localhost/web")),
        *(
            (text, None)
            for text in ("", "@a", "a@b@c", "a\\b@c", "a@b\\c", "a,b@c", "a@b;c", "a\n@b")
        ),
        *((text, None) for text in ("rabbitmq://a/b", "http://a/b", "msmq://a/b/c", "a@-b")),
    ],
)
def test_the_queue_of_an_address(address: str, name: str | None):
    assert format_name(address) == name


def test_a_reply_of_nservicebus_names_the_saga_that_asked():
    headers = {
        **parse_headers(FAILED),
        "NServiceBus.OriginatingSagaId": "s1",
        "NServiceBus.OriginatingSagaType": "Shop.OrderSaga, Shop",
    }
    received = interpret_headers(headers)
    assert received is not None
    reply = reply_headers(received, "Shop.Accepted, Shop", "text/xml", id="9", sent_at=SENT)
    assert reply == {
        "NServiceBus.MessageId": "9",
        "NServiceBus.MessageIntent": "Reply",
        "NServiceBus.CorrelationId": "8f-0",
        "NServiceBus.ConversationId": "c1",
        "NServiceBus.RelatedTo": "8f-1",
        "NServiceBus.EnclosedMessageTypes": "Shop.Accepted, Shop",
        "NServiceBus.ContentType": "text/xml",
        "NServiceBus.TimeSent": "2026-01-02 03:04:05:678901 Z",
        "NServiceBus.SagaId": "s1",
        "NServiceBus.SagaType": "Shop.OrderSaga, Shop",
    }


def test_a_reply_of_rebus():
    received = interpret_headers(REBUS)
    assert received is not None
    sent_at = SENT.astimezone(timezone(timedelta(hours=1)))
    reply = reply_headers(
        received, "Shop.Accepted, Shop", "application/json", id="9", sent_at=sent_at
    )
    found = interpret_headers(reply)
    assert found is not None
    assert (found.related_to, found.correlation_id, found.sent_at) == ("a1", "a0", SENT)
    assert reply["rbs2-corr-seq"] == "5"


def test_masstransit_has_no_headers_for_a_reply():
    received = interpret_headers({"Content-Type": "application/vnd.masstransit+json"})
    assert received is not None
    with pytest.raises(ValueError, match="envelope"):
        reply_headers(received, "a", "b", id="9", sent_at=SENT)
