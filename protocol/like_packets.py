"""Like packets: runs of stored user messages that differ in numbers and bodies only.

A sender with many messages for one queue sends packets of one form, one after the other.  The first
one is parsed, and the bytes of the next ones are compared with it, which takes a tenth of the time.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import NamedTuple

from protocol.flags import TransactionFlags, UserFlags
from protocol.patching import properties_offset, transaction_offset
from protocol.records import UserMessage

_PROPERTIES_BYTES = 56  # of MessagePropertiesHeader before the label, [MS-MQMQ] 2.2.19.3
# Of each transaction: its index.
_TRANSACTION_MASK = 0xFFFFFFFF & ~int(TransactionFlags.of(index=0xFFFFF))

_DELIVERY = int(UserFlags.of(delivery=3))  # all bits of DM
_JOURNALED = int(UserFlags.of(negative_journal=1, positive_journal=1))


class Run(NamedTuple):
    """Packets that follow each other without gaps; the sequences are parallel.

    Transactional ones follow each other in their sequence, others by their message numbers.
    """

    packets: list[bytes]
    message_numbers: Sequence[int]
    first_position: int  # the sequence number of the first of them; 0: they are not transactional


def like_packets(message: UserMessage, packet: bytes) -> LikeTransactional | LikeRecoverable:
    """Return the form of a packet; `message` is what it states, and `may_have_like` is true."""
    form = LikeRecoverable if message.transaction is None else LikeTransactional
    return form(message, packet)


class LikeTransactional:
    """The form of a transactional packet, with which others are compared."""

    __slots__ = ("_expected", "_fields", "_fixed_bytes", "_position")

    def __init__(self, message: UserMessage, packet: bytes) -> None:
        """`message` is `packet` after parsing, and one of which `may_have_like` is true."""
        at = transaction_offset(packet)
        assert at is not None
        properties = properties_offset(packet)
        texts = len(message.properties.label) + len(message.properties.extension)
        self._fixed_bytes = properties + _PROPERTIES_BYTES + texts
        # Fields: [the beginning], packet size, [times and GUIDs], message number, [flags and
        # names], flags of the transaction, [sequence id], number and the one before it,
        # [properties], body size, allocated size, [rest of the properties, label, extension].
        between, texts_and_rest = at - 60, _PROPERTIES_BYTES - 40 + texts
        self._fields = Struct(f"<8sI44sI{between}sI8sII32sII{texts_and_rest}s")
        begin, _, times, _, names, flags, sequence_id, position, _, properties, _, _, rest = (
            self._fields.unpack_from(packet)
        )
        transaction = flags & _TRANSACTION_MASK
        self._expected = begin, times, names, transaction, sequence_id, properties, rest
        self._position: int = position

    def run(self, packets: Sequence[bytes], first: int) -> Run:
        """Return the packets from index `first` on that are like this one and follow it.

        They have the positions in the sequence after that of this packet, or of the last packet of
        the run before, and each names the one before it as its predecessor.  They obey all rules
        that `parse_user_message` checks.
        """
        unpack, fixed_bytes = self._fields.unpack_from, self._fixed_bytes
        begin, times, names, transaction, sequence_id, properties, rest = self._expected
        position, numbers = self._position, []
        last = first
        for packet in packets[first:]:
            size = len(packet)
            if size < fixed_bytes:
                break
            fields = unpack(packet)
            if not (
                fields[8] == position
                and fields[7] == position + 1
                and fields[1] == size
                and fields[0] == begin
                and fields[2] == times
                and fields[4] == names
                and fields[5] & _TRANSACTION_MASK == transaction
                and fields[6] == sequence_id
                and fields[9] == properties
                and fields[12] == rest
                and fixed_bytes + fields[10] <= size
            ):
                break
            position += 1
            numbers.append(fields[3])
            last += 1
        first_position, self._position = self._position + 1, position
        return Run(list(packets[first:last]), numbers, first_position)


class LikeRecoverable:
    """The form of a recoverable packet without a sequence, with which others are compared."""

    __slots__ = ("_expected", "_fields", "_fixed_bytes", "_number")

    def __init__(self, message: UserMessage, packet: bytes) -> None:
        """`message` is `packet` after parsing, and one of which `may_have_like` is true."""
        properties = properties_offset(packet)
        texts = len(message.properties.label) + len(message.properties.extension)
        self._fixed_bytes = properties + _PROPERTIES_BYTES + texts
        # Fields: as of a transactional packet, without those of the transaction.
        texts_and_rest = _PROPERTIES_BYTES - 40 + texts
        self._fields = Struct(f"<8sI44sI{properties - 28}sII{texts_and_rest}s")
        begin, _, times, number, names, _, _, rest = self._fields.unpack_from(packet)
        self._expected = begin, times, names, rest
        self._number: int = number

    def run(self, packets: Sequence[bytes], first: int) -> Run:
        """Return the packets from index `first` on that are like this one and follow it.

        They have the message numbers after that of this packet, or of the last packet of the run
        before.  They obey all rules that `parse_user_message` checks.
        """
        unpack, fixed_bytes = self._fields.unpack_from, self._fixed_bytes
        begin, times, names, rest = self._expected
        number = self._number
        last = first
        for packet in packets[first:]:
            size = len(packet)
            if size < fixed_bytes:
                break
            fields = unpack(packet)
            if not (
                fields[3] == number + 1
                and fields[1] == size
                and fields[0] == begin
                and fields[2] == times
                and fields[4] == names
                and fields[7] == rest
                and fixed_bytes + fields[5] <= size
            ):
                break
            number += 1
            last += 1
        numbers, self._number = range(self._number + 1, number + 1), number
        return Run(list(packets[first:last]), numbers, 0)


def may_have_like(message: UserMessage) -> bool:
    """Return whether the packets that follow a message may be like it.

    Messages of one form are recoverable or have a place in a sequence, have no headers that are
    rare, and ask for no acknowledgments of their own.
    """
    flags, transaction = message.user.flags, message.transaction
    if transaction is None:
        is_plain = flags & _DELIVERY
    else:
        # The source of a transactional message awaits a final ack for each journaled one.
        is_plain = transaction.connector is None and not flags & _JOURNALED
    return not (
        not is_plain
        or message.security is not None
        or message.debug is not None
        or message.soap is not None
        or message.multi_queue is not None
        or message.session is not None
        or message.properties.flags
        or message.properties.message_class
    )
