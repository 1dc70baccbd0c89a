"""Messages for endpoints of MassTransit: the envelope of JSON around a message, and its headers.

The fields are those of the published page "Interoperability" of MassTransit.  No endpoint of
MassTransit on Windows has read such a message yet.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from qmd.bodies.bus_headers import MASS_TRANSIT, write_bus_headers

CONTENT_TYPE = "application/vnd.masstransit+json"
_TYPE = "urn:message:"
_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:[!-~]+")


def write_mass_transit(
    message: Mapping[str, Any],
    message_types: Sequence[str],
    *,
    id: str,
    sent_at: datetime,
    source_address: str = "",
    destination_address: str = "",
    response_address: str = "",
    fault_address: str = "",
    request_id: str = "",
    correlation_id: str = "",
    conversation_id: str = "",
    initiator_id: str = "",
    headers: Mapping[str, str] | None = None,
) -> tuple[bytes, bytes]:
    """Return the body and the extension of a message that an endpoint of MassTransit reads.

    message: the fields of the message, values of JSON.  message_types: its type and those that it
    implements, such as "urn:message:Shop:Order".  Ids are GUIDs, addresses URIs such as
    "msmq://hosta/orders"; an empty one is left out.  sent_at: with a time zone.  A reply has the
    request_id and the conversation_id of its request.

    Raises ValueError for an id, an address, a type or a time that MassTransit could not read, and
    for a message that JSON cannot hold.
    """
    if not id:
        raise ValueError("id is empty; it is a GUID")
    if not message_types or not all(
        each.startswith(_TYPE) and each.removeprefix(_TYPE) for each in message_types
    ):
        raise ValueError(f"the types are {list(message_types)}; each begins with {_TYPE!r}")
    if sent_at.tzinfo is None:
        raise ValueError(f"the time {sent_at} has no time zone; give it one, such as UTC")
    ids = {
        "messageId": _guid("id", id),
        "requestId": _guid("request_id", request_id),
        "correlationId": _guid("correlation_id", correlation_id),
        "conversationId": _guid("conversation_id", conversation_id),
        "initiatorId": _guid("initiator_id", initiator_id),
    }
    addresses = {
        "sourceAddress": _uri("source_address", source_address),
        "destinationAddress": _uri("destination_address", destination_address),
        "responseAddress": _uri("response_address", response_address),
        "faultAddress": _uri("fault_address", fault_address),
    }
    envelope = {
        **{name: text for name, text in {**ids, **addresses}.items() if text},
        "messageType": list(message_types),
        "message": dict(message),
        "sentTime": f"{sent_at.astimezone(UTC):%Y-%m-%dT%H:%M:%S.%fZ}",
        "headers": dict(headers or {}),
    }
    try:
        body = json.dumps(envelope, ensure_ascii=False, allow_nan=False).encode()
    except TypeError as error:
        raise ValueError(f"the message has a value that JSON cannot hold: {error}") from None
    return body, write_bus_headers(MASS_TRANSIT, {"Content-Type": CONTENT_TYPE})


def _guid(name: str, text: str) -> str:
    if not text:
        return ""
    try:
        return str(UUID(text))
    except ValueError:
        raise ValueError(f"{name} is {text!r:.80}; MassTransit reads GUIDs only") from None


def _uri(name: str, text: str) -> str:
    if text and not _URI.fullmatch(text):
        raise ValueError(f"{name} is {text!r:.80}; it is a URI such as 'msmq://hosta/orders'")
    return text
