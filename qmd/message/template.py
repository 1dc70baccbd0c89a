"""Packet templates: fast building of thousands of similar messages to one queue.

`compose` builds the packet of one message, header by header, in some 10 µs. For messages that
differ only in texts and numbers it is called once; the other packets are copies with their own
fields patched in, which takes 2 µs. Both ways must yield the same bytes: a property test compares
them.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any

from protocol import parse_user_message, properties_offset, transaction_offset
from protocol.headers import USER_FLAGS_OFFSET
from qmd.control_protocol.messages import NewMessage
from qmd.message.build import TRANSACTION_INDEX_MASK
from qmd.message.limits import LABEL_CHARACTERS_MAX

#: An encoded `NewMessage`, in the order of its fields.
Row = tuple[Any, ...]
#: Sequence id and number of a transactional message, and the number before it.
Place = tuple[int, int, int]

# Indexes of fields in a row.
_DESTINATION, _BODY, _LABEL, _BODY_TYPE, _CORRELATION_ID, _TAG, _EXTENSION = 0, 1, 2, 9, 10, 11, 12
# Headers after the body; packets with them have no template. [MS-MQMQ] 2.2.19.1, .2
_DEBUG, _MULTI_QUEUE = 1 << 5, 1 << 23
_AFTER_EXTENSION = _EXTENSION + 1
_SHARED = (None,) * 6  # fields of a shape, which its template has
_INDEX_BIT = 4
_FIRST, _LAST = 1 << 2, 1 << 3  # of a transaction, [MS-MQMQ] 2.2.20.5
_BOUNDS = _FIRST | _LAST
_NO_CORRELATION = bytes(20)
_NUMBER = struct.Struct("<I")
_NUMBER_OFFSET, _AFTER_NUMBER = 56, 60  # in a packet
_PLACE = struct.Struct("<QII")
_TRANSACTION = struct.Struct("<IQII")  # flags and index, and the place
_U32_MAX = 0xFFFFFFFF
_PADDING = (b"", b"\0", b"\0\0", b"\0\0\0")


#: Returns the fields of a row that messages of one form share: all except texts and individual
#: marks.
shape: Callable[[Row], Row] = itemgetter(
    _DESTINATION, slice(3, _BODY_TYPE), slice(_AFTER_EXTENSION, None)
)


def _is_protected(packet: bytes) -> bool:
    """Return whether a packet is signed or encrypted: no other can be made from it."""
    header = parse_user_message(packet).security
    return header is not None and bool(header.signature or header.encryption_key)


class Template:
    """Template for the packets of one shape."""

    def __init__(self, model: bytes) -> None:
        """Create the template from `model`, the packet of a message of that shape."""
        properties = properties_offset(model)
        transaction = transaction_offset(model)
        #: Whether nothing follows the body.
        self.fits = not (
            int.from_bytes(model[4:6], "little") & _DEBUG
            or int.from_bytes(model[USER_FLAGS_OFFSET : USER_FLAGS_OFFSET + 4], "little")
            & _MULTI_QUEUE
        )
        self.fits = self.fits and not _is_protected(model)
        self._place: tuple[int, ...] = ()
        self._transaction_flags = None
        self._transaction_at = _AFTER_NUMBER
        between = model[_AFTER_NUMBER : properties + 1]
        if transaction is not None:
            flags = int.from_bytes(model[transaction : transaction + 4], "little")
            self._transaction_flags = flags & ~(TRANSACTION_INDEX_MASK << _INDEX_BIT)
            self._transaction_at = transaction
            self._place = _PLACE.unpack_from(model, transaction + 4)
        # Fields: packet size; the properties.  The number and the transaction are put in later.
        self._head = struct.Struct(f"<8sI44s4x{len(between)}sB2s20sIIII12sI")
        self._between = between
        self._first, self._second = model[:8], model[12:56]
        self._class = model[properties + 2 : properties + 4]
        self._security = model[properties + 40 : properties + 52]

    def packet(self, new: NewMessage, number: int, index: int, place: Place | None) -> bytes | None:
        """Return the packet of one message, as `packets`; `place` is that in its sequence."""
        own = new.body_type, new.correlation_id, new.application_tag, new.extension
        row = ("", new.body, new.label, *_SHARED, *own)
        packets = self.packets((row,), (number,), index, place=place)
        return None if packets is None else packets[0]

    def sizes(self, rows: Sequence[Row]) -> list[int] | None:
        """Return the size of the packet of each row; None if `packets` would return None."""
        head_bytes, label_bytes_max = self._head.size, 2 * LABEL_CHARACTERS_MAX + 2
        sizes: list[int] = []
        for row in rows:
            size = head_bytes + len(row[_BODY]) + len(row[_EXTENSION])
            if row[_LABEL]:
                label_bytes = len(row[_LABEL].encode("utf-16-le")) + 2
                if label_bytes > label_bytes_max:
                    return None
                size += label_bytes
            if (row[_CORRELATION_ID] and len(row[_CORRELATION_ID]) != 20) or not (
                0 <= row[_BODY_TYPE] <= _U32_MAX and 0 <= row[_TAG] <= _U32_MAX
            ):
                return None
            sizes.append(size + 3 & -4)
        return sizes

    def packets(
        self,
        rows: Sequence[Row],
        numbers: Sequence[int],
        first_index: int,
        *,
        step: int = 1,
        place: Place | None = None,
        follow: bool = False,
    ) -> list[bytes] | None:
        """Return a packet for each row; None if `compose` would refuse one of them.

        Each transactional message is a transaction of its own: their indexes begin with
        `first_index`.  With a `step` of 0 they are messages in the middle of one transaction.
        Their place in a sequence is `place`, or that of the model; if they `follow` each other,
        `place` is that of the first one.
        """
        flags, where, transaction_at = self._transaction_flags, self._place, self._transaction_at
        where = place or where
        if flags is not None and not step:
            flags &= ~_BOUNDS
        packets: list[bytes] = []
        add, pack_number = packets.append, _NUMBER.pack
        before: tuple[Any, ...] = ()
        begin = middle = end = padding = b""
        for at, row in enumerate(rows):
            body = row[_BODY]
            # The headers of a packet depend on these, and on its number and transaction.
            like = row[_LABEL], row[_BODY_TYPE:_AFTER_EXTENSION], len(body)
            try:
                if like != before:
                    headers = self._headers(row)
                    if headers is None:
                        return None
                    before, padding = like, _PADDING[-(len(headers) + len(body)) & 3]
                    begin, middle = headers[:_NUMBER_OFFSET], headers[_AFTER_NUMBER:transaction_at]
                    end = headers[transaction_at:]
                    if flags is not None:
                        end = end[_TRANSACTION.size :]
                number = pack_number(numbers[at])
                if flags is None:
                    add(b"".join((begin, number, end, body, padding)))
                    continue
                index = first_index + step * at & TRANSACTION_INDEX_MASK
                if follow and at:
                    where = where[0], where[1] + 1, where[1]
                transaction = _TRANSACTION.pack(flags | index << _INDEX_BIT, *where)
            except struct.error:  # a number is too large
                return None
            add(b"".join((begin, number, middle, transaction, end, body, padding)))
        return packets

    def _headers(self, row: Row) -> bytes | None:
        """Return the headers of a packet, its label and its extension; None as for `packets`.

        The number and the transaction are not those of the packet.  Raises struct.error for a
        number that is too large.
        """
        body_bytes, extension, correlation_id = (
            len(row[_BODY]),
            row[_EXTENSION],
            row[_CORRELATION_ID],
        )
        label = (row[_LABEL] + "\0").encode("utf-16-le") if row[_LABEL] else b""
        if len(label) > 2 * LABEL_CHARACTERS_MAX + 2:
            return None
        if correlation_id and len(correlation_id) != 20:
            return None
        size = self._head.size + len(label) + len(extension) + body_bytes
        headers: bytes = self._head.pack(
            self._first,
            size + (-size & 3),
            self._second,
            self._between,
            len(label) >> 1,
            self._class,
            correlation_id or _NO_CORRELATION,
            row[_BODY_TYPE],
            row[_TAG],
            body_bytes,
            body_bytes,
            self._security,
            len(extension),
        )
        return b"".join((headers, label, extension))


def with_bounds(packet: bytes, *, is_first: bool, is_last: bool) -> bytes:
    """Return the packet of a transactional message, marked as first or last of its transaction."""
    at = transaction_offset(packet)
    assert at is not None, "a packet of a transactional message has such a header"
    flags = packet[at] | (_FIRST if is_first else 0) | (_LAST if is_last else 0)
    return packet[:at] + bytes([flags]) + packet[at + 1 :]
