"""Changes to a packet that is kept as bytes, and its body, without parsing all of it.

A stored message is its packet without a SessionHeader.  When it is sent, its numbers and times are
written into it, and an acknowledgment may be appended.  We have parsed or built these packets
before; the offsets are still checked against the length of the packet.
"""

from __future__ import annotations

from struct import Struct

from protocol.errors import MalformedPacket
from protocol.headers import HOPS_MAX, SESSION_HEADER_BYTES, USER_FLAGS_OFFSET, SessionHeader
from protocol.internal_packets import build_session_header

SOURCE_OFFSET = 16
ADDRESS_OFFSET = 32
SENT_TIME_OFFSET = 52
MESSAGE_NUMBER_OFFSET = 56
QUEUE_NAMES_OFFSET = 64
SEQUENCE_ID_IN_TRANSACTION = 4  # bytes into the TransactionHeader
CLASS_IN_PROPERTIES = 2  # bytes into the MessagePropertiesHeader
_BODY_SIZE, _LABEL = 32, 56  # likewise

_FLAGS_BYTE = 2
_SESSION_HEADER_BIT = 0x10
_HOPS_MASK = 0x1F

_U16 = Struct("<H")
_U32 = Struct("<I")
SEQUENCE_STRUCT = Struct("<QII")
_BODY_AND_EXTENSION = Struct("<I16xI")  # their sizes
_SECURITY_SIZES = Struct("<xxHHHII")

_NAME_BYTES = (0, 0, 4, 4, 4, 16, 20)  # by queue name type; a name of type 7 states its own size
_DIRECT = 7
# Of UserHeader.Flags: the types of the three names, and whether a connector type follows them.
_NAMES = 7 << 10 | 7 << 13 | 7 << 16 | 1 << 22
_ONE_DIRECT_NAME = _DIRECT << 10


def append_session_header(packet: bytes, header: SessionHeader) -> bytes:
    """Return the packet of a user message with a piggybacked acknowledgment."""
    assert not packet[_FLAGS_BYTE] & _SESSION_HEADER_BIT, "the packet already has a session header"
    flags = packet[_FLAGS_BYTE] | _SESSION_HEADER_BIT
    return b"".join((packet[:2], bytes((flags,)), packet[3:], build_session_header(header)))


def without_session_header(packet: bytes) -> bytes:
    """Return the packet of a user message as it is stored, without a SessionHeader.

    A packet without a SessionHeader is returned as the same object.
    """
    flags = packet[_FLAGS_BYTE]
    if not flags & _SESSION_HEADER_BIT:
        return packet
    kept = packet[3:-SESSION_HEADER_BYTES]
    return b"".join((packet[:2], bytes((flags & ~_SESSION_HEADER_BIT,)), kept))


def with_queue_manager(packet: bytes, guid: bytes) -> bytes:
    """Return the packet of a user message, addressed to the queue manager of that GUID."""
    _fits(packet, QUEUE_NAMES_OFFSET, "user")
    return b"".join((packet[:ADDRESS_OFFSET], guid, packet[ADDRESS_OFFSET + 16 :]))


def patch_sent(
    packet: bytearray,
    *,
    source_queue_manager: bytes | None = None,
    sent_time: int | None = None,
    message_number: int | None = None,
) -> None:
    """Write the fields that the sending queue manager assigns; None keeps the present value.

    `source_queue_manager` is a GUID, `sent_time` in seconds since 1970 UTC.
    """
    _fits(packet, QUEUE_NAMES_OFFSET, "user")
    if source_queue_manager is not None:
        assert len(source_queue_manager) == 16, "a GUID has 16 bytes"
        packet[SOURCE_OFFSET : SOURCE_OFFSET + 16] = source_queue_manager
    if sent_time is not None:
        _U32.pack_into(packet, SENT_TIME_OFFSET, sent_time)
    if message_number is not None:
        _U32.pack_into(packet, MESSAGE_NUMBER_OFFSET, message_number)


def patch_sequence(
    packet: bytearray, transaction_offset: int, sequence_id: int, number: int, previous: int
) -> None:
    """Write a message's place in its sequence; the offset is that of `transaction_offset`."""
    at = transaction_offset + SEQUENCE_ID_IN_TRANSACTION
    SEQUENCE_STRUCT.pack_into(packet, at, sequence_id, number, previous)


def with_sequence(
    packet: bytes, transaction_offset: int, sequence_id: int, number: int, previous: int
) -> bytes:
    """Return a copy of a packet with another place in a sequence; as `patch_sequence`."""
    at = transaction_offset + SEQUENCE_ID_IN_TRANSACTION
    place = SEQUENCE_STRUCT.pack(sequence_id, number, previous)
    return b"".join((packet[:at], place, packet[at + len(place) :]))


def patch_class(packet: bytes, message_class: int) -> bytes:
    """Return the same packet with another message class."""
    at = properties_offset(packet) + CLASS_IN_PROPERTIES
    return b"".join((packet[:at], _U16.pack(message_class), packet[at + 2 :]))


def patch_hops(packet: bytearray, hops: int) -> None:
    """Write the number of routing servers that the message has passed."""
    assert 0 <= hops <= HOPS_MAX, "the caller rejects more hops"
    _fits(packet, QUEUE_NAMES_OFFSET, "user")
    packet[USER_FLAGS_OFFSET] = packet[USER_FLAGS_OFFSET] & ~_HOPS_MASK | hops


def transaction_offset(packet: bytes | bytearray) -> int | None:
    """Return the offset of the TransactionHeader of a user message; None if it has none."""
    size = len(packet)
    if size < QUEUE_NAMES_OFFSET:
        _fits(packet, QUEUE_NAMES_OFFSET, "user")
    (flags,) = _U32.unpack_from(packet, USER_FLAGS_OFFSET)
    if not flags >> 20 & 1:
        return None
    if flags & _NAMES == _ONE_DIRECT_NAME and size > QUEUE_NAMES_OFFSET + 1:
        # Most packets: as `_user_header_end`, without its loop.
        at = QUEUE_NAMES_OFFSET + 2 + (packet[64] | packet[65] << 8) + 3 & -4
    else:
        at = _user_header_end(packet, flags)
    if at + 20 > size:
        _fits(packet, at + 20, "transaction")
    return at


def properties_offset(packet: bytes | bytearray) -> int:
    """Return the offset of the MessagePropertiesHeader of a user message."""
    size = len(packet)
    if size < QUEUE_NAMES_OFFSET:
        _fits(packet, QUEUE_NAMES_OFFSET, "user")
    (flags,) = _U32.unpack_from(packet, USER_FLAGS_OFFSET)
    if flags & _NAMES == _ONE_DIRECT_NAME and size > QUEUE_NAMES_OFFSET + 1:
        # Most packets: as `_user_header_end`, without its loop.
        at = QUEUE_NAMES_OFFSET + 2 + (packet[64] | packet[65] << 8) + 3 & -4
    else:
        at = _user_header_end(packet, flags)
    if flags >> 20 & 1:
        _fits(packet, at + 20, "transaction")
        at += 36 if packet[at] & 1 else 20
    if flags >> 19 & 1:
        _fits(packet, at + 16, "security")
        at += 16 + sum(each + 3 & -4 for each in _SECURITY_SIZES.unpack_from(packet, at))
    if at + 56 > size:
        _fits(packet, at + 56, "properties")
    return at


def body_of(packet: bytes) -> bytes:
    """Return the body of a user message, without parsing the rest of the packet.

    Raises MalformedPacket if it goes beyond the packet; other rules are not checked.
    """
    at = properties_offset(packet)
    size, extension_bytes = _BODY_AND_EXTENSION.unpack_from(packet, at + _BODY_SIZE)
    begin = at + _LABEL + 2 * packet[at + 1] + extension_bytes
    if begin + size > len(packet):
        _fits(packet, begin + size, "properties")
    return packet[begin : begin + size]


def _user_header_end(packet: bytes | bytearray, flags: int) -> int:
    at = QUEUE_NAMES_OFFSET
    for shift in (10, 13, 16):
        kind = flags >> shift & 7
        if kind == _DIRECT:
            _fits(packet, at + 2, "user")
            at = at + 2 + (packet[at] | packet[at + 1] << 8) + 3 & -4
        else:
            at += _NAME_BYTES[kind]
    return at + 16 if flags >> 22 & 1 else at


def _fits(packet: bytes | bytearray, end: int, header: str) -> None:
    if end > len(packet):
        raise MalformedPacket(header, end, "MUST NOT go beyond the packet")
