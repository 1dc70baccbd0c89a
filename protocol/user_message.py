"""The parser and builder of user messages, used on the hot path (MS-MQMQ 2.2.20)."""

from __future__ import annotations

from protocol.derived.user_message import build as _build
from protocol.derived.user_message import parse as _parse
from protocol.headers import PrivateQueueName
from protocol.records import UserMessage


def parse_user_message(packet: bytes) -> UserMessage:
    """Parse a complete packet, with its SessionHeader if one is piggybacked.

    All rules of the specification for the bytes of a message are checked.  Raises MalformedPacket.
    """
    return _parse(packet)


def build_user_message(message: UserMessage) -> bytes:
    """Build the packet of a message.

    PacketSize and all sizes and counts are computed; those in the record are not used.  The flags
    must announce exactly the headers and names that are present.  Raises MalformedPacket.
    """
    return _build(message)


def admin_host(message: UserMessage) -> bytes | None:
    """Return the GUID of the queue manager that hosts the administration queue.

    A response queue of type 4 is a private queue there.  None: there is no administration queue, or
    its name does not state the computer.  [MS-MQMQ] 2.2.19.2
    """
    user = message.user
    if user.flags.admin_type == 2:
        return user.source_queue_manager
    if user.flags.admin_type == 3:
        return user.queue_manager_address
    queue = user.admin_queue
    return queue.queue_manager if isinstance(queue, PrivateQueueName) else None
