"""What can be read off a whole, checked packet at its fixed places.  [MS-MQMQ] 2.2.19.1, .2

The queue manager keeps messages as packets and mostly needs one or two of their
fields; a full parse costs twenty times as much.  Only for packets that
`parse_user_message` has accepted or `build_user_message` has made.
"""

from __future__ import annotations

import struct

from protocol import properties_offset, transaction_offset

INFINITE_S = 0xFFFFFFFF

_TIME_TO_REACH_QUEUE = 12
_TIME_TO_BE_RECEIVED = 48
_SENT_OFFSET = 52
_SOURCE_OFFSET = 16
_MESSAGE_NUMBER_OFFSET = 56
_FLAGS_OFFSET = 60
_U16 = struct.Struct("<H")
_U32 = struct.Struct("<I")

_DELIVERY_BITS = 0x60
_DIRECT = 7  # UserHeader.Flags.DQ
_NEGATIVE_JOURNAL = 1 << 8
_POSITIVE_JOURNAL = 1 << 9
_ADMIN_QUEUE = 7 << 13  # its type; 0: there is none
_TRANSACTION_HEADER = 1 << 20
_TOLD_BY_FINAL_ACK = _NEGATIVE_JOURNAL | _POSITIVE_JOURNAL
_FINAL_ACK = 1 << 1  # of TransactionHeader.Flags


def is_express(packet: bytes) -> bool:
    """Whether the message lives in memory only."""
    return not packet[_FLAGS_OFFSET] & _DELIVERY_BITS


def is_transactional(packet: bytes) -> bool:
    return bool(_U32.unpack_from(packet, _FLAGS_OFFSET)[0] & _TRANSACTION_HEADER)


def wants_dead_letter(packet: bytes) -> bool:
    """Negative source journaling: a copy is kept at the source when it fails."""
    return bool(_U32.unpack_from(packet, _FLAGS_OFFSET)[0] & _NEGATIVE_JOURNAL)


def is_kept_as_dead(packet: bytes, *, discard: bool) -> bool:
    """Whether a message of ours that fails becomes a dead letter.

    A transactional one does without asking for it on the wire, where that costs, unless its
    application wants it to be discarded.
    """
    return wants_dead_letter(packet) or (not discard and is_transactional(packet))


def wants_journal(packet: bytes) -> bool:
    """Positive source journaling: a copy is kept at the source when it was delivered."""
    return bool(_U32.unpack_from(packet, _FLAGS_OFFSET)[0] & _POSITIVE_JOURNAL)


def wants_final_ack(packet: bytes) -> bool:
    """Whether the source of a transactional message waits to hear of its receipt, or of why it was
    not received.  [MS-MQQB] 3.1.7.2.2"""
    flags: int = _U32.unpack_from(packet, _FLAGS_OFFSET)[0]
    if not flags & _TRANSACTION_HEADER:
        return False
    if flags & _TOLD_BY_FINAL_ACK:
        return True
    at = transaction_offset(packet)
    assert at is not None
    return bool(packet[at] & _FINAL_ACK)


def may_want_word(packet: bytes) -> bool:
    """Whether somebody may have to be told when the message leaves its queue: few ask for it."""
    return has_admin_queue(packet) or wants_final_ack(packet)


def may_be_confirmed(packet: bytes) -> bool:
    """Whether we keep a transactional message of ours until its receipt: if it is journaled."""
    return bool(packet[_FLAGS_OFFSET + 1] & _TOLD_BY_FINAL_ACK >> 8)


def names_destination_directly(packet: bytes) -> bool:
    """Whether its destination is a direct name."""
    flags: int = _U32.unpack_from(packet, _FLAGS_OFFSET)[0]
    return flags >> 10 & 7 == _DIRECT


def has_admin_queue(packet: bytes) -> bool:
    """Whether administration acknowledgments have somewhere to go."""
    return bool(_U32.unpack_from(packet, _FLAGS_OFFSET)[0] & _ADMIN_QUEUE)


def message_class_of(packet: bytes) -> int:
    message_class: int = _U16.unpack_from(packet, properties_offset(packet) + 2)[0]
    return message_class


def final_ack_body(packet: bytes) -> bytes:
    """What the body of a final ack says of this transactional message.  [MS-MQQB] 2.2.5.1

    Its sequence id, number and previous number stand there as they stand in the message.
    """
    at = transaction_offset(packet)
    assert at is not None
    return b"".join(
        (
            packet[at + 4 : at + 20],
            packet[_SOURCE_OFFSET : _SOURCE_OFFSET + 16],
            packet[_MESSAGE_NUMBER_OFFSET : _MESSAGE_NUMBER_OFFSET + 4],
        )
    )


def source_of(packet: bytes) -> bytes:
    """The GUID of the queue manager that gave the message its number."""
    return packet[_SOURCE_OFFSET : _SOURCE_OFFSET + 16]


def message_number(packet: bytes) -> int:
    """The message's number at its source queue manager."""
    number: int = _U32.unpack_from(packet, _MESSAGE_NUMBER_OFFSET)[0]
    return number


def reach_time_s(packet: bytes) -> int | None:
    """How long the message may take to reach its queue; None: for ever.

    The time-to-be-received counts from the sent time as well, so what is over
    before it arrived cannot be received any more.  [MS-MQMQ] 2.2.19.1, 2.2.19.2
    """
    to_reach: int = _U32.unpack_from(packet, _TIME_TO_REACH_QUEUE)[0]
    to_be_received: int = _U32.unpack_from(packet, _TIME_TO_BE_RECEIVED)[0]
    shorter = min(to_reach, to_be_received)
    return None if shorter == INFINITE_S else shorter


def receive_time_s(packet: bytes) -> int | None:
    """How long the message may take until it is received; None: for ever."""
    to_be_received: int = _U32.unpack_from(packet, _TIME_TO_BE_RECEIVED)[0]
    return None if to_be_received == INFINITE_S else to_be_received


def time_left_s(packet: bytes, time_s: int | None, wall_s: int) -> int | None:
    """What is left of such a time for a message that comes from elsewhere; below 0: it is over.

    It runs from the sent time, by the wall clock.  Where that is still to come, the clocks differ,
    and all of it is left.
    """
    if time_s is None:
        return None
    return time_s - max(wall_s - sent_time_s(packet), 0)


def sent_time_s(packet: bytes) -> int:
    """Seconds since 1970, by the clock of its source."""
    sent: int = _U32.unpack_from(packet, _SENT_OFFSET)[0]
    return sent


def with_sent_time(packet: bytes, sent_s: int) -> bytes:
    """The same message, as if sent at another time."""
    copy = bytearray(packet)
    _U32.pack_into(copy, _SENT_OFFSET, min(max(sent_s, 0), INFINITE_S))
    return bytes(copy)
