"""The layouts of the packets: which headers, in which order, and where they end.

Every packet states its size.  A user message may be followed by a SessionHeader that this size does
not count; in a SessionAck it is counted (MS-MQMQ 2.2.19.1, MS-MQQB 4.1.8).
"""

# No `from __future__ import annotations` here: the annotations are the layout.

from typing import Annotated, NamedTuple

from protocol.codec.vocabulary import (
    Bound,
    Int16ul,
    Int32ul,
    Int64ul,
    NothingLeft,
    Octets,
    Present,
    Reserved,
    Rule,
    Term,
    Unbound,
    this,
)
from protocol.flags import InternalFlags, OperatingSystem, PingFlags
from protocol.headers import (
    BaseHeader,
    DebugHeader,
    MessagePropertiesHeader,
    SecurityHeader,
    SessionHeader,
    SoapHeader,
    TransactionHeader,
    UserHeader,
)
from protocol.names.multi_queue import MultiQueueFormatHeader

BASE_FLAGS_OFFSET = 2
PACKET_SIZE_OFFSET = 8
INTERNAL_FLAGS_OFFSET = 18

# InternalHeader.Flags.PT (MS-MQQB 2.2.1).
SESSION_ACK = 1
ESTABLISH_CONNECTION = 2
CONNECTION_PARAMETERS = 3

ESTABLISH_CONNECTION_BYTES = 572
CONNECTION_PARAMETERS_BYTES = 32
SESSION_ACK_BYTES = 36

PING_SIGNATURE = 0x5548

_FLAGS = this.base.flags


def _base_rule(condition: object, rule: str, flag: str) -> Term:
    return Rule(condition, rule, f"base.flags.{flag}", BASE_FLAGS_OFFSET)


def _type_rule(packet_type: int) -> Term:
    return Rule(
        this.internal.flags.packet_type == packet_type,
        f"MUST be {packet_type}",
        "internal.flags.packet_type",
        INTERNAL_FLAGS_OFFSET,
    )


def _ends(rule: str) -> Term:
    return NothingLeft("base.packet_size", PACKET_SIZE_OFFSET, rule)


INTERNAL = _base_rule(_FLAGS.internal == 1, "MUST be set in an internal packet", "internal")
NOT_INTERNAL = _base_rule(_FLAGS.internal == 0, "MUST be clear in a user message", "internal")
TRACED = _base_rule(
    _FLAGS.debug_header >= _FLAGS.tracing, "MUST be set for tracing", "debug_header"
)
NO_DEBUG = _base_rule(
    _FLAGS.debug_header == 0, "MUST be clear in an internal packet", "debug_header"
)
NO_SESSION = _base_rule(
    _FLAGS.session_header == 0, "MUST be clear in this packet", "session_header"
)
SESSION = _base_rule(_FLAGS.session_header == 1, "MUST be set in a SessionAck", "session_header")
NEVER_REFUSES = Rule(
    this.internal.flags.connection_refused == 0,
    "MUST be clear in a SessionAck",
    "internal.flags.connection_refused",
    INTERNAL_FLAGS_OFFSET,
)
SIZED = Bound(this.base.packet_size, "base.packet_size", PACKET_SIZE_OFFSET)
FULL = _ends("MUST be the size that this kind of packet has")
COUNTED = _ends("MUST be the size of the packet without a piggybacked SessionHeader")


class InternalHeader(NamedTuple):
    """The header that gives the type of an internal packet (MS-MQQB 2.2.1)."""

    reserved: Annotated[int, Int16ul]
    flags: Annotated[InternalFlags, Int16ul]


class EstablishConnection(NamedTuple):
    """The first packet of both sides, 572 bytes (MS-MQQB 2.2.3)."""

    base: Annotated[BaseHeader, INTERNAL, NO_SESSION, NO_DEBUG, SIZED]
    internal: Annotated[InternalHeader, _type_rule(ESTABLISH_CONNECTION)]
    client: Annotated[bytes, Octets(16)]  # the initiator's GUID
    server: Annotated[bytes, Octets(16)]  # the acceptor's; null in a request if unknown
    timestamp: Annotated[int, Int32ul]  # milliseconds of the initiator's clock
    operating_system: Annotated[OperatingSystem, Int16ul]
    reserved: Annotated[int, Int16ul]
    padding: Annotated[bytes, Octets(512), FULL, Unbound(), COUNTED]  # 0x5A in a response


class ConnectionParameters(NamedTuple):
    """The second packet of both sides, 32 bytes (MS-MQQB 2.2.2)."""

    base: Annotated[BaseHeader, INTERNAL, NO_SESSION, NO_DEBUG, SIZED]
    internal: Annotated[InternalHeader, _type_rule(CONNECTION_PARAMETERS)]
    recoverable_ack_timeout: Annotated[int, Int32ul]  # milliseconds
    ack_timeout: Annotated[int, Int32ul]  # milliseconds
    reserved: Annotated[int, Int16ul]
    window_size: Annotated[int, Int16ul, FULL, Unbound(), COUNTED]  # messages


class SessionAck(NamedTuple):
    """A separate session acknowledgment, 36 bytes (MS-MQQB 2.2.6)."""

    base: Annotated[BaseHeader, INTERNAL, SESSION, NO_DEBUG, SIZED]
    internal: Annotated[InternalHeader, _type_rule(SESSION_ACK), NEVER_REFUSES]
    session: Annotated[SessionHeader, FULL, Unbound(), COUNTED]


class UserMessage(NamedTuple):
    """A complete message with its headers; None for an absent header (MS-MQMQ 2.2.20).

    Bytes between the last header and PacketSize are skipped: packets of real senders contain
    remote-read headers there, which have no meaning here.
    """

    base: Annotated[BaseHeader, NOT_INTERNAL, TRACED, SIZED]
    user: UserHeader
    transaction: Annotated[
        TransactionHeader | None, Present(this.user.flags.transaction_header, TransactionHeader)
    ]
    security: Annotated[
        SecurityHeader | None, Present(this.user.flags.security_header, SecurityHeader)
    ]
    properties: MessagePropertiesHeader
    debug: Annotated[DebugHeader | None, Present(_FLAGS.debug_header, DebugHeader)]
    soap: Annotated[SoapHeader | None, Present(this.user.flags.soap_header, SoapHeader)]
    multi_queue: Annotated[
        MultiQueueFormatHeader | None,
        Present(this.user.flags.multi_queue_header, MultiQueueFormatHeader),
        Unbound(),
    ]
    session: Annotated[SessionHeader | None, Present(_FLAGS.session_header, SessionHeader), COUNTED]


class OrderAckBody(NamedTuple):
    """The body of an order ack: accepted up to this number (MS-MQQB 2.2.4.1); 36 bytes."""

    sequence_id: Annotated[int, Int64ul]
    sequence_number: Annotated[int, Int32ul]
    previous_number: Annotated[int, Int32ul, Reserved(20)]  # sequence_number - 1


class FinalAckBody(NamedTuple):
    """The body of a final ack: identifies its message (MS-MQQB 2.2.5.1); 36 bytes."""

    sequence_id: Annotated[int, Int64ul]
    sequence_number: Annotated[int, Int32ul]
    previous_number: Annotated[int, Int32ul]
    source_queue_manager: Annotated[bytes, Octets(16)]
    message_number: Annotated[int, Int32ul]


class Ping(NamedTuple):
    """A request or a response; only the direction distinguishes them."""

    flags: Annotated[PingFlags, Int16ul]
    signature: Annotated[int, Int16ul, Rule(this.signature == PING_SIGNATURE, "MUST be 0x5548")]
    cookie: Annotated[int, Int32ul]  # incremented by the initiator
    queue_manager: Annotated[  # the GUID of the sender of this datagram
        bytes,
        Octets(16),
        NothingLeft("queue_manager", 8, "MUST end the datagram, which has 24 bytes"),
    ]
