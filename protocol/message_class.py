"""Message classes and delivery modes (MS-MQMQ 2.2.18.1.6 and 2.2.19.2).

In a class, bit 0x8000 means "negative" and bit 0x4000 "about reception, not arrival".  Classes that
are not listed here are transferred and stored like any other: applications may use their own.
"""

from __future__ import annotations

from enum import IntEnum


class Delivery(IntEnum):
    """Delivery modes of UserHeader.Flags.DM; a transactional message is always recoverable."""

    EXPRESS = 0
    RECOVERABLE = 1


class MessageClass(IntEnum):
    """Message classes; a spelling of the specification that differs is an alias."""

    NORMAL = 0x0000
    REPORT = 0x0001
    ACK_REACH_QUEUE = 0x0002
    ORDER_ACK = 0x00FF
    ACK_RECEIVE = 0x4000
    NACK_BAD_DESTINATION_QUEUE = 0x8000
    NACK_DELETED = 0x8001
    NACK_REACH_QUEUE_TIMEOUT = 0x8002
    NACK_QUEUE_EXCEED_QUOTA = 0x8003
    NACK_ACCESS_DENIED = 0x8004
    NACK_HOP_COUNT_EXCEEDED = 0x8005
    NACK_BAD_SIGNATURE = 0x8006
    NACK_BAD_ENCRYPTION = 0x8007
    NACK_NOT_TRANSACTIONAL_QUEUE = 0x8009
    NACK_NOT_TRANSACTIONAL_MESSAGE = 0x800A
    NACK_UNSUPPORTED_CRYPTO_PROVIDER = 0x800B
    NACK_QUEUE_DELETED = 0xC000
    NACK_QUEUE_PURGED = 0xC001
    NACK_RECEIVE_TIMEOUT = 0xC002
    NACK_RECEIVE_REJECTED = 0xC004

    NACK_BAD_DST_Q = 0x8000
    NACK_Q_EXCEED_QUOTA = 0x8003
    NACK_NOT_TRANSACTIONAL_Q = 0x8009
    NACK_NOT_TRANSACTIONAL_MSG = 0x800A
    NACK_Q_DELETED = 0xC000
    NACK_Q_PURGED = 0xC001

    @staticmethod
    def name_of(value: int) -> str:
        """Return the JSON name: "normal", "nack_bad_destination_queue", "0x1234" if not defined."""
        try:
            return MessageClass(value).name.lower()
        except ValueError:
            return f"0x{value:04x}"

    @staticmethod
    def describe(value: int) -> str:
        """Return a sentence that explains a class to a person."""
        return _SENTENCES.get(value, f"The message has the class 0x{value:04x} of an application.")


_SENTENCES: dict[int, str] = {
    MessageClass.NORMAL: "The message was sent by an application.",
    MessageClass.REPORT: "The message reports a step of a traced message.",
    MessageClass.ACK_REACH_QUEUE: "The message reached its queue.",
    MessageClass.ORDER_ACK: "The transactional messages so far were received in order.",
    MessageClass.ACK_RECEIVE: "The message was received by an application.",
    MessageClass.NACK_BAD_DESTINATION_QUEUE: "The destination queue does not exist.",
    MessageClass.NACK_DELETED: "The message was deleted in transit.",
    MessageClass.NACK_REACH_QUEUE_TIMEOUT: "The message did not reach its queue in time.",
    MessageClass.NACK_QUEUE_EXCEED_QUOTA: "The destination queue is full.",
    MessageClass.NACK_ACCESS_DENIED: "The sender may not send to the destination queue.",
    MessageClass.NACK_HOP_COUNT_EXCEEDED: "The message passed too many routing servers.",
    MessageClass.NACK_BAD_SIGNATURE: "The signature of the message is not valid.",
    MessageClass.NACK_BAD_ENCRYPTION: "The message could not be decrypted.",
    MessageClass.NACK_NOT_TRANSACTIONAL_QUEUE: (
        "The message is transactional and the destination queue is not."
    ),
    MessageClass.NACK_NOT_TRANSACTIONAL_MESSAGE: (
        "The destination queue is transactional and the message is not."
    ),
    MessageClass.NACK_UNSUPPORTED_CRYPTO_PROVIDER: (
        "The destination does not know the cryptographic provider of the message."
    ),
    MessageClass.NACK_QUEUE_DELETED: "The queue was deleted with the message in it.",
    MessageClass.NACK_QUEUE_PURGED: "The queue was purged with the message in it.",
    MessageClass.NACK_RECEIVE_TIMEOUT: "The message was not received in time.",
    MessageClass.NACK_RECEIVE_REJECTED: "The message was rejected by the receiving application.",
}
