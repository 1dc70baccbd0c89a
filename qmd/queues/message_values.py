"""Values of a message under the names that selectors use.

Names of qmd may have the prefix `qmd.`; names of JMS begin with JMS, and `amqp.` stands before
those of AMQP 1.0.  Without a prefix, a property of the application comes before one of qmd's.
docs/client.md has the table.
"""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from protocol import properties_offset
from protocol.errors import ProtocolError
from protocol.identifiers import correlation_text, guid_text, message_id_text
from protocol.message_class import MessageClass
from qmd.control_protocol.messages import EXPRESS, TRANSACTIONAL, NewMessage, StoredMessage
from qmd.core import packet_fields
from qmd.core.selectors.operations import Value
from qmd.properties import amqp_header
from qmd.properties import values as names
from qmd.properties.block import read_extension
from qmd.properties.values import MessageProperties, plain, text_of

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)
_DELIVERIES = ("express", "recoverable", "transactional")
# MessagePropertiesHeader, [MS-MQMQ] 2.2.19.3: label length, class, correlation id, body type, tag,
# body size; then the size of the extension.
_FIELDS = struct.Struct("<xBH20sIII")
_EXTENSION_SIZE, _LABEL = 52, 56


class MessageValues(ABC):
    """The values of one message; each is read on its first use."""

    label: str
    priority: int
    delivery: str
    number_of_class: int
    correlation: bytes
    body_type: int
    application_tag: int
    body_bytes: int
    arrived_at_ms: int | None = None
    sent_at_ms: int | None = None
    id: str | None = None
    source: str | None = None
    reason: str | None = None
    abort_count = 0
    move_count = 0
    _defined: MessageProperties | None = None

    @abstractmethod
    def extension(self) -> bytes:
        """Return the extension, with the block of properties."""

    @property
    def defined(self) -> MessageProperties:
        if self._defined is None:
            self._defined = read_extension(self.extension())[0]
        return self._defined

    def __call__(self, name: str) -> Value:
        """Return the value under a name; None: there is none that a selector can use."""
        read = _NAMES.get(name)
        if read is not None:
            return _usable(read(self))
        application = self.defined.application
        if name in application:
            return _usable(application[name])
        read = _OWN.get(name)
        return None if read is None else _usable(read(self))


class StoredValues(MessageValues):
    """The values of a message in a queue.  Its packet may end behind the extension."""

    def __init__(self, message: StoredMessage) -> None:
        packet = message.packet
        self._packet = packet
        self._at = at = properties_offset(packet)
        (
            self._label_length,
            self.number_of_class,
            self.correlation,
            self.body_type,
            self.application_tag,
            self.body_bytes,
        ) = _FIELDS.unpack_from(packet, at)
        self.priority = packet[2] & 7
        self.arrived_at_ms = message.arrived_at_ms
        self.reason = message.reason
        self.abort_count = message.abort_count
        self.move_count = message.move_count

    @property
    def label(self) -> str:  # type: ignore[override]
        start = self._at + _LABEL
        text = self._packet[start : start + 2 * self._label_length]
        return text.decode("utf-16-le", "replace").rstrip("\0")

    @property
    def delivery(self) -> str:  # type: ignore[override]
        if packet_fields.is_transactional(self._packet):
            return _DELIVERIES[2]
        return _DELIVERIES[not packet_fields.is_express(self._packet)]

    @property
    def id(self) -> str:  # type: ignore[override]
        packet = self._packet
        return message_id_text(
            packet_fields.source_of(packet), packet_fields.message_number(packet)
        )

    @property
    def source(self) -> str:  # type: ignore[override]
        return guid_text(packet_fields.source_of(self._packet))

    @property
    def sent_at_ms(self) -> int:  # type: ignore[override]
        return 1000 * packet_fields.sent_time_s(self._packet)

    def extension(self) -> bytes:
        at = self._at
        size = int.from_bytes(self._packet[at + _EXTENSION_SIZE : at + _LABEL], "little")
        start = at + _LABEL + 2 * self._label_length
        return self._packet[start : start + size]


def has_properties(packet: bytes) -> bool:
    """Return whether the beginning of a packet contains all that selectors can refer to."""
    try:
        at = properties_offset(packet)
    except ProtocolError:
        return False
    size = int.from_bytes(packet[at + _EXTENSION_SIZE : at + _LABEL], "little")
    return at + _LABEL + 2 * packet[at + 1] + size <= len(packet)


class NewValues(MessageValues):
    """The values of a message that is being sent, at a time in milliseconds since 1970."""

    def __init__(self, new: NewMessage, now_ms: int) -> None:
        self._extension = new.extension
        self.label = new.label
        self.priority = new.priority
        is_known = new.delivery in (EXPRESS, TRANSACTIONAL)
        self.delivery = _DELIVERIES[new.delivery if is_known else 1]
        self.number_of_class = new.message_class
        self.correlation = new.correlation_id
        self.body_type = new.body_type
        self.application_tag = new.application_tag
        self.body_bytes = len(new.body)
        self.sent_at_ms = now_ms

    def extension(self) -> bytes:
        return self._extension


def _usable(value: Any) -> Value:
    """Return a property as selectors compare it: UUIDs as texts, times in milliseconds."""
    value = plain(value)
    if type(value) in (str, int, float, bool):
        return value  # type: ignore[no-any-return]
    if isinstance(value, UUID):
        return str(value)
    if isinstance(value, datetime):
        return (value - _EPOCH) // _MILLISECOND
    return None


def _class(it: MessageValues) -> Value:
    return MessageClass.name_of(it.number_of_class)


def _correlation(it: MessageValues) -> Value:
    return correlation_text(it.correlation) if any(it.correlation) else None


def _standard(name: str, other: Callable[[MessageValues], Any] | None = None) -> Any:
    """Return a function for a standard property; `other` reads it where the sender gave none."""

    def read(it: MessageValues) -> Any:
        value = it.defined.standard.get(name)
        if isinstance(plain(value), bytes):
            value = bytes(plain(value)).decode("utf-8", "replace")  # type: ignore[arg-type]
        return other(it) if value is None and other is not None else value

    return read


def _subject(it: MessageValues) -> Value:
    return text_of(it.defined.standard.get(names.SUBJECT)) or it.label or None


def _is_durable(it: MessageValues) -> bool:
    return amqp_header.is_durable(it.defined, recoverable=it.delivery != "express")


def _delivery_mode(it: MessageValues) -> Value:
    return "PERSISTENT" if _is_durable(it) else "NON_PERSISTENT"


def _priority(it: MessageValues) -> Value:
    """Return the priority that a receiver over AMQP sees."""
    is_transactional = it.delivery == _DELIVERIES[2]
    return amqp_header.priority_of(it.defined, it.priority, transactional=is_transactional)


_OWN: dict[str, Callable[[MessageValues], Any]] = {
    "label": lambda it: it.label,
    "priority": lambda it: it.priority,
    "delivery": lambda it: it.delivery,
    "class": _class,
    "class_number": lambda it: it.number_of_class,
    "id": lambda it: it.id,
    "source": lambda it: it.source,
    "correlation_id": _correlation,
    "sent": lambda it: it.sent_at_ms,
    "arrived": lambda it: it.arrived_at_ms,
    "body_type": lambda it: it.body_type,
    "body_bytes": lambda it: it.body_bytes,
    "application_tag": lambda it: it.application_tag,
    "abort_count": lambda it: it.abort_count,
    "move_count": lambda it: it.move_count,
    "reason": lambda it: it.reason,
    "group": lambda it: it.defined.group or None,
    "content_type": lambda it: it.defined.content_type or None,
}
_ID = _standard(names.MESSAGE_ID, lambda it: it.id)
_CORRELATION = _standard(names.CORRELATION_ID, _correlation)
_CREATED = _standard(names.CREATED_AT, lambda it: it.sent_at_ms)
_NAMES: dict[str, Callable[[MessageValues], Any]] = {
    **{f"qmd.{name}": read for name, read in _OWN.items()},
    "JMSMessageID": _ID,
    "JMSCorrelationID": _CORRELATION,
    "JMSPriority": _priority,
    "JMSTimestamp": _CREATED,
    "JMSType": _subject,
    "JMSDeliveryMode": _delivery_mode,
    "JMSXGroupID": _standard(names.GROUP),
    "JMSXGroupSeq": _standard(names.GROUP_SEQUENCE),
    "JMSXUserID": _standard(names.USER_ID),
    "JMSXDeliveryCount": lambda it: it.abort_count + 1,
    "JMSRedelivered": lambda it: it.abort_count > 0,
    "amqp.message_id": _ID,
    "amqp.correlation_id": _CORRELATION,
    "amqp.priority": _priority,
    "amqp.creation_time": _CREATED,
    "amqp.subject": _subject,
    "amqp.durable": _is_durable,
    "amqp.delivery_mode": _delivery_mode,
    "amqp.delivery_count": lambda it: it.abort_count,
    "amqp.redelivered": lambda it: it.abort_count > 0,
    "amqp.user_id": _standard(names.USER_ID),
    "amqp.to": _standard(names.TO),
    "amqp.reply_to": _standard(names.REPLY_TO),
    "amqp.content_type": _standard(names.CONTENT_TYPE),
    "amqp.content_encoding": _standard(names.CONTENT_ENCODING),
    "amqp.absolute_expiry_time": _standard(names.EXPIRES_AT),
    "amqp.group_id": _standard(names.GROUP),
    "amqp.group_sequence": _standard(names.GROUP_SEQUENCE),
    "amqp.reply_to_group_id": _standard(names.REPLY_TO_GROUP),
}
