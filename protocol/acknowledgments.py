"""Order acks and final acks: the end-to-end acknowledgments (MS-MQQB 2.2.4, 2.2.5, 3.1.7.17).

They are user messages without any optional header, addressed to the order queue of the original
sender and labelled "QM Ordering Ack".  The message class distinguishes the two kinds; a body of 36
bytes identifies the acknowledged messages.
"""

from __future__ import annotations

from enum import Enum, auto

import protocol.derived.final_ack_body as _FINAL_ACK
import protocol.derived.order_ack_body as _ORDER_ACK
from protocol.errors import MalformedPacket
from protocol.flags import BaseFlags, PropertyFlags, UserFlags
from protocol.headers import (
    DIRECT_QUEUE,
    INFINITE,
    PRIVATE_ON_DESTINATION,
    SIGNATURE,
    VERSION,
    BaseHeader,
    DirectQueueName,
    MessagePropertiesHeader,
    PrivateQueueName,
    QueueName,
    UserHeader,
)
from protocol.identifiers import NULL_GUID
from protocol.message_class import Delivery, MessageClass
from protocol.patching import properties_offset
from protocol.records import FinalAckBody, OrderAckBody, UserMessage
from protocol.text import plain_text, wide_text
from protocol.user_message import build_user_message

ORDER_QUEUE_NUMBER = 4
ORDER_ACK_LABEL = wide_text("QM Ordering Ack")
ACK_BODY_BYTES = 36
FINAL_ACK_CLASS_MIN = 0x4000

_SESSION_HEADER_BIT = 0x10
_NO_HASH_WANTED = 0x8004  # SHA-1 and RC4: the values of unsigned, unencrypted messages
_NO_ENCRYPTION_WANTED = 0x6801


class MessageKind(Enum):
    """The kinds of user message that a queue manager distinguishes (MS-MQQB 3.1.5.1.1)."""

    ORDINARY = auto()
    ORDER_ACK = auto()
    FINAL_ACK = auto()


def classify(message: UserMessage, own_id: bytes) -> MessageKind:
    """Return whether a message is an acknowledgment for the queue manager `own_id` itself.

    Read literally, the specification allows no SessionHeader in either kind; one is accepted.
    """
    properties = message.properties
    if properties.label != ORDER_ACK_LABEL or message.base.flags & ~_SESSION_HEADER_BIT:
        return MessageKind.ORDINARY
    if not is_order_queue(message.user, own_id):
        return MessageKind.ORDINARY
    if properties.message_class >= FINAL_ACK_CLASS_MIN:
        return MessageKind.FINAL_ACK
    if (
        properties.message_class == MessageClass.ORDER_ACK
        and len(properties.body) == ACK_BODY_BYTES
    ):
        return MessageKind.ORDER_ACK
    return MessageKind.ORDINARY


def is_order_queue(user: UserHeader, own_id: bytes) -> bool:
    """Return whether the destination is our order queue.

    A private queue number must come with our GUID or the null GUID.  In a direct name the address
    is ignored: the peer may know us by another address, for example behind address translation.
    """
    queue = user.destination_queue
    if isinstance(queue, DirectQueueName):
        return plain_text(queue.name).lower().endswith("\\private$\\order_queue$")
    return (
        user.flags.destination_type == PRIVATE_ON_DESTINATION
        and queue == ORDER_QUEUE_NUMBER
        and user.queue_manager_address in (own_id, NULL_GUID)
    )


def order_queue_name(address: str) -> DirectQueueName:
    """Return the order queue at an IP address, for peers that were reached by direct names."""
    name = wide_text(f"TCP:{address}\\PRIVATE$\\order_queue$")
    return DirectQueueName(len(name), name)


def order_ack_body(message: UserMessage) -> OrderAckBody:
    """Parse the body of an order ack.  Raises MalformedPacket if it does not have 36 bytes."""
    return _ORDER_ACK.parse(_body(message))


def final_ack_body(message: UserMessage) -> FinalAckBody:
    """Parse the body of a final ack.  Raises MalformedPacket if it does not have 36 bytes."""
    return _FINAL_ACK.parse(_body(message))


def _body(message: UserMessage) -> bytes:
    body = message.properties.body
    if len(body) != ACK_BODY_BYTES:
        offset = properties_offset(build_user_message(message)) + 32
        raise MalformedPacket("properties.message_size", offset, "MUST be 36 in an order queue")
    return body


def build_order_ack(
    *,
    source_queue_manager: bytes,
    destination: DirectQueueName | PrivateQueueName,
    message_number: int,
    sent_time: int,
    body: OrderAckBody,
) -> bytes:
    """Build the packet that acknowledges a sequence up to one message to the original sender.

    `source_queue_manager` is our GUID and `message_number` a fresh number of ours; `destination` is
    `order_queue_name(...)`, or PrivateQueueName(GUID of the sender, ORDER_QUEUE_NUMBER);
    `sent_time` is in seconds since 1970 UTC.
    """
    header = _user_header(source_queue_manager, destination, message_number, sent_time)
    return _build(header, MessageClass.ORDER_ACK, _ORDER_ACK.build(body))


def build_final_ack(
    *,
    source_queue_manager: bytes,
    destination: DirectQueueName | PrivateQueueName,
    message_number: int,
    sent_time: int,
    message_class: int,
    body: FinalAckBody,
) -> bytes:
    """Build the packet that reports a message's final outcome to its original sender.

    `message_class` is ACK_RECEIVE, or the NACK that gives the reason of the rejection.  The other
    arguments are those of build_order_ack.
    """
    assert message_class >= FINAL_ACK_CLASS_MIN, "the class of a final ack"
    header = _user_header(source_queue_manager, destination, message_number, sent_time)
    return _build(header, message_class, _FINAL_ACK.build(body))


def _user_header(
    source: bytes,
    destination: DirectQueueName | PrivateQueueName,
    message_number: int,
    sent_time: int,
) -> UserHeader:
    address, kind = NULL_GUID, DIRECT_QUEUE
    queue: QueueName = destination
    if isinstance(destination, PrivateQueueName):
        address, kind = destination.queue_manager, PRIVATE_ON_DESTINATION
        queue = destination.number
    flags = UserFlags.of(delivery=Delivery.RECOVERABLE, destination_type=kind, properties_header=1)
    return UserHeader(
        source, address, INFINITE, sent_time, message_number, flags, queue, None, None, None
    )


def _build(user: UserHeader, message_class: int, body: bytes) -> bytes:
    properties = MessagePropertiesHeader(
        flags=PropertyFlags(0),
        label_length=0,
        message_class=message_class,
        correlation_id=bytes(20),
        body_type=0,
        application_tag=0,
        message_size=0,
        allocation_body_size=len(body),
        privacy_level=0,
        hash_algorithm=_NO_HASH_WANTED,
        encryption_algorithm=_NO_ENCRYPTION_WANTED,
        extension_size=0,
        label=ORDER_ACK_LABEL,
        extension=b"",
        body=body,
    )
    base = BaseHeader(VERSION, 0, BaseFlags(0), SIGNATURE, 0, INFINITE)
    return build_user_message(
        UserMessage(base, user, None, None, properties, None, None, None, None)
    )
