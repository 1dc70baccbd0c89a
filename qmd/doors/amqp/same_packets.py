"""Messages whose packets differ from the one before on the link in few fields.

Programs send many messages with the same destination, label and properties.  Of such a message
only its number, its time and its body are read; everything else is that of the message before.
"""

from __future__ import annotations

import struct

from protocol import properties_offset, transaction_offset
from protocol.flags import TransactionFlags
from protocol.headers import USER_FLAGS_OFFSET
from protocol.identifiers import message_id_text
from qmd.client.message import Message
from qmd.control_protocol import messages as frames
from qmd.doors.amqp.arriving import BODY
from qmd.doors.amqp.leaving import (
    BUS_BEGINNINGS,
    Encoded,
    PlainProperties,
    are_plain,
    body_section,
    encoded_sections,
    left_ms,
)
from qmd.properties.block import read_extension
from qmd.properties.values import Value

# Offsets in a packet: its size; its source; the sent time and the number, up to the flags.
_SIZE, _AFTER_SIZE, _SOURCE, _AFTER_SOURCE, _SENT = 8, 12, 16, 32, 52
HEAD_BYTES = 60  # of a packet, with the id of its message
# Of the MessagePropertiesHeader: the label's length; the size of the body, twice.
_LABEL_LENGTH, _BODY_SIZES, _AFTER_BODY_SIZES = 1, 32, 40  # [MS-MQMQ] 2.2.19.3
_EXTENSION_SIZE, _PROPERTIES_BYTES = 52, 56
_TRANSACTION_BYTES = 20  # flags and place of a message in its sequence, 2.2.20.5
_INDEX_AND_BOUNDS = TransactionFlags.of(index=0xFFFFF, first=1, last=1)
_TWO = struct.Struct("<II")
_ONE = struct.Struct("<I")


class SamePackets:
    """The last message of a link: the fixed parts of its packet, and what was made of it."""

    def __init__(self, queue_manager: str) -> None:
        """`queue_manager` is the GUID of the queue manager of the queue."""
        self._queue_manager = queue_manager
        self._form: _Form | None = None
        self._misses = 0  # one after the other

    def encoded(self, stored: frames.StoredMessage) -> bytes:
        """Return a message of the queue as AMQP.  Raises one of NOT_ENCODABLE."""
        if (found := self.find(stored)) is not None:
            self._misses = 0
            return found
        message = Message(stored)
        sections = encoded_sections(message, self._queue_manager)
        misses = self._misses = self._misses + 1
        if misses & (misses - 1) == 0:  # where no message is like the last one, rarely
            self._form = _form_of(message, sections)
        return b"".join(sections)

    def find(self, stored: frames.StoredMessage) -> bytes | None:
        """Return a message that is like the last one as AMQP; None for any other."""
        return None if self._form is None else self._form.encoded(stored)


class _Form:
    """The parts that messages of one form share: of their packets, and of their sections."""

    def __init__(self, message: Message, sections: Encoded, body_form: Value) -> None:
        packet = message.stored.packet
        at = properties_offset(packet)
        transaction = transaction_offset(packet)
        self._abort_count = message.stored.abort_count
        self._before_size, self._after_size = packet[:_SIZE], packet[_AFTER_SIZE:_SENT]
        self._sizes_at, self._body_at = at + _BODY_SIZES, body_offset(packet)
        self._transaction = transaction or 0
        self._transaction_flags = 0 if transaction is None else _flags(packet, transaction)
        self._fixed_at = USER_FLAGS_OFFSET
        self._names = b""
        if transaction is not None:
            self._names = packet[USER_FLAGS_OFFSET:transaction]
            self._fixed_at = transaction + _TRANSACTION_BYTES
        self._fixed = packet[self._fixed_at : self._sizes_at]
        self._last_at = at + _AFTER_BODY_SIZES
        self._last = packet[self._last_at : self._body_at]
        self._head = sections.header + sections.annotations
        self._properties = PlainProperties(
            message.destination, message.label, message.packet.user.source_queue_manager
        )
        self._application, self._footer = sections.application, sections.footer
        self._body_form, self._body_type = body_form, message.body_type

    def encoded(self, stored: frames.StoredMessage) -> bytes | None:
        """Return a message as AMQP; None: it has another form."""
        packet = stored.packet
        is_alike = (
            packet.startswith(self._fixed, self._fixed_at)
            and packet.startswith(self._last, self._last_at)
            and packet.startswith(self._after_size, _AFTER_SIZE)
            and packet.startswith(self._before_size)
            and stored.reason is None
            and stored.abort_count == self._abort_count
        )
        if not is_alike or (self._transaction and not self._has_same_names(packet)):
            return None
        size, allocated = _TWO.unpack_from(packet, self._sizes_at)
        end = self._body_at + size
        if size != allocated or end + (-end & 3) != len(packet):
            return None
        sent_s, number = _TWO.unpack_from(packet, _SENT)
        return b"".join(
            (
                self._head,
                self._properties.section(number, sent_s),
                self._application,
                body_section(self._body_form, self._body_type, packet[self._body_at : end]),
                self._footer,
            )
        )

    def _has_same_names(self, packet: bytes) -> bool:
        """Return whether a transactional message is of this form before its place."""
        return (
            packet.startswith(self._names, USER_FLAGS_OFFSET)
            and _flags(packet, self._transaction) == self._transaction_flags
        )


def id_of(head: bytes) -> str:
    """Return the id of a message from the beginning of its packet."""
    _, number = _TWO.unpack_from(head, _SENT)
    return message_id_text(head[_SOURCE:_AFTER_SOURCE], number)


def body_offset(packet: bytes) -> int:
    """Return where the body of a packet begins: behind the label and the extension."""
    at = properties_offset(packet)
    label_bytes = 2 * packet[at + _LABEL_LENGTH]
    extension_bytes: int = _ONE.unpack_from(packet, at + _EXTENSION_SIZE)[0]
    return at + _PROPERTIES_BYTES + label_bytes + extension_bytes


def _flags(packet: bytes, transaction: int) -> int:
    """Return the flags of a transactional message without those of its place."""
    flags: int = _ONE.unpack_from(packet, transaction)[0]
    return flags & ~_INDEX_AND_BOUNDS


def _form_of(message: Message, sections: Encoded) -> _Form | None:
    """Return the form of a message; None: others with such a packet may have other sections."""
    stored, packet = message.stored, message.packet
    properties, extension = read_extension(packet.properties.extension)
    is_simple = (
        are_plain(message, properties)
        and stored.reason is None
        and packet.properties.message_class == 0
        and left_ms(message) is None
        and not extension.startswith(BUS_BEGINNINGS)  # the body shows which service bus it is
    )
    form = _Form(message, sections, properties.more.get(BODY)) if is_simple else None
    # Not one with headers behind the body.
    return form if form is not None and form.encoded(stored) == b"".join(sections) else None
