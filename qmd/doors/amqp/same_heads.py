"""Messages with the same sections before their body as the one before them on the link.

Programs send many messages with the same header, annotations and properties.  Only the body of
such a message is read; everything else is that of the message before.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from qmd.control_protocol.messages import NewMessage
    from qmd.doors.amqp.arriving import Arrived

HEAD_BYTES_MAX = 4096  # kept for each link
_SIZE = struct.Struct(">I")
_SHORT, _LONG = b"\x00\x53\x75\xa0", b"\x00\x53\x75\xb0"  # data sections


class SameHeads:
    """The last message of a link: its head as bytes, and what was made of it."""

    def __init__(self) -> None:
        self._head = b""
        self._is_settled = False
        self.last: Arrived | None = None

    def find(self, raw: bytes, *, settled: bool) -> NewMessage | None:
        """Return what a message becomes that differs from `last` in its body only; None for any
        other."""
        last = self.last
        if last is None or settled is not self._is_settled or not raw.startswith(self._head):
            return None
        body = _only_body(raw, len(self._head))
        return None if body is None else msgspec.structs.replace(last.message, body=body)

    def keep(self, raw: bytes, found: Arrived, *, settled: bool) -> None:
        """Keep the head of a message, and what was made of it, for the next one."""
        self.last = None
        at = found.body
        if 0 <= at <= HEAD_BYTES_MAX and _only_body(raw, at) is not None:
            self._head, self._is_settled, self.last = raw[:at], settled, found


def _only_body(raw: bytes, at: int) -> bytes | None:
    """Return the contents of a data section that begins at `at` and ends the message."""
    kind = raw[at : at + 4]
    if kind == _LONG and len(raw) >= at + 8:
        start, size = at + 8, _SIZE.unpack_from(raw, at + 4)[0]
    elif kind == _SHORT and len(raw) > at + 4:
        start, size = at + 5, raw[at + 4]
    else:
        return None
    return raw[start:] if start + size == len(raw) else None
