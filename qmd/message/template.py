"""Packet templates: fast building of thousands of similar messages to one queue.

`compose` builds the packet of one message, header by header, in some 10 µs. For messages that
differ only in texts and numbers it is called once; the other packets are copies with their own
fields patched in, which takes 2 µs. Both ways must yield the same bytes: a property test compares
them.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
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
_SHARED = (None,) * 6  # fields of a shape, which its template has
_INDEX_BIT = 4
_FIRST, _LAST = 1 << 2, 1 << 3  # of a transaction, [MS-MQMQ] 2.2.20.5
_BOUNDS = _FIRST | _LAST
_NO_CORRELATION = bytes(20)
_PLACE = struct.Struct("<QII")
_U32_MAX = 0xFFFFFFFF
_PADDING = (b"", b"\0", b"\0\0", b"\0\0\0")


def shape(row: Row) -> Row:
    """Return the fields that messages of one form share: all except texts and individual marks."""
    return row[_DESTINATION], row[3:_BODY_TYPE], row[13:]


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
        # Fields: packet size; message number; the transaction; the properties.
        self._place: tuple[int, ...] = ()
        if transaction is None:
            between = f"{properties + 1 - 60}s"
            self._between: tuple[bytes, ...] = (model[60 : properties + 1],)
            self._transaction_flags = None
        else:
            between = f"{transaction - 60}sIQII{properties + 1 - transaction - 20}s"
            flags = int.from_bytes(model[transaction : transaction + 4], "little")
            self._transaction_flags = flags & ~(TRANSACTION_INDEX_MASK << _INDEX_BIT)
            self._place = _PLACE.unpack_from(model, transaction + 4)
            self._between = model[60:transaction], model[transaction + 20 : properties + 1]
        self._head = struct.Struct(f"<8sI44sI{between}B2s20sIIII12sI")
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
        head = self._head.pack
        head_bytes = self._head.size
        first, second, class_, security = self._first, self._second, self._class, self._security
        flags, between, where = self._transaction_flags, self._between, place or self._place
        if flags is not None and not step:
            flags &= ~_BOUNDS
        label_bytes_max = 2 * LABEL_CHARACTERS_MAX + 2
        packets: list[bytes] = []
        add = packets.append
        for at, row in enumerate(rows):
            body, extension, correlation_id = row[_BODY], row[_EXTENSION], row[_CORRELATION_ID]
            label = (row[_LABEL] + "\0").encode("utf-16-le") if row[_LABEL] else b""
            if len(label) > label_bytes_max or (correlation_id and len(correlation_id) != 20):
                return None
            size = head_bytes + len(label) + len(extension) + len(body)
            pad = -size & 3
            middle: tuple[Any, ...] = between
            if flags is not None:
                index = first_index + step * at & TRANSACTION_INDEX_MASK
                if follow:
                    where = where if not at else (where[0], where[1] + 1, where[1])
                middle = between[0], flags | index << _INDEX_BIT, *where, between[1]
            try:
                headers = head(
                    first,
                    size + pad,
                    second,
                    numbers[at],
                    *middle,
                    len(label) >> 1,
                    class_,
                    correlation_id or _NO_CORRELATION,
                    row[_BODY_TYPE],
                    row[_TAG],
                    len(body),
                    len(body),
                    security,
                    len(extension),
                )
            except struct.error:  # a number is too large
                return None
            add(b"".join((headers, label, extension, body, _PADDING[pad])))
        return packets


def with_bounds(packet: bytes, *, is_first: bool, is_last: bool) -> bytes:
    """Return the packet of a transactional message, marked as first or last of its transaction."""
    at = transaction_offset(packet)
    assert at is not None, "a packet of a transactional message has such a header"
    flags = packet[at] | (_FIRST if is_first else 0) | (_LAST if is_last else 0)
    return packet[:at] + bytes([flags]) + packet[at + 1 :]
