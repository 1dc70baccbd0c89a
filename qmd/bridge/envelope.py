"""Messages as headers and a body, for kinds whose messages have both.

The names and values are those of the HTTP door (docs/http.md, docs/client.md): this module only
turns them into headers of text.

    content-type       the type of the body
    qmd-id             the id of the message, GUID\\number
    qmd-label          and so on: the fields that differ from their defaults, as JSON or plain text
    qmd-properties     the properties of the application, as JSON with their types
    any other header   arrives as a property of the application
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import msgspec

from qmd.client.errors import ClientError
from qmd.client.message import Message
from qmd.control_protocol.messages import NewMessage
from qmd.doors.http import shapes
from qmd.doors.http.conversion import shown, to_send
from qmd.doors.http.problems import Problem

PREFIX = "qmd-"
ID = "qmd-id"
CONTENT_TYPE = "content-type"
#: Fields that a sender can set again; the others describe the message in its queue.
_SENT = tuple(
    name
    for name in shapes.NewMessage.__struct_fields__
    if name in shapes.Message.__struct_fields__ and name not in ("body", "body_base64")
)
_TEXTS = frozenset({"label", "content_type", "group", "correlation_id", "response_queue"})


class Unusable(ValueError):
    """Headers or a body that are no message; the text says why."""


def headers_of(message: Message) -> dict[str, str]:
    """Return the headers of a message."""
    fields = msgspec.to_builtins(shown(message))
    found = {ID: message.id}
    for name in _SENT:
        value = fields.get(name)
        if value in (None, "", [], {}, 0, False) or (name == "delivery"):
            continue
        key = CONTENT_TYPE if name == "content_type" else PREFIX + name.replace("_", "-")
        found[key] = _header(value) if name in _TEXTS else json.dumps(value, ensure_ascii=True)
    return found


def message_of(headers: Mapping[str, str], body: bytes, queue: str) -> NewMessage:
    """Return the message of headers and a body, for a queue.  Raises Unusable."""
    fields: dict[str, Any] = {}
    properties: dict[str, Any] = {}
    for key, text in headers.items():
        _check_text(key, text)
        lower = key.lower()
        name = lower.removeprefix(PREFIX).replace("-", "_")
        if lower == CONTENT_TYPE:
            fields["content_type"] = text
        elif lower.startswith(PREFIX) and name in _SENT:
            fields[name] = _unquoted(text) if name in _TEXTS else _json(key, text)
        elif not lower.startswith(PREFIX):
            properties[key] = text
    given_ones = fields.get("properties", {})
    if not isinstance(given_ones, dict):
        raise Unusable("the header qmd-properties is not a JSON object")
    if properties or given_ones:
        fields["properties"] = {**properties, **given_ones}
    try:
        given = msgspec.convert(fields, shapes.NewMessage)
        given = msgspec.structs.replace(given, body_base64=body)
        return to_send(queue, given)
    except (msgspec.ValidationError, Problem, ClientError, ValueError) as error:
        raise Unusable(str(error)) from error


def document_of(message: Message) -> bytes:
    """Return a message as one JSON document, as the HTTP door shows it."""
    return msgspec.json.encode(shown(message))


def message_of_document(content: bytes, queue: str) -> NewMessage:
    """Return the message of such a document, for a queue.  Raises Unusable."""
    try:
        fields = msgspec.json.decode(content)
        if not isinstance(fields, dict) or "body_base64" not in fields:
            raise Unusable("the document is not a message: body_base64 is missing")
        kept = {name: fields[name] for name in (*_SENT, "body_base64") if name in fields}
        kept.pop("delivery", None)
        given = msgspec.convert({k: v for k, v in kept.items() if v is not None}, shapes.NewMessage)
        return to_send(queue, given)
    except Unusable:
        raise
    except (msgspec.MsgspecError, Problem, ClientError, ValueError, RecursionError) as error:
        raise Unusable(str(error)) from error


def _header(text: str) -> str:
    """Return a header: other characters than printable ASCII become a JSON text."""
    is_plain = text.isascii() and text.isprintable() and not text.startswith('"')
    return text if is_plain else json.dumps(text, ensure_ascii=True)


def _unquoted(text: str) -> str:
    if not text.startswith('"'):
        return text
    try:
        return msgspec.json.decode(text, type=str)
    except (msgspec.MsgspecError, ValueError):
        return text


def _json(key: str, text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise Unusable(f"the header {key} is not JSON: {error}") from error


def _check_text(key: str, text: str) -> None:
    """Refuse what no message can have: parts of surrogate pairs.  Raises Unusable."""
    try:
        (key + text).encode()
    except UnicodeEncodeError:
        name = key.encode("ascii", "backslashreplace").decode()
        raise Unusable(f"the header {name} is no valid text") from None
