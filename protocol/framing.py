"""Splitting of a TCP stream into packets (MS-MQMQ 2.2.19.1).

The stream consists of packets only; each states its size in its first twelve bytes.  A size is
trusted only after version, signature and limits were checked, and memory grows with the bytes that
have arrived, not with the announced size: a header of twelve bytes cannot reserve 4 MB.

Made for asyncio.BufferedProtocol: the event loop writes into the buffer, and each packet is copied
out of it once.  A packet that is longer than the buffer is copied out in parts, which are joined at
its end: a buffer that grew with it would move megabytes in a single read.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct

from protocol.errors import MalformedPacket
from protocol.headers import (
    PACKET_BYTES_MAX,
    PACKET_BYTES_MIN,
    SESSION_HEADER_BYTES,
    SIGNATURE,
    VERSION,
)

BUFFER_BYTES = 64 * 1024  # some 50 packets of 1 KiB in one call of the event loop
READ_BYTES_MIN = 64 * 1024  # the least room for one read

_HEAD = Struct("<BxHII")  # VersionNumber, Flags, Signature, PacketSize
_HEAD_BYTES = 12
_SIGNATURE_BYTES = SIGNATURE.to_bytes(4, "little")
_INTERNAL_OR_SESSION = 0x18  # of BaseHeader.Flags: IN, SH
_SESSION = 0x10


def _always(more_bytes: int) -> bool:
    return True


class BrokenStream(MalformedPacket):
    """Bytes that do not begin a packet; `packets` are the complete packets before them."""

    def __init__(self, field: str, offset: int, rule: str, packets: list[bytes]) -> None:
        super().__init__(field, offset, rule)
        self.packets = packets


class PacketBuffer:
    """The receive buffer of one connection: bytes that do not yet form a packet.

    `packet_bytes_max` may be changed at any time: before the handshake is over, no valid packet is
    longer than 572 bytes.
    """

    def __init__(self, packet_bytes_max: int = PACKET_BYTES_MAX) -> None:
        self.packet_bytes_max = packet_bytes_max
        #: No more may be stored: stop reading, and retry later with `buffer_updated(0)`.
        self.is_stuck = False
        #: Bytes of memory that it uses, or may use, beyond an ordinary buffer.
        self.grown_bytes = 0
        self._start = 0  # of the first incomplete packet
        self._end = 0  # of the received bytes
        self._buffer = bytearray(BUFFER_BYTES)
        self._view = memoryview(self._buffer)
        # The begin of a packet that is longer than the buffer, the rest of which is in the buffer.
        self._parts: list[bytes] = []
        self._missing = 0  # bytes of the packet after its parts

    def get_buffer(self, size_hint: int = -1) -> memoryview:
        """Return the free part of the buffer; never empty, unless the buffer `is_stuck`."""
        return self._view[self._end :]

    def buffer_updated(self, count: int, may_grow: Callable[[int], bool] = _always) -> list[bytes]:
        """Return the packets that `count` more bytes completed, in order.

        `may_grow` is called once for each packet that is longer than an ordinary buffer, with the
        number of additional bytes, and returns whether the buffer may allocate them.  The buffer
        does not keep it, because it would keep the connection alive.

        A packet has PacketSize bytes, and 16 more if a SessionHeader follows a user message. Raises
        BrokenStream, a MalformedPacket that has the packets before the fault.
        """
        packets: list[bytes] = []
        self._end += count
        if self._parts:
            if self._end < self._missing:
                self._take_part()
                return packets
            packets.append(self._join())
        buffer, view, start, end = self._buffer, self._view, self._start, self._end
        smallest, largest = PACKET_BYTES_MIN, self.packet_bytes_max
        needed = _HEAD_BYTES
        while start + _HEAD_BYTES <= end:
            version, flags, signature, needed = _HEAD.unpack_from(buffer, start)
            if version != VERSION or signature != SIGNATURE or not smallest <= needed <= largest:
                break
            if flags & _INTERNAL_OR_SESSION == _SESSION:
                needed += SESSION_HEADER_BYTES
            stop = start + needed
            if stop > end:
                break
            packets.append(bytes(view[start:stop]))
            start = stop
            needed = _HEAD_BYTES
        self._start = start
        self._check_head(packets)
        self._make_room(needed, may_grow)
        return packets

    def clear(self) -> None:
        """Discard all bytes and release additional memory; reading has ended."""
        self._start = self._end = self._missing = self.grown_bytes = 0
        self._parts = []

    def feed(self, data: bytes) -> list[bytes]:
        """Return the packets that `data` completed; for callers without a buffered transport."""
        packets: list[bytes] = []
        rest = memoryview(data)
        while rest:
            room = self.get_buffer()
            count = min(len(room), len(rest))
            room[:count] = rest[:count]
            rest = rest[count:]
            try:
                packets += self.buffer_updated(count)
            except BrokenStream as broken:
                broken.packets[:0] = packets
                raise
        return packets

    def _check_head(self, packets: list[bytes]) -> None:
        """Reject bytes that do not begin a packet, as soon as enough of them have arrived."""
        head = bytes(self._view[self._start : min(self._end, self._start + _HEAD_BYTES)])
        if head and head[0] != VERSION:
            raise BrokenStream("base.version", 0, "MUST be 0x10", packets)
        if len(head) >= 8 and head[4:8] != _SIGNATURE_BYTES:
            raise BrokenStream("base.signature", 4, "MUST be 0x524F494C", packets)
        if len(head) == _HEAD_BYTES:
            size = int.from_bytes(head[8:], "little")
            if not PACKET_BYTES_MIN <= size <= self.packet_bytes_max:
                rule = f"MUST be {PACKET_BYTES_MIN}..{self.packet_bytes_max} bytes"
                raise BrokenStream("base.packet_size", 8, rule, packets)

    def _make_room(self, needed: int, may_grow: Callable[[int], bool]) -> None:
        """Make room for the next read, and eventually for the `needed` bytes of the packet."""
        left = self._end - self._start
        self.is_stuck = False
        if not left:
            self._start = self._end = 0
        elif needed > BUFFER_BYTES and left > BUFFER_BYTES // 2:
            more_bytes = needed - BUFFER_BYTES
            if self.grown_bytes >= more_bytes or may_grow(more_bytes - self.grown_bytes):
                self.grown_bytes = more_bytes
                self._missing = needed
                self._take_part()
            else:
                self.is_stuck = True
        elif self._start:
            self._view[:left] = self._view[self._start : self._end]
            self._start, self._end = 0, left

    def _take_part(self) -> None:
        """Copy the next part of a long packet out of the buffer, if it fills half of it."""
        left = self._end - self._start
        if left > BUFFER_BYTES // 2:
            self._parts.append(bytes(self._view[self._start : self._end]))
            self._missing -= left
            self._start = self._end = 0

    def _join(self) -> bytes:
        """Return the long packet, of which all bytes have arrived."""
        packet = b"".join([*self._parts, self._view[: self._missing]])
        self._start = self._missing
        self._parts, self._missing, self.grown_bytes = [], 0, 0
        return packet
