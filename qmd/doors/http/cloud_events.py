"""CloudEvents 1.0 in HTTP: binary, structured and batched; from messages and to messages.

The data of an event is the body of its message, the subject or else the type its label, and its
attributes are properties of the application with the prefix `cloudEvents:`, as in the binding of
CloudEvents to AMQP: an event that is sent over one door is received as the same over another.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from typing import Annotated, Any
from urllib.parse import quote, unquote

import msgspec
from msgspec import UNSET, Meta, Struct

from qmd.client.defined_properties import json_value
from qmd.client.message import Message
from qmd.control_protocol import messages as frames
from qmd.doors.http import shapes
from qmd.doors.http.conversion import text_of, time_text, with_properties
from qmd.doors.http.problems import Problem

STRUCTURED = "application/cloudevents+json"
BATCH = "application/cloudevents-batch+json"
VERSION = "1.0"
PREFIX, OTHER_PREFIX = "cloudEvents:", "cloudEvents_"  # the AMQP binding permits both
LABEL_UNITS_MAX = 249
_NAME = re.compile(r"[a-z0-9]{1,50}")  # of an attribute; it becomes the name of a header
_DATA = "data"  # no attribute, although it could be the name of one
_REQUIRED = ("id", "source", "type")


class Event(Struct, kw_only=True):
    """A CloudEvent in JSON; extension attributes are further members."""

    specversion: Annotated[str, Meta(pattern=r"^1\.0$")]
    id: Annotated[str, Meta(min_length=1)]
    source: Annotated[str, Meta(min_length=1)]
    type: Annotated[str, Meta(min_length=1)]


#: A batch may be empty (JSON event format, clause 4).
Events = Annotated[list[dict[str, Any]], Meta(max_length=10_000)]


#: The header of a request that is an event in binary mode: its attributes are headers.
BINARY = "ce-specversion"


def from_binary(
    destination: str, headers: Mapping[str, str], body: bytes, query: shapes.SendQuery
) -> frames.NewMessage:
    """Return the message of an event of which the body is the data.  Raises Problem."""
    attributes = {
        name[3:]: unquote(value) for name, value in headers.items() if name.startswith("ce-")
    }
    if "content-type" in headers:
        attributes["datacontenttype"] = headers["content-type"]
    return _message(destination, attributes, body, query)


def from_structured(destination: str, event: Any, query: shapes.SendQuery) -> frames.NewMessage:
    """Return the message of an event in JSON.  Raises Problem."""
    data = event.get("data", UNSET)
    # A member that is null is an attribute that is not set (JSON event format, clause 2.4).
    attributes = {name: value for name, value in event.items() if value is not None}
    attributes.pop("data", None)
    coded = attributes.pop("data_base64", UNSET)
    if data is not UNSET and coded is not UNSET:
        raise Problem(400, "http_bad_event", "an event has data or data_base64, not both")
    if coded is not UNSET:
        try:
            body = base64.b64decode(coded, validate=True)
        except (ValueError, TypeError) as error:
            raise Problem(400, "http_bad_event", f"data_base64: {error}") from error
    elif data is UNSET:
        body = b""
    elif isinstance(data, str) and not _is_json(attributes):
        body = data.encode()
    else:
        body = msgspec.json.encode(data)
        attributes.setdefault("datacontenttype", "application/json")
    return _message(destination, attributes, body, query)


def _is_json(attributes: Mapping[str, Any]) -> bool:
    """Return whether the data is JSON; it is if no type is given."""
    media = str(attributes.get("datacontenttype", "application/json")).partition(";")[0].strip()
    return media.lower().endswith(("/json", "+json"))


def _message(
    destination: str, attributes: dict[str, Any], body: bytes, query: shapes.SendQuery
) -> frames.NewMessage:
    if attributes.get("specversion") != VERSION:
        raise Problem(400, "http_bad_event", "specversion must be 1.0")
    for name in _REQUIRED:
        if not isinstance(attributes.get(name), str) or not attributes[name]:
            raise Problem(400, "http_bad_event", f"the attribute {name} is required")
    for name, value in attributes.items():
        if not _NAME.fullmatch(name):
            raise Problem(400, "http_bad_event", f"{name!r} is not the name of an attribute")
        if not isinstance(value, str | int | bool) or value != value:
            raise Problem(400, "http_bad_event", f"the attribute {name} has no simple value")
    media = attributes.pop("datacontenttype", "")
    if not isinstance(media, str):
        raise Problem(400, "http_bad_event", "datacontenttype is no text")
    if not query.label:
        label = str(attributes.get("subject") or attributes["type"])[:LABEL_UNITS_MAX]
        query = msgspec.structs.replace(query, label=label if _fits(label) else "")
    return with_properties(
        destination,
        body,
        query,
        content_type=media,
        properties={PREFIX + name: value for name, value in attributes.items()},
    )


def _fits(label: str) -> bool:
    return len(label.encode("utf-16-le", "surrogatepass")) // 2 <= LABEL_UNITS_MAX


def attributes_of(message: Message) -> dict[str, Any]:
    """Return the attributes of a message as an event: those it was sent with, or its properties.

    Other hosts send properties with any names: those that no attribute may have are left out.
    """
    found = {
        name[len(PREFIX) :]: value
        for name, value in json_value(message.properties).items()
        if name.startswith((PREFIX, OTHER_PREFIX))
        and _NAME.fullmatch(name, len(PREFIX))
        and name[len(PREFIX) :] != _DATA
    }
    if all(isinstance(found.get(each), str) for each in (*_REQUIRED, "specversion")):
        return {
            **found,
            **({"datacontenttype": message.content_type} if message.content_type else {}),
        }
    attributes: dict[str, Any] = {
        "specversion": VERSION,
        "id": message.id,
        "source": f"urn:msmq:{message.source}",
        "type": "msmq.message",
        "time": time_text(message.sent_at),
    }
    if message.label:
        attributes["subject"] = message.label
    if message.content_type:
        attributes["datacontenttype"] = message.content_type
    elif text_of(message) is not None:
        attributes["datacontenttype"] = "text/plain; charset=utf-8"
    return attributes


def to_structured(message: Message) -> dict[str, Any]:
    """Return a message as an event in JSON."""
    event = attributes_of(message)
    body = message.body
    if not body:
        return event
    if _is_json(event) and "datacontenttype" in event:
        try:
            return {**event, "data": msgspec.json.decode(body)}
        except (msgspec.DecodeError, RecursionError):
            pass
    text = text_of(message)
    is_text = str(event.get("datacontenttype", "")).startswith("text/")
    if is_text and text is not None:
        return {**event, "data": text}
    return {**event, "data_base64": base64.b64encode(body).decode()}


def to_binary(message: Message) -> tuple[tuple[tuple[str, str], ...], str]:
    """Return the headers and the media type of a message as an event in binary mode."""
    attributes = attributes_of(message)
    media = str(attributes.pop("datacontenttype", "application/octet-stream"))
    headers = tuple((f"ce-{name}", header_value(value)) for name, value in attributes.items())
    return headers, media if _is_plain(media) else "application/octet-stream"


def header_value(value: Any) -> str:
    """Return a value as a header: characters outside of ASCII, and % and quotes, are encoded."""
    text = {True: "true", False: "false"}[value] if isinstance(value, bool) else str(value)
    return quote(text, safe=" !#$&'()*+,-./:;<=>?@[\\]^_`{|}~")


def _is_plain(text: str) -> bool:
    return text.isascii() and text.isprintable()
