"""The fields of a message that a digital signature covers (MS-MQMQ 2.5).

Three styles of signature have one field order each.  A field is its bytes in the packet: integers
are little-endian, a direct name has its size before it, an absent field has no bytes.  The padding
after a name is not covered, because its content is undefined.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING

import protocol.derived.mqf_address_header as _ADDRESSES
from protocol.headers import DirectQueueName, PrivateQueueName, QueueName
from protocol.names.multi_queue import MQF_ADDRESS_BYTES_MIN

if TYPE_CHECKING:
    from protocol.records import UserMessage


class SignatureStyle(IntEnum):
    """The styles, by their values in SecurityHeader.Flags.AS (MS-MQQB 3.1.5.8.3)."""

    MSMQ_1 = 1
    MSMQ_2 = 3
    MSMQ_3 = 5


_ACKNOWLEDGMENT_BITS = 0x0F


def signed_parts(message: UserMessage, style: SignatureStyle) -> tuple[bytes, bytes, bytes]:
    """Return the bytes that a signature covers: before the body, the body, and after it.

    The body must not be encrypted: a sender signs first and encrypts then.
    """
    user, properties = message.user, message.properties
    before = properties.correlation_id + properties.application_tag.to_bytes(4, "little")
    after = [
        properties.label,
        _name(user.response_queue),
        _name(user.admin_queue),
    ]
    if style is SignatureStyle.MSMQ_3:
        after += [properties.extension, _list(message)]
    if style is not SignatureStyle.MSMQ_1:
        flags = user.flags
        after += [
            user.source_queue_manager,
            bytes(
                (
                    flags.delivery,
                    message.base.flags.priority,
                    flags.positive_journal << 1 | flags.negative_journal,
                    int(properties.flags) & _ACKNOWLEDGMENT_BITS,
                )
            ),
            properties.message_class.to_bytes(2, "little"),
            properties.body_type.to_bytes(4, "little"),
            user.connector_type or b"",
        ]
    if style is SignatureStyle.MSMQ_2:
        after.append(_name(user.destination_queue))
    return before, properties.body, b"".join(after)


def _name(queue: QueueName) -> bytes:
    """Return the bytes of a queue name in a UserHeader, without padding."""
    match queue:
        case None:
            return b""
        case DirectQueueName():
            return len(queue.name).to_bytes(2, "little") + queue.name
        case PrivateQueueName():
            return queue.queue_manager + queue.number.to_bytes(4, "little")
        case int():
            return queue.to_bytes(4, "little")
        case _:
            return queue


def _list(message: UserMessage) -> bytes:
    """Return the bytes of the list of destination queues, or none if the message has no list."""
    header = message.multi_queue
    if header is None:
        return b""
    built = _ADDRESSES.build(header.destination)
    return built[MQF_ADDRESS_BYTES_MIN : int.from_bytes(built[:4], "little")]
