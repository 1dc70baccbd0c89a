"""Fields read from fixed offsets of a complete, valid packet. [MS-MQMQ] 2.2.19.1, .2

The queue manager keeps messages as packets and usually needs one or two of their fields; a complete
parse costs twenty times as much. Use these functions only for packets that `parse_user_message` has
accepted or `build_user_message` has built.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import repeat

from protocol import properties_offset, transaction_offset

INFINITE_S = 0xFFFFFFFF

_TIME_TO_REACH_QUEUE = 12
_TIME_TO_BE_RECEIVED = 48
_SENT_OFFSET = 52
_SOURCE_OFFSET = 16
_MESSAGE_NUMBER_OFFSET = 56
_FLAGS_OFFSET = 60
_NAME_END = 66  # of the length of a direct name, which is the first one
_LABEL = 56  # after the start of the MessagePropertiesHeader
_U16 = struct.Struct("<H")
_U32 = struct.Struct("<I")
_IDENTITY_AND_HEAD = struct.Struct(f"<{_SOURCE_OFFSET}x16s24xI{_NAME_END - _FLAGS_OFFSET}s")

_DELIVERY_BITS = 0x60
_DIRECT = 7  # UserHeader.Flags.DQ
_NEGATIVE_JOURNAL = 1 << 8
_POSITIVE_JOURNAL = 1 << 9
_ADMIN_QUEUE = 7 << 13  # type of the administration queue; 0: none
_TRANSACTION_HEADER = 1 << 20
_TOLD_BY_FINAL_ACK = _NEGATIVE_JOURNAL | _POSITIVE_JOURNAL
_MAY_WANT_WORD = _ADMIN_QUEUE | _TRANSACTION_HEADER
# The types of the destination's name and of the response queue's, of which there is none.
_FIRST_AND_LAST_NAME, _ONLY_DIRECT = 7 << 10 | 7 << 16, _DIRECT << 10
_DECIDES_ABOUT_END = _TOLD_BY_FINAL_ACK | _TRANSACTION_HEADER
_FINAL_ACK = 1 << 1  # of TransactionHeader.Flags


def is_express(packet: bytes) -> bool:
    """Return whether the message exists in memory only."""
    return not packet[_FLAGS_OFFSET] & _DELIVERY_BITS


def is_transactional(packet: bytes) -> bool:
    return bool(_U32.unpack_from(packet, _FLAGS_OFFSET)[0] & _TRANSACTION_HEADER)


def wants_dead_letter(packet: bytes) -> bool:
    """Return whether the source keeps a dead letter on failure (negative source journaling)."""
    return bool(_U32.unpack_from(packet, _FLAGS_OFFSET)[0] & _NEGATIVE_JOURNAL)


def is_kept_as_dead(packet: bytes, *, discard: bool) -> bool:
    """Return whether a message of this queue manager that fails becomes a dead letter.

    A transactional message becomes one even without the flag in its packet, which would cost a
    final ack for each message, unless its application wants it discarded.
    """
    return wants_dead_letter(packet) or (not discard and is_transactional(packet))


def wants_journal(packet: bytes) -> bool:
    """Return whether the source keeps a copy after delivery (positive source journaling)."""
    return bool(_U32.unpack_from(packet, _FLAGS_OFFSET)[0] & _POSITIVE_JOURNAL)


def wants_final_ack(packet: bytes) -> bool:
    """Return whether the source of a transactional message waits for a final ack.

    The final ack reports that the message was received, or why it was not. [MS-MQQB] 3.1.7.2.2
    """
    flags: int = _U32.unpack_from(packet, _FLAGS_OFFSET)[0]
    if not flags & _TRANSACTION_HEADER:
        return False
    if flags & _TOLD_BY_FINAL_ACK:
        return True
    at = transaction_offset(packet)
    assert at is not None
    return bool(packet[at] & _FINAL_ACK)


def may_want_word(packet: bytes) -> bool:
    """Return whether the removal of the message from its queue may need an acknowledgment.

    Few messages request one.
    """
    flags: int = _U32.unpack_from(packet, _FLAGS_OFFSET)[0]
    if not flags & _MAY_WANT_WORD:
        return False
    return bool(flags & _ADMIN_QUEUE) or wants_final_ack(packet)


def which_may_want_word(packets: Sequence[bytes]) -> list[int]:
    """Return the indexes of the packets for which `may_want_word` is true."""
    found: list[int] = []
    head, at = b"", 0  # of the last transactional packet: flags and length of a name; its header
    for index, packet in enumerate(packets):
        if head and packet[_FLAGS_OFFSET:_NAME_END] == head:
            if packet[at] & _FINAL_ACK:
                found.append(index)
            continue
        (flags,) = _U32.unpack_from(packet, _FLAGS_OFFSET)
        if not flags & _MAY_WANT_WORD:
            continue
        if may_want_word(packet):
            found.append(index)
        elif flags & _TRANSACTION_HEADER and flags & _FIRST_AND_LAST_NAME == _ONLY_DIRECT:
            # As long as these bytes are the same, only the flags of the transaction decide.
            head, at = packet[_FLAGS_OFFSET:_NAME_END], transaction_offset(packet) or 0
    return found


def sources_and_numbers(
    packets: bytes, offsets: Sequence[int]
) -> tuple[Sequence[bytes], Sequence[int]] | None:
    """Return sources and message numbers of joined packets of which none may want word.

    Return None if `may_want_word` is true for one of them, or if their flags and names differ: they
    are not looked at one by one.
    """
    fields = map(_IDENTITY_AND_HEAD.unpack_from, repeat(packets), offsets)
    sources, numbers, heads = zip(*fields, strict=True)
    first = packets[offsets[0] : offsets[1] if len(offsets) > 1 else len(packets)]
    if heads.count(heads[0]) != len(heads) or may_want_word(first):
        return None
    (flags,) = _U32.unpack_from(first, _FLAGS_OFFSET)
    if flags & _MAY_WANT_WORD:
        if flags & _FIRST_AND_LAST_NAME != _ONLY_DIRECT:
            return None
        # As long as these bytes are the same, only the flags of the transaction decide.
        header = transaction_offset(first) or 0
        if any([packets[at + header] & _FINAL_ACK for at in offsets]):
            return None
    return sources, numbers


def end_fields(packet: bytes) -> tuple[int, int, int, int]:
    """Return the fields that decide what follows the end of a message, besides its source.

    They are flags of the UserHeader, the acknowledgments that are requested, the message class, and
    the request of a final ack.
    """
    flags: int = _U32.unpack_from(packet, _FLAGS_OFFSET)[0]
    final_ack = 0
    if flags & _TRANSACTION_HEADER:
        at = transaction_offset(packet)
        assert at is not None
        final_ack = packet[at] & _FINAL_ACK
    at = properties_offset(packet)
    message_class: int = _U16.unpack_from(packet, at + 2)[0]
    return flags & _DECIDES_ABOUT_END, packet[at], message_class, final_ack


def may_be_confirmed(packet: bytes) -> bool:
    """Return whether the source keeps its transactional message until receipt is confirmed.

    It does so if the message is journaled.
    """
    return bool(packet[_FLAGS_OFFSET + 1] & _TOLD_BY_FINAL_ACK >> 8)


def names_destination_directly(packet: bytes) -> bool:
    """Return whether the destination is a direct name."""
    flags: int = _U32.unpack_from(packet, _FLAGS_OFFSET)[0]
    return flags >> 10 & 7 == _DIRECT


def has_admin_queue(packet: bytes) -> bool:
    """Return whether the message names an administration queue."""
    return bool(_U32.unpack_from(packet, _FLAGS_OFFSET)[0] & _ADMIN_QUEUE)


def message_class_of(packet: bytes) -> int:
    message_class: int = _U16.unpack_from(packet, properties_offset(packet) + 2)[0]
    return message_class


def label_of(packet: bytes) -> str:
    """Return the label without its end mark. [MS-MQMQ] 2.2.19.3"""
    at = properties_offset(packet)
    label = packet[at + _LABEL : at + _LABEL + 2 * packet[at + 1]]
    return label.decode("utf-16-le", "replace").rstrip("\0")


def final_ack_body(packet: bytes) -> bytes:
    """Return the body of a final ack for this transactional message. [MS-MQQB] 2.2.5.1

    The sequence id, number and previous number are copied as they stand in the message.
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
    """Return the GUID of the queue manager that assigned the message number."""
    return packet[_SOURCE_OFFSET : _SOURCE_OFFSET + 16]


def message_number(packet: bytes) -> int:
    """Return the number that the source queue manager assigned to the message."""
    number: int = _U32.unpack_from(packet, _MESSAGE_NUMBER_OFFSET)[0]
    return number


def reach_time_s(packet: bytes) -> int | None:
    """Return how many seconds the message may take to reach its queue; None: no limit.

    The time-to-be-received counts from the sent time as well, so a message can no longer be
    received if this interval ends before it arrives. [MS-MQMQ] 2.2.19.1, 2.2.19.2
    """
    to_reach: int = _U32.unpack_from(packet, _TIME_TO_REACH_QUEUE)[0]
    to_be_received: int = _U32.unpack_from(packet, _TIME_TO_BE_RECEIVED)[0]
    shorter = min(to_reach, to_be_received)
    return None if shorter == INFINITE_S else shorter


def receive_time_s(packet: bytes) -> int | None:
    """Return how many seconds may pass until the message is received; None: no limit."""
    to_be_received: int = _U32.unpack_from(packet, _TIME_TO_BE_RECEIVED)[0]
    return None if to_be_received == INFINITE_S else to_be_received


def time_left_s(packet: bytes, time_s: int | None, wall_s: int) -> int | None:
    """Return the rest of the interval `time_s` for a message from another computer, in seconds.

    A negative result means that the interval is over. It runs from the sent time, by the wall
    clock. If the sent time is in the future, the clocks differ, and the complete interval remains.
    """
    if time_s is None:
        return None
    return time_s - max(wall_s - sent_time_s(packet), 0)


def sent_time_s(packet: bytes) -> int:
    """Return the sent time in seconds since 1970, by the clock of the source."""
    sent: int = _U32.unpack_from(packet, _SENT_OFFSET)[0]
    return sent


def with_sent_time(packet: bytes, sent_s: int) -> bytes:
    """Return a copy of the packet with another sent time."""
    copy = bytearray(packet)
    _U32.pack_into(copy, _SENT_OFFSET, min(max(sent_s, 0), INFINITE_S))
    return bytes(copy)
