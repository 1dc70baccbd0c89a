"""Messages that a client receives: from the properties of MSMQ to the sections of AMQP."""

from __future__ import annotations

import time
from functools import lru_cache
from typing import Any, NamedTuple

import proton

from protocol.body_type import BodyType
from protocol.errors import MalformedPacket
from protocol.identifiers import guid_text
from qmd.bodies.active_x import read_active_x
from qmd.bodies.bus_headers import BusHeaders, format_name
from qmd.bodies.errors import UnreadableBody
from qmd.client.message import Message
from qmd.control_protocol import messages as frames
from qmd.doors.amqp import sections as parts
from qmd.doors.amqp.arriving import (
    AS_NULL,
    AS_SECTIONS,
    BODY,
    OWN,
    SERVICE_BUS,
    STANDARD,
)
from qmd.doors.amqp.encoding import NULL, STRING8, created, encoded_list, section, text
from qmd.doors.amqp.values import EPOCH, MILLISECOND, from_value, symbols
from qmd.properties import amqp_header
from qmd.properties import values as names
from qmd.properties.block import read_extension
from qmd.properties.values import MessageProperties, Value, plain

_TEXTS = (BodyType.VT_LPWSTR, BodyType.VT_BSTR, BodyType.VT_LPSTR)
_UINT_MAX = (1 << 32) - 1
_MESSAGE_ID = proton.symbol(OWN + "message-id")
_CORRELATION_ID = proton.symbol(OWN + "correlation-id")
_SERVICE_BUS = proton.symbol(SERVICE_BUS)
#: The beginnings of an extension that may have headers of a service bus: XML, or JSON.
BUS_BEGINNINGS = (b"<", b"{", b"\xef\xbb\xbf", b"+AHs")
_INDEX = {name: index for index, name in enumerate(STANDARD)}
_ID, _SUBJECT, _TO = (_INDEX[name] for name in (names.MESSAGE_ID, names.SUBJECT, names.TO))
_CORRELATION, _REPLY_TO = _INDEX[names.CORRELATION_ID], _INDEX[names.REPLY_TO]
_CREATED, _TYPE = _INDEX[names.CREATED_AT], _INDEX[names.CONTENT_TYPE]
_NO_CORRELATION = bytes(20)
PLAIN_MAX = 1000
#: Annotations of messages with the same fields: as values, and as a section.
_PLAIN: dict[Any, tuple[dict[Any, Any], bytes]] = {}
_NULLS = (NULL,) * (_CREATED - _SUBJECT - 1)  # the fields between the label and the time
#: Errors of packets, and of properties with values that AMQP has not: any program can store them.
NOT_ENCODABLE = (MalformedPacket, proton.ProtonException, ValueError, TypeError, OverflowError)


class Encoded(NamedTuple):
    """The sections of a message."""

    header: bytes
    annotations: bytes
    properties: bytes
    application: bytes
    body: bytes
    footer: bytes


def encoded(stored: frames.StoredMessage, queue_manager: str) -> bytes:
    """Return a message of a queue as AMQP; `queue_manager` is the GUID of its queue manager.

    Raises one of NOT_ENCODABLE.
    """
    return b"".join(encoded_sections(Message(stored), queue_manager))


def encoded_sections(message: Message, queue_manager: str) -> Encoded:
    """Return the sections of a message.  Raises one of NOT_ENCODABLE."""
    properties, extension = read_extension(message.packet.properties.extension)
    bus = message.bus_headers if extension.startswith(BUS_BEGINNINGS) else None
    return Encoded(
        _header(message, properties),
        _annotations(message, properties, extension, bus),
        _properties(message, properties, queue_manager, bus),
        _application(properties, bus) if properties.application or bus is not None else b"",
        body_section(properties.more.get(BODY), message.body_type, message.body),
        _map(parts.FOOTER, symbols(properties.footer)) if properties.footer else b"",
    )


def _application(properties: MessageProperties, bus: BusHeaders | None) -> bytes:
    values = {key: from_value(each) for key, each in properties.application.items()}
    if bus is not None:
        values = {**bus.headers, **values}
    return _map(parts.APPLICATION, values)


def _map(code: int, values: dict[Any, Any]) -> bytes:
    return section(code, values) if values else b""


def _header(message: Message, properties: MessageProperties) -> bytes:
    packet, transactional = message.packet, message.transactional
    count = min(message.stored.abort_count, _UINT_MAX)
    recoverable = transactional or bool(packet.user.flags.delivery)
    return _header_section(
        amqp_header.is_durable(properties, recoverable=recoverable),
        amqp_header.priority_of(
            properties, packet.base.flags.priority, transactional=transactional
        ),
        left_ms(message),
        amqp_header.is_first_acquirer(properties, abort_count=count),
        count,
    )


@lru_cache(1024)
def _header_section(
    durable: bool, priority: int, ttl_ms: int | None, first_acquirer: bool, count: int
) -> bytes:
    """Return the section; messages have few different ones, unless their lifetime is limited."""
    values = [
        durable,
        proton.ubyte(priority) if priority != amqp_header.DEFAULT_PRIORITY else None,
        None if ttl_ms is None else proton.uint(min(ttl_ms, _UINT_MAX)),
        first_acquirer or None,
        proton.uint(count) if count else None,
    ]
    while values and values[-1] is None:
        values.pop()
    return section(parts.HEADER, values)


def left_ms(message: Message) -> int | None:
    """Return the rest of the lifetime of a message; None: it has no limit."""
    lifetime_s = message.time_to_be_received
    if lifetime_s is None:
        return None
    ends_ms = (message.packet.user.sent_time + lifetime_s) * 1000
    return max(0, ends_ms - int(time.time() * 1000))


def _properties(
    message: Message, properties: MessageProperties, queue_manager: str, bus: BusHeaders | None
) -> bytes:
    if bus is None and are_plain(message, properties):
        user = message.packet.user
        fields = PlainProperties(message.destination, message.label, user.source_queue_manager)
        return fields.section(user.message_number, user.sent_time)
    return _all_properties(message, properties, queue_manager, bus)


def are_plain(message: Message, properties: MessageProperties) -> bool:
    """Return whether the properties of a message are those of `PlainProperties` only."""
    packet = message.packet
    return (
        not properties.standard
        and not packet.user.flags.response_type
        and packet.properties.correlation_id == _NO_CORRELATION
    )


class PlainProperties:
    """The properties of messages that have an id, a destination, a label and a time."""

    def __init__(self, destination: str | None, label: str, source: bytes) -> None:
        """`source` is the GUID of the queue manager that sends the messages."""
        self._source = f"{guid_text(source)}\\".encode()
        to, subject = _to(destination), text(label) if label else NULL
        self._middle = b"".join((NULL, to, subject, *_NULLS))

    def section(self, number: int, sent_s: int) -> bytes:
        """Return the section of the message with this number."""
        identifier = b"%s%d" % (self._source, number)
        values = b"%c%c%s%s%s" % (
            *(STRING8, len(identifier), identifier, self._middle),
            created(sent_s * 1000),
        )
        return encoded_list(parts.PROPERTIES, values, _CREATED + 1)


@lru_cache(1024)
def _to(destination: str | None) -> bytes:
    return NULL if destination is None else text(destination)


def _all_properties(
    message: Message, properties: MessageProperties, queue_manager: str, bus: BusHeaders | None
) -> bytes:
    fields: list[Any] = [None] * len(STANDARD)
    for name, value in properties.standard.items():
        if (index := _INDEX.get(name)) is not None:
            fields[index] = _standard(name, value)
    packet = message.packet
    if fields[_ID] is None:
        fields[_ID] = message.id
    if fields[_SUBJECT] is None:
        fields[_SUBJECT] = message.label or None
    if fields[_CORRELATION] is None and packet.properties.correlation_id != _NO_CORRELATION:
        fields[_CORRELATION] = message.correlation_id
    response = message.response_queue
    if response is not None and (fields[_REPLY_TO] is None or message.source != queue_manager):
        fields[_REPLY_TO] = response  # the sender's own spelling is one of its computer
    if bus is not None:
        if fields[_TYPE] is None and bus.content_type.isascii():
            fields[_TYPE] = proton.symbol(bus.content_type) if bus.content_type else None
        fields[_REPLY_TO] = fields[_REPLY_TO] or format_name(bus.return_address)
    if fields[_TO] is None:
        fields[_TO] = message.destination
    if fields[_CREATED] is None:
        fields[_CREATED] = proton.timestamp(packet.user.sent_time * 1000)
    while fields and fields[-1] is None:
        fields.pop()
    return section(parts.PROPERTIES, fields)


def _standard(name: str, value: Value) -> Any:
    """Return a field of the section with the type that the specification gives it."""
    if value is None:
        return None
    if name in (names.CONTENT_TYPE, names.CONTENT_ENCODING):
        return proton.symbol(plain(value))
    if name == names.GROUP_SEQUENCE:
        number = plain(value)
        return proton.uint(number & _UINT_MAX) if isinstance(number, int) else None
    if name == names.USER_ID and isinstance(value, str):
        return value.encode()
    return from_value(value)


def _annotations(
    message: Message, properties: MessageProperties, extension: bytes, bus: BusHeaders | None
) -> bytes:
    if bus is None and not (properties.annotations or properties.standard):
        return _own_section(message, extension)
    found = symbols(properties.annotations)
    if bus is not None:
        found[_SERVICE_BUS] = bus.framework
    packet_properties = message.packet.properties
    if names.MESSAGE_ID in properties.standard:
        found[_MESSAGE_ID] = message.id
    found.update(_own_fields(message, extension))
    if names.CORRELATION_ID in properties.standard and any(packet_properties.correlation_id):
        found[_CORRELATION_ID] = message.correlation_id
    return _map(parts.ANNOTATIONS, found)


def _own_section(message: Message, extension: bytes) -> bytes:
    """Return the section of a message without annotations of its sender."""
    key = _plain_key(message, extension)
    if key is None:
        return _map(parts.ANNOTATIONS, _all_own_fields(message, extension))
    if (found := _PLAIN.get(key)) is None:
        found = _kept(key, message, extension)
    return found[1]


def _own_fields(message: Message, extension: bytes) -> dict[Any, Any]:
    """Return the annotations for fields of MSMQ; most messages have few, and the same."""
    key = _plain_key(message, extension)
    if key is None:
        return _all_own_fields(message, extension)
    if (found := _PLAIN.get(key)) is None:
        found = _kept(key, message, extension)
    return found[0]


def _kept(key: Any, message: Message, extension: bytes) -> tuple[dict[Any, Any], bytes]:
    """Keep the annotations of messages with the same fields, and their section."""
    if len(_PLAIN) >= PLAIN_MAX:
        _PLAIN.clear()
    fields = _all_own_fields(message, extension)
    found = _PLAIN[key] = fields, _map(parts.ANNOTATIONS, fields)
    return found


def _plain_key(message: Message, extension: bytes) -> tuple[Any, ...] | None:
    """Return what determines the annotations of a message, for most; None for others."""
    packet = message.packet
    user, fields = packet.user, packet.properties
    is_plain = (
        not extension
        and fields.message_class == 0
        and packet.security is None
        and packet.debug is None
        and not user.flags.connector_type
        and not user.flags.admin_type
        and message.stored.reason is None
    )
    if not is_plain:
        return None
    return user.flags, fields.flags, fields.body_type, fields.application_tag, message.transactional


def _all_own_fields(message: Message, extension: bytes) -> dict[Any, Any]:
    own: dict[str, Any] = {
        "admin-queue": message.admin_queue,
        "acknowledge": ",".join(message.acknowledge) or None,
        "body-type": proton.uint(message.body_type) if message.body_type else None,
        "application-tag": proton.uint(message.application_tag) or None,
        "extension": extension or None,
        "class": None if message.message_class == "normal" else message.message_class,
        "reason": message.reason,
        "journal": message.journal or None,
        "dead-letter": None if message.dead_letter else False,
        "connector-type": message.connector_type,
        "report-queue": message.report_queue,
        "sender-id": message.sender_id_text,
        "authenticated": message.authenticated or None,
        "delivery": "transactional" if message.transactional else None,
    }
    found = {proton.symbol(OWN + name): each for name, each in own.items() if each is not None}
    if message.reason is not None or message.message_class != "normal":
        arrived = proton.timestamp((message.arrived_at - EPOCH) // MILLISECOND)
        found[proton.symbol(OWN + "arrived-time")] = arrived
    return found


def body_section(form: Value, body_type: int, body: bytes) -> bytes:
    """Return the body as sections; `form` is that in which its sender gave it, if it is known."""
    if form == AS_NULL and not body:
        return parts.NULL_SECTION
    if form == AS_SECTIONS and _is_sections(body):
        return body
    if body_type in _TEXTS:
        try:
            return parts.text_section(read_active_x(body, body_type))
        except UnreadableBody:
            pass  # the type does not fit: as bytes
    return parts.data_section(body)


def _is_sections(body: bytes) -> bool:
    """Return whether a body holds sections of AMQP: any program can set the mark for it."""
    try:
        found = parts.split(body)
    except parts.BadMessage:
        return False
    return bool(found) and all(each.code in parts.BODIES for each in found)
