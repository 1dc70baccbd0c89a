"""Messages that a client receives: from the properties of MSMQ to the sections of AMQP."""

from __future__ import annotations

import time
from functools import lru_cache
from typing import Any

import proton

from protocol.body_type import BodyType
from protocol.errors import MalformedPacket
from protocol.identifiers import message_id_text
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
    DEFAULT_PRIORITY,
    DURABLE,
    OWN,
    PRIORITY,
    SERVICE_BUS,
    SHOWN_PRIORITIES,
    STANDARD,
)
from qmd.doors.amqp.encoding import NULL, compound_section, created, section, text
from qmd.doors.amqp.values import EPOCH, MILLISECOND, from_value, symbols
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


def encoded(stored: frames.StoredMessage, queue_manager: str) -> bytes:
    """Return a message of a queue as AMQP; `queue_manager` is the GUID of its queue manager.

    Raises one of NOT_ENCODABLE.
    """
    message = Message(stored)
    properties, extension = read_extension(message.packet.properties.extension)
    bus = message.bus_headers if extension.startswith(BUS_BEGINNINGS) else None
    return b"".join(
        (
            _header(message, properties),
            _annotations(message, properties, extension, bus),
            _properties(message, properties, queue_manager, bus),
            _application(properties, bus),
            _body(message, properties),
            _map(parts.FOOTER, symbols(properties.footer)) if properties.footer else b"",
        )
    )


def _application(properties: MessageProperties, bus: BusHeaders | None) -> bytes:
    values = {key: from_value(each) for key, each in properties.application.items()}
    if bus is not None:
        values = {**bus.headers, **values}
    return _map(parts.APPLICATION, values)


def _map(code: int, values: dict[Any, Any]) -> bytes:
    return section(code, values) if values else b""


def _header(message: Message, properties: MessageProperties) -> bytes:
    durable = message.delivery != "express" and properties.more.get(DURABLE) is not False
    priority = properties.more.get(PRIORITY)
    if not isinstance(priority, int):
        is_set = not message.transactional
        priority = SHOWN_PRIORITIES[message.priority] if is_set else DEFAULT_PRIORITY
    ttl_ms, count = _left_ms(message), min(message.abort_count, _UINT_MAX)
    fields = [
        durable,
        proton.ubyte(priority) if priority != DEFAULT_PRIORITY else None,
        None if ttl_ms is None else proton.uint(min(ttl_ms, _UINT_MAX)),
        None,
        proton.uint(count) if count else None,
    ]
    return _header_section(tuple(fields))


@lru_cache(1024)
def _header_section(fields: tuple[Any, ...]) -> bytes:
    """Return the section; messages have few different ones, unless their lifetime is limited."""
    values = list(fields)
    while values and values[-1] is None:
        values.pop()
    return section(parts.HEADER, values)


def _left_ms(message: Message) -> int | None:
    """Return the rest of its lifetime; None: it has no limit."""
    lifetime_s = message.time_to_be_received
    if lifetime_s is None:
        return None
    ends_ms = (message.packet.user.sent_time + lifetime_s) * 1000
    return max(0, ends_ms - int(time.time() * 1000))


def _properties(
    message: Message, properties: MessageProperties, queue_manager: str, bus: BusHeaders | None
) -> bytes:
    packet = message.packet
    user = packet.user
    if (
        not properties.standard
        and bus is None
        and not user.flags.response_type
        and packet.properties.correlation_id == _NO_CORRELATION
    ):
        label = message.label
        number = message_id_text(user.source_queue_manager, user.message_number)
        plain_fields = (
            text(number),
            NULL,
            _to(message.destination),
            text(label) if label else NULL,
            *_NULLS,
            created(user.sent_time * 1000),
        )
        return compound_section(parts.PROPERTIES, plain_fields)
    return _all_properties(message, properties, queue_manager, bus)


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


def _body(message: Message, properties: MessageProperties) -> bytes:
    form, body = properties.more.get(BODY), message.body
    if form == AS_NULL and not body:
        return parts.NULL_SECTION
    if form == AS_SECTIONS and _is_sections(body):
        return body
    if message.body_type in _TEXTS:
        try:
            return parts.text_section(read_active_x(body, message.body_type))
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
