"""Messages that a client sends: from the sections of AMQP to the properties of MSMQ.

The table is in docs/amqp.md.  Properties without a field in MSMQ travel in the extension
(`qmd.properties`), with their types, so that a receiver over AMQP gets them back unchanged.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from datetime import datetime
from functools import lru_cache
from typing import Any, NamedTuple, cast

from protocol.body_type import BodyType
from protocol.errors import InvalidName
from protocol.identifiers import guid_bytes, parse_correlation
from protocol.names.format_name import parse_destination
from protocol.security_id import parse_security_id
from qmd.bodies.bus_headers import FRAMEWORKS, write_bus_headers
from qmd.bodies.errors import UnreadableBody
from qmd.control_protocol import messages as frames
from qmd.doors.amqp import sections as parts
from qmd.doors.amqp.decoding import value_of
from qmd.doors.amqp.sections import BadMessage, Section
from qmd.doors.amqp.values import EPOCH, MILLISECOND, to_value
from qmd.properties import amqp_header
from qmd.properties import values as names
from qmd.properties.block import BadProperty, with_properties
from qmd.properties.values import MessageProperties, Typed, Value, plain

LABEL_CHARACTERS_MAX = 249
TEXT_BYTES_MAX = 1024 * 1024  # a longer text is passed on as it came: UTF-16 would double it

#: The fields of the section PROPERTIES, in their order.
STANDARD = (
    names.MESSAGE_ID, names.USER_ID, names.TO, names.SUBJECT, names.REPLY_TO,
    names.CORRELATION_ID, names.CONTENT_TYPE, names.CONTENT_ENCODING, names.EXPIRES_AT,
    names.CREATED_AT, names.GROUP, names.GROUP_SEQUENCE, names.REPLY_TO_GROUP,
)  # fmt: skip
OWN = "x-opt-msmq-"  # annotations that are fields of MSMQ
SERVICE_BUS = f"{OWN}service-bus"
DELIVERY_TIME, DELIVERY_DELAY = "x-opt-delivery-time", "x-opt-delivery-delay"
BODY = "amqp-body"  # a key of `MessageProperties.more`
AS_SECTIONS, AS_NULL = "sections", "null"  # values of BODY


class Arrived(NamedTuple):
    """A message of a client: `to` is the address in it, for links without an address.

    `once` is not empty if the message is to be sent once, however often the client repeats it.
    `bare` is where the part begins that no sender or intermediary may change (clause 3.2).
    `body` is where the body begins, if everything before it means the same in each message; else
    it is negative.
    """

    message: frames.NewMessage
    to: str
    once: bytes = b""
    bare: int = 0
    body: int = -1


class _Fields:
    """The fields of one message, collected from its sections."""

    def __init__(self) -> None:
        self.new: dict[str, Any] = {}  # of NewMessage
        self.standard: dict[str, Value] = {}
        self.application: dict[str, Value] = {}
        self.annotations: dict[Any, Value] = {}
        self.footer: dict[Any, Value] = {}
        self.more: dict[str, Value] = {}
        self.extension = b""
        self.service_bus = ""  # the framework whose headers the properties are
        self.lives_ms: int | None = None
        self.to = ""
        self.once = b""
        self.is_durable = False


def arrived(raw: bytes, destination: str, *, settled: bool, now_ms: int) -> Arrived:
    """Return the message in `raw`, for a queue; `settled`: its sender expects no answer.

    Raises BadMessage, with the reason.
    """
    fields, bodies, bare = _Fields(), [], 0
    for section in parts.split(raw):
        if section.code < parts.PROPERTIES:
            bare = section.end
        if section.code in parts.BODIES:
            bodies.append(section)
        elif section.code != parts.DELIVERY_ANNOTATIONS:
            _READERS[section.code](fields, value_of(raw, section))
    body = _body(fields, raw, bodies)
    if not fields.is_durable:
        if settled:
            fields.new.setdefault("delivery", frames.EXPRESS)
        else:
            fields.more[amqp_header.DURABLE] = False
    _set_lifetime(fields, now_ms)
    extension = _extension_of(fields)
    message = frames.NewMessage(destination, body, extension=extension, **fields.new)
    is_own = bool(fields.once) or names.EXPIRES_AT in fields.standard
    at = bodies[0].start if bodies and not is_own else -1
    return Arrived(message, fields.to, fields.once, bare, at)


def _extension_of(fields: _Fields) -> bytes:
    """Return the extension with all properties that have no field.  Raises BadMessage."""
    if fields.service_bus:
        headers = dict(fields.application)
        if not all(isinstance(value, str) for value in headers.values()):
            raise BadMessage(f"headers of {fields.service_bus} are texts, and one property is none")
        try:
            # Only the headers: an endpoint of .NET reads nothing else there.
            return write_bus_headers(fields.service_bus, cast("dict[str, str]", headers))
        except UnreadableBody as error:
            raise BadMessage(str(error)) from None
    try:
        return with_properties(
            MessageProperties(
                fields.application,
                fields.standard,
                fields.annotations,
                fields.footer,
                fields.more,
            ),
            fields.extension,
        )
    except BadProperty as error:
        raise BadMessage(str(error)) from None


# Sections.


def _header(fields: _Fields, given: Any) -> None:
    durable, priority, ttl, first_acquirer, _ = _list(given, 5)
    fields.is_durable = bool(durable)
    if first_acquirer:
        fields.more[amqp_header.FIRST_ACQUIRER] = True
    if priority is not None:
        level = amqp_header.PRIORITIES[min(_number(priority, "priority"), 9)]
        fields.new["priority"] = level
        if priority != amqp_header.DEFAULT_PRIORITY:  # transactional messages have none of MSMQ
            fields.more[amqp_header.PRIORITY] = int(priority)
    if ttl is not None:
        fields.lives_ms = _number(ttl, "ttl")


def _properties(fields: _Fields, given: Any) -> None:
    found = dict(zip(STANDARD, _list(given, len(STANDARD)), strict=True))
    for name, each in found.items():
        if each is not None:
            value = to_value(each)
            fields.standard[name] = str(plain(value)) if _is_symbol(value) else value
    subject, reply_to = found[names.SUBJECT], found[names.REPLY_TO]
    correlation = found[names.CORRELATION_ID]
    if subject is not None:
        _set_label(fields, _text(subject, "subject"))
    if found[names.TO] is not None:
        fields.to = _text(found[names.TO], "to")
    if reply_to is not None and is_queue_name(_text(reply_to, "reply-to")):
        fields.new["response_queue"] = reply_to
    if isinstance(correlation, str) and (raw := message_id_bytes(correlation)):
        fields.new["correlation_id"] = raw
        del fields.standard[names.CORRELATION_ID]


def _set_label(fields: _Fields, subject: str) -> None:
    label = subject.replace("\0", " ")
    while len(label.encode("utf-16-le")) > 2 * LABEL_CHARACTERS_MAX:
        label = label[: min(LABEL_CHARACTERS_MAX, len(label) - 1)]
    fields.new["label"] = label
    if label and label == subject:
        del fields.standard[names.SUBJECT]


def _application(fields: _Fields, given: Any) -> None:
    for name, each in _map(given).items():
        if type(name) is not str:
            raise BadMessage(f"the name of an application property is {name!r}; it must be a text")
        fields.application[name] = to_value(each)


def _annotations(fields: _Fields, given: Any) -> None:
    for key, each in _map(given).items():
        name, value = str(key), to_value(each)
        if (setter := _OWN.get(name)) is not None:
            setter(fields, plain(value))
            if name == DELIVERY_TIME:  # receivers see when the message was to be delivered
                fields.annotations[name] = value
        elif not name.startswith(OWN):  # others were made for an earlier receiver
            fields.annotations[_annotation(key)] = value


def _footer(fields: _Fields, given: Any) -> None:
    for key, each in _map(given).items():
        fields.footer[_annotation(key)] = to_value(each)


_READERS: dict[int, Callable[[_Fields, Any], None]] = {
    parts.HEADER: _header,
    parts.ANNOTATIONS: _annotations,
    parts.PROPERTIES: _properties,
    parts.APPLICATION: _application,
    parts.FOOTER: _footer,
}


# Bodies.


def _body(fields: _Fields, raw: bytes, bodies: list[Section]) -> bytes:
    """Return the body: the contents of one data section, a text, or the sections themselves."""
    if not bodies:  # proton omits the body of a message without a value
        fields.more[BODY] = AS_NULL
        return b""
    section = bodies[0]
    if len(bodies) == 1:
        if section.code == parts.DATA:
            return parts.binary_of(raw, section)
        if section.code == parts.VALUE:
            if parts.is_null(raw, section):
                fields.more[BODY] = AS_NULL
                return b""
            text = parts.text_of(raw, section)
            is_short = section.end - section.value <= TEXT_BYTES_MAX
            # A null character at the end would be taken for the terminator of other senders.
            if text is not None and is_short and not text.endswith("\0"):
                fields.new["body_type"] = int(BodyType.VT_LPWSTR)
                return text.encode("utf-16-le")
    if len({each.code for each in bodies}) > 1 or (section.code == parts.VALUE and bodies[1:]):
        raise BadMessage("the message has bodies of several kinds, or several values")
    if section.code != parts.DATA:
        for each in bodies:
            parts.check(raw[each.start : each.end])  # a receiver must be able to read it
    fields.more[BODY] = AS_SECTIONS
    return b"".join(raw[each.start : each.end] for each in bodies)


def _set_lifetime(fields: _Fields, now_ms: int) -> None:
    """Set the time-to-be-received, in seconds: the shorter of the two limits of AMQP."""
    lives_ms, ends = fields.lives_ms, fields.standard.get(names.EXPIRES_AT)
    if isinstance(ends, datetime):
        left_ms = max(0, (ends - EPOCH) // MILLISECOND - now_ms)
        lives_ms = left_ms if lives_ms is None else min(lives_ms, left_ms)
    if lives_ms is not None:
        seconds = -(-lives_ms // 1000)
        fields.new["time_to_be_received_s"] = min(seconds, frames.INFINITE_S - 1)


# Annotations that are fields of MSMQ.


def _set(field: str, kind: type) -> Callable[[_Fields, Any], None]:
    def setter(fields: _Fields, value: Any) -> None:
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            raise BadMessage(f"the annotation {OWN}{field.replace('_', '-')} has another type")
        fields.new[field] = value

    return setter


def _parsed(field: str, parse: Callable[[str], bytes]) -> Callable[[_Fields, Any], None]:
    def setter(fields: _Fields, value: Any) -> None:
        try:
            fields.new[field] = parse(value) if isinstance(value, str) else bytes(value)
        except (InvalidName, TypeError, ValueError) as error:
            raise BadMessage(f"{field.replace('_', ' ')}: {error}") from None

    return setter


_DELIVERIES = {
    "express": frames.EXPRESS,
    "recoverable": frames.RECOVERABLE,
    "transactional": frames.TRANSACTIONAL,
}
ACKNOWLEDGE = ("positive_arrival", "positive_receive", "negative_arrival", "negative_receive")


def _delivery(fields: _Fields, value: Any) -> None:
    if value not in _DELIVERIES:
        raise BadMessage(f"the delivery is {value!r}; it is one of {', '.join(_DELIVERIES)}")
    fields.new["delivery"] = _DELIVERIES[value]


def _acknowledge(fields: _Fields, value: Any) -> None:
    """Set the acknowledgments that the sender wants: their bits, or their names with commas."""
    if isinstance(value, str):
        words = [each.strip().replace("-", "_") for each in value.split(",") if each.strip()]
        if not set(words) <= set(ACKNOWLEDGE):
            raise BadMessage(f"the acknowledgments are {', '.join(ACKNOWLEDGE)}")
        value = sum(1 << ACKNOWLEDGE.index(word) for word in set(words))
    _set("acknowledge", int)(fields, value)


def _extension(fields: _Fields, value: Any) -> None:
    if not isinstance(value, bytes):
        raise BadMessage("the annotation x-opt-msmq-extension is not binary")
    fields.extension = value


def _service_bus(fields: _Fields, value: Any) -> None:
    if value not in FRAMEWORKS:
        raise BadMessage(f"the service bus is {value!r}; it is one of {', '.join(FRAMEWORKS)}")
    fields.service_bus = value


def _once(fields: _Fields, value: Any) -> None:
    """Set the token of a message that is sent once; texts and bytes of any length are allowed."""
    if not isinstance(value, str | bytes) or not value:
        raise BadMessage("the annotation x-opt-msmq-once is neither text nor binary")
    kind, data = (b"t", value.encode()) if isinstance(value, str) else (b"b", value)
    fields.once = b"amqp" + hashlib.sha256(kind + data).digest()


def _deliver_at(fields: _Fields, value: Any) -> None:
    if isinstance(value, datetime):
        value = (value - EPOCH) // MILLISECOND
    at_ms = _number(value, DELIVERY_TIME)
    if at_ms > frames.MOMENT_MS_MAX:
        raise BadMessage(f"{DELIVERY_TIME} is after the year 9999")
    fields.new["deliver_at_ms"] = at_ms


def _delay(fields: _Fields, value: Any) -> None:
    fields.new["delay_ms"] = min(_number(value, DELIVERY_DELAY), frames.MOMENT_MS_MAX)


_OWN: dict[str, Callable[[_Fields, Any], None]] = {
    f"{OWN}admin-queue": _set("admin_queue", str),
    f"{OWN}response-queue": _set("response_queue", str),
    f"{OWN}report-queue": _set("report_queue", str),
    f"{OWN}dead-letter-queue": _set("dead_letter_queue", str),
    f"{OWN}acknowledge": _acknowledge,
    f"{OWN}time-to-reach-queue": _set("time_to_reach_queue_s", int),
    f"{OWN}dead-letter": _set("dead_letter", bool),
    f"{OWN}journal": _set("journal", bool),
    f"{OWN}application-tag": _set("application_tag", int),
    f"{OWN}body-type": _set("body_type", int),
    f"{OWN}message-class": _set("message_class", int),
    f"{OWN}sender-id": _parsed("sender_id", parse_security_id),
    f"{OWN}connector-type": _parsed("connector_type", guid_bytes),
    f"{OWN}correlation-id": _parsed("correlation_id", parse_correlation),
    f"{OWN}delivery": _delivery,
    f"{OWN}extension": _extension,
    f"{OWN}once": _once,
    SERVICE_BUS: _service_bus,
    DELIVERY_TIME: _deliver_at,
    DELIVERY_DELAY: _delay,
}


# Small helpers.


def _list(given: Any, length: int) -> list[Any]:
    if not isinstance(given, list) or len(given) > length:
        raise BadMessage(f"a section is not a list of up to {length} fields")
    return given + [None] * (length - len(given))


def _map(given: Any) -> dict[Any, Any]:
    if not isinstance(given, dict):
        raise BadMessage("a section is not a map")
    return given


def _annotation(key: Any) -> str | int:
    if isinstance(key, str):
        return str(key)
    if isinstance(key, int) and not isinstance(key, bool):
        return int(key)
    raise BadMessage(f"the name of an annotation is {key!r}; it must be a symbol or a number")


def _number(given: Any, name: str) -> int:
    if isinstance(given, bool) or not isinstance(given, int) or given < 0:
        raise BadMessage(f"{name} is {given!r}; it must be a number from 0 on")
    return int(given)


def _text(given: Any, name: str) -> str:
    if not isinstance(given, str):
        raise BadMessage(f"{name} is not a text")
    return str(given)


def _is_symbol(value: Value) -> bool:
    return isinstance(value, Typed) and value.type == "symbol"


@lru_cache(1024)
def is_queue_name(text: str) -> bool:
    """Return whether a text is a spelling of a queue."""
    try:
        parse_destination(text, local_host=".")
    except InvalidName:
        return False
    return True


@lru_cache(256)
def message_id_bytes(text: str) -> bytes:
    """Return the bytes of an id of MSMQ, GUID\\number; b"" for any other text."""
    try:
        return parse_correlation(text) if text.count("\\") == 1 else b""
    except InvalidName:
        return b""
