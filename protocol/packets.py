"""The packets of a session: kinds, parsers and builders (MS-MQQB 2.2, MS-MQMQ 2.2.20).

    EstablishConnection    BaseHeader InternalHeader ...          572 bytes
    ConnectionParameters   BaseHeader InternalHeader ...           32 bytes
    SessionAck             BaseHeader InternalHeader SessionHeader 36 bytes
    UserMessage            BaseHeader UserHeader ... [SessionHeader]
    OrderAck, FinalAck     user messages to the order queue, see acknowledgments.py

A packet is the bytes that framing.py cuts off the stream: PacketSize, and 16 more for a
SessionHeader that is piggybacked on a user message.  Bytes that cannot be parsed, and records that
must not be built, raise MalformedPacket with the field, its offset in the packet and the rule.
"""

from __future__ import annotations

from enum import Enum, auto

from protocol.acknowledgments import (
    ORDER_ACK_LABEL,
    ORDER_QUEUE_NUMBER,
    MessageKind,
    build_final_ack,
    build_order_ack,
    classify,
    final_ack_body,
    is_order_queue,
    order_ack_body,
    order_queue_name,
)
from protocol.errors import MalformedPacket
from protocol.flags import (
    BaseFlags,
    DebugFlags,
    InternalFlags,
    OperatingSystem,
    PropertyFlags,
    SecurityFlags,
    TransactionFlags,
    UserFlags,
)
from protocol.headers import (
    INFINITE,
    LARGE_PACKET_BYTES_MAX,
    PACKET_BYTES_MAX,
    PACKET_BYTES_MIN,
    SIGNATURE,
    VERSION,
    BaseHeader,
    DebugHeader,
    DirectQueueName,
    MessagePropertiesHeader,
    PrivateQueueName,
    QueueName,
    SecurityHeader,
    SessionHeader,
    SoapHeader,
    TransactionHeader,
    UserHeader,
)
from protocol.internal_packets import (
    build_connection_parameters,
    build_establish_connection,
    build_session_ack,
    connection_parameters,
    establish_connection,
    parse_connection_parameters,
    parse_establish_connection,
    parse_session_ack,
)
from protocol.names.multi_queue import (
    MqfAddressHeader,
    MqfElement,
    MqfSignatureHeader,
    MultiQueueFormatHeader,
)
from protocol.patching import (
    append_session_header,
    patch_class,
    patch_hops,
    patch_sent,
    patch_sequence,
    properties_offset,
    transaction_offset,
    without_session_header,
)
from protocol.records import (
    CONNECTION_PARAMETERS,
    ESTABLISH_CONNECTION,
    INTERNAL_FLAGS_OFFSET,
    SESSION_ACK,
    ConnectionParameters,
    EstablishConnection,
    FinalAckBody,
    InternalHeader,
    OrderAckBody,
    SessionAck,
    UserMessage,
)
from protocol.text import plain_text, wide_text
from protocol.user_message import build_user_message, parse_user_message

__all__ = [
    "INFINITE",
    "LARGE_PACKET_BYTES_MAX",
    "ORDER_ACK_LABEL",
    "ORDER_QUEUE_NUMBER",
    "PACKET_BYTES_MAX",
    "PACKET_BYTES_MIN",
    "SIGNATURE",
    "VERSION",
    "BaseFlags",
    "BaseHeader",
    "ConnectionParameters",
    "DebugFlags",
    "DebugHeader",
    "DirectQueueName",
    "EstablishConnection",
    "FinalAckBody",
    "InternalFlags",
    "InternalHeader",
    "MessageKind",
    "MessagePropertiesHeader",
    "MqfAddressHeader",
    "MqfElement",
    "MqfSignatureHeader",
    "MultiQueueFormatHeader",
    "OperatingSystem",
    "OrderAckBody",
    "PacketKind",
    "PrivateQueueName",
    "PropertyFlags",
    "QueueName",
    "SecurityFlags",
    "SecurityHeader",
    "SessionAck",
    "SessionHeader",
    "SoapHeader",
    "TransactionFlags",
    "TransactionHeader",
    "UserFlags",
    "UserHeader",
    "UserMessage",
    "append_session_header",
    "build_connection_parameters",
    "build_establish_connection",
    "build_final_ack",
    "build_order_ack",
    "build_session_ack",
    "build_user_message",
    "classify",
    "connection_parameters",
    "establish_connection",
    "final_ack_body",
    "is_order_queue",
    "order_ack_body",
    "order_queue_name",
    "packet_kind",
    "parse_connection_parameters",
    "parse_establish_connection",
    "parse_session_ack",
    "parse_user_message",
    "patch_class",
    "patch_hops",
    "patch_sent",
    "patch_sequence",
    "plain_text",
    "properties_offset",
    "transaction_offset",
    "wide_text",
    "without_session_header",
]


class PacketKind(Enum):
    """The kinds of packet that the first bytes distinguish (MS-MQQB 3.1.5.1.1)."""

    ESTABLISH_CONNECTION = auto()
    CONNECTION_PARAMETERS = auto()
    SESSION_ACK = auto()
    USER_MESSAGE = auto()


_INTERNAL_KINDS = {
    SESSION_ACK: PacketKind.SESSION_ACK,
    ESTABLISH_CONNECTION: PacketKind.ESTABLISH_CONNECTION,
    CONNECTION_PARAMETERS: PacketKind.CONNECTION_PARAMETERS,
}
_INTERNAL_BIT = 0x08  # of the byte at offset 2


def packet_kind(packet: bytes) -> PacketKind:
    """Return the kind of a packet, by its first bytes; the parser of that kind checks the rest.

    Raises MalformedPacket.
    """
    if len(packet) < PACKET_BYTES_MIN:
        raise MalformedPacket("base", 0, f"takes {PACKET_BYTES_MIN} bytes at least")
    if not packet[2] & _INTERNAL_BIT:
        return PacketKind.USER_MESSAGE
    kind = _INTERNAL_KINDS.get(packet[INTERNAL_FLAGS_OFFSET] & 0xF)
    if kind is None:
        field = "internal.flags.packet_type"
        raise MalformedPacket(field, INTERNAL_FLAGS_OFFSET, "MUST be 1, 2 or 3")
    return kind
