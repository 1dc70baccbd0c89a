"""Messages: from the bodies of requests to the control protocol, and back."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, cast

import msgspec
from msgspec import UNSET

from qmd.bodies.bus_headers import write_bus_headers
from qmd.bodies.errors import UnreadableBody
from qmd.client.choice import chosen
from qmd.client.defined_properties import json_value
from qmd.client.message import Message
from qmd.client.new_message import Acknowledge, new_message
from qmd.control_protocol import messages as frames
from qmd.doors.http import shapes
from qmd.doors.http.exchange import JSON
from qmd.doors.http.problems import Problem
from qmd.properties.block import BadProperty

_ACKNOWLEDGE = {
    "positive_arrival": Acknowledge.POSITIVE_ARRIVAL,
    "positive_receive": Acknowledge.POSITIVE_RECEIVE,
    "negative_arrival": Acknowledge.NEGATIVE_ARRIVAL,
    "negative_receive": Acknowledge.NEGATIVE_RECEIVE,
}
# Types of text in UTF-16 and in 8 bits, [MS-MQMQ] 2.2.12.
_TEXT_TYPES = {0x8: "utf-16-le", 0x1F: "utf-16-le", 0x1E: "utf-8"}
_NONE: Mapping[str, Any] = {}


def to_send(destination: str, given: shapes.NewMessage) -> frames.NewMessage:
    """Return the message of a request body.  Raises Problem, BadName."""
    bodies = [
        each for each in (given.body, given.body_base64, given.body_json) if each is not UNSET
    ]
    if len(bodies) > 1:
        raise Problem(400, "http_bad_body", "a message has one of body, body_base64, body_json")
    if given.body is not UNSET:
        body = given.body.encode()
    elif given.body_base64 is not UNSET:
        body = given.body_base64
    else:
        body = b"" if given.body_json is UNSET else msgspec.json.encode(given.body_json)
    if given.body_json is not UNSET and not given.content_type:
        given = msgspec.structs.replace(given, content_type=JSON)
    extension = given.extension_base64
    if given.service_bus is not None:
        extension = _bus_extension(given, given.service_bus)
        given = msgspec.structs.replace(given, content_type="")
    return with_properties(
        destination,
        body,
        given,
        extension,
        content_type=given.content_type,
        properties=given.properties,
    )


def _bus_extension(given: shapes.NewMessage, bus: shapes.ServiceBus) -> bytes:
    """Return the extension that an endpoint would write.  Raises Problem."""
    if given.extension_base64 or given.properties or given.group:
        raise Problem(
            400, "http_bad_body", "service_bus stands in place of extension, properties and group"
        )
    try:
        return write_bus_headers(bus.framework, bus.headers)
    except UnreadableBody as error:
        raise Problem(400, "http_bad_body", str(error)) from error


def with_properties(
    destination: str,
    body: bytes,
    given: shapes.MessageProperties,
    extension: bytes = b"",
    *,
    content_type: str = "",
    properties: Mapping[str, Any] = _NONE,
) -> frames.NewMessage:
    """Return a message with the given properties.  Raises BadName, Problem."""
    acknowledge = 0
    for name in given.acknowledge:
        acknowledge |= _ACKNOWLEDGE[name]
    try:
        return _made(destination, body, given, acknowledge, extension, content_type, properties)
    except BadProperty as error:
        raise Problem(400, "bad_property", str(error)) from error
    except ValueError as error:  # a delay beyond the end of the calendar
        raise Problem(400, "http_bad_body", str(error)) from error


def _made(
    destination: str,
    body: bytes,
    given: shapes.MessageProperties,
    acknowledge: int,
    extension: bytes,
    content_type: str,
    properties: Mapping[str, Any],
) -> frames.NewMessage:
    return new_message(
        destination,
        body,
        properties=properties,
        group=given.group,
        content_type=content_type,
        delivery=given.delivery,
        correlation_id=given.correlation_id,
        body_type=given.body_type,
        label=given.label,
        priority=given.priority,
        time_to_reach_queue_s=given.time_to_reach_queue_s,
        time_to_be_received_s=given.time_to_be_received_s,
        dead_letter=given.dead_letter,
        journal=given.journal,
        application_tag=given.application_tag,
        extension=extension,
        response_queue=given.response_queue,
        admin_queue=given.admin_queue,
        acknowledge=acknowledge,
        report_queue=given.report_queue,
        dead_letter_queue=given.dead_letter_queue,
        deliver_at=given.deliver_at,
        delay_s=given.delay_s,
    )


def shown(message: Message) -> shapes.Message:
    """Return a message as the body of a response."""
    return shapes.Message(**_fields(message))


def shown_locked(message: Message, lock_id: str, until: datetime) -> shapes.LockedMessage:
    """Return a locked message as the body of a response."""
    return shapes.LockedMessage(**_fields(message), lock_id=lock_id, locked_until=time_text(until))


def _fields(message: Message) -> dict[str, Any]:
    stored = message.stored
    fields: dict[str, Any] = {
        "id": message.id,
        "lookup_id": stored.lookup_id,
        "label": message.label,
        "body_base64": message.body,
        "body_type": message.body_type,
        "priority": message.priority,
        "delivery": message.delivery,
        "message_class": message.message_class,
        "sent_at": time_text(message.sent_at),
        "arrived_at": time_text(message.arrived_at),
        "source": message.source,
        "destination": message.destination,
        "correlation_id": message.correlation_id,
        "application_tag": message.application_tag,
        "extension_base64": message.extension,
        "content_type": message.content_type,
        "group": message.group,
        "properties": json_value(message.properties),
        "response_queue": message.response_queue,
        "admin_queue": message.admin_queue,
        "acknowledge": message.acknowledge,
        "time_to_reach_queue_s": message.time_to_reach_queue,
        "time_to_be_received_s": message.time_to_be_received,
        "journal": message.journal,
        "dead_letter": message.dead_letter,
        "reason": message.reason,
        "abort_count": message.abort_count,
        "move_count": message.move_count,
        "authenticated": message.authenticated,
        "sender_id": message.sender_id_text,
        "principals": list(message.principals),
    }
    bus = message.bus_headers
    if bus is not None:
        fields["service_bus"] = bus.to_json()
    text = text_of(message)
    if text is not None:
        fields["body"] = text
    return fields


def text_of(message: Message) -> str | None:
    """Return the body as text; None if it is not text."""
    coding = _TEXT_TYPES.get(message.body_type, "utf-8" if message.body_type == 0 else "")
    if not coding:
        return None
    try:
        text = message.body.decode(coding)
    except UnicodeDecodeError:
        return None
    return text.rstrip("\0") if message.body_type else text


def choice_of(given: shapes.Choice | None) -> frames.Choice:
    """Return the choice of a request body.  Raises BadName."""
    if given is None:
        return frames.EVERY_MESSAGE
    return chosen(
        lookup_ids=given.lookup_ids,
        ids=given.ids,
        label=given.label,
        reason=given.reason,
        message_class=given.message_class,
        destination=given.destination,
        correlation_ids=given.correlation_ids,
        where=_where(given),
    )


def _where(given: shapes.Choice) -> str:
    """Return the selector of a choice, with its group."""
    if not given.group:
        return given.where
    of_group = "qmd.group = '{}'".format(given.group.replace("'", "''"))
    return f"({given.where}) AND {of_group}" if given.where else of_group


def retry_of(given: shapes.Retry | None) -> frames.RetryProperties | None:
    """Return the retry policy, or its changes, of a request body."""
    return None if given is None else frames.RetryProperties(**msgspec.structs.asdict(given))


def sent(ids: list[Any]) -> list[shapes.Sent]:
    """Return the ids of sent messages; the id of a message to several queues is a list."""
    return [
        shapes.Sent(id=each)
        if isinstance(each, str)
        else shapes.Sent(id=cast(str, each[0]) if each else "", copies=list(each))
        for each in ids
    ]


def time_text(moment: datetime) -> str:
    """Return a time in RFC 3339, in UTC."""
    text = moment.astimezone(UTC).isoformat(timespec="milliseconds")
    return text.replace("+00:00", "Z")


def queue_of(facts: Mapping[str, Any]) -> shapes.Queue:
    """Return a queue as the body of a response."""
    return msgspec.convert(facts, shapes.Queue)
