"""Capture files: pcap and pcapng, as tcpdump, Wireshark and Windows write them.

Frames are read one by one, so that a file may be larger than the memory.  A file that ends in the
middle of a frame, as one does whose writer was killed, is read up to there.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import BinaryIO, NamedTuple

FRAME_BYTES_MAX = 1 << 20  # of one frame; large offloads have 64 KiB
BLOCK_BYTES_MAX = FRAME_BYTES_MAX + (1 << 16)
INTERFACES_MAX = 10_000

#: pcap: by the first four bytes, the byte order and the parts of a second.
_PCAP = {
    b"\xd4\xc3\xb2\xa1": ("<", 1_000_000),
    b"\xa1\xb2\xc3\xd4": (">", 1_000_000),
    b"\x4d\x3c\xb2\xa1": ("<", 1_000_000_000),
    b"\xa1\xb2\x3c\x4d": (">", 1_000_000_000),
}
#: The same with longer heads of frames, as some kernels and probes write them.
_MODIFIED = {b"\x34\xcd\xb2\xa1": "<", b"\xa1\xb2\xcd\x34": ">"}
_MODIFIED_BYTES = 8
_SECTION = b"\x0a\x0d\x0d\x0a"
_INTERFACE, _OLD_PACKET, _SIMPLE_PACKET, _PACKET = 1, 2, 3, 6
_ORDERS = {b"\x4d\x3c\x2b\x1a": "<", b"\x1a\x2b\x3c\x4d": ">"}
_RESOLUTION, _OFFSET = 9, 14  # options of an interface
_OTHERS = {
    b"\x1f\x8b": "compressed; unpack it with gunzip",
    b"\x28\xb5\x2f\xfd": "compressed; unpack it with unzstd",
    b"PK\x03\x04": "a zip archive; unpack it",
    b"GMBU": "of Network Monitor; save it as pcapng with Wireshark",
    b"snoo": "of snoop; save it as pcapng with Wireshark",
    # The size of the first buffer of a trace of events: 64 KiB by default.
    b"\x00\x00\x01\x00": "perhaps a trace of Windows (.etl); convert it with pktmon etl2pcap",
}
_FCS_BITS = 28  # in the link type of pcap: more about the frames


class BadCapture(Exception):
    """A file that is no capture; the text is the reason."""


class Frame(NamedTuple):
    """A captured frame: seconds since 1970, its link type, and its bytes."""

    at: float
    link_type: int
    data: bytes


class _Interface(NamedTuple):
    link_type: int
    parts: int = 1_000_000  # of a second
    offset_s: int = 0
    snap: int = 0


class Capture:
    """The frames of a capture file; `note` says why reading ended early, if it did."""

    def __init__(self, file: BinaryIO) -> None:
        """Read the head of the file.  Raises BadCapture."""
        self.note = ""
        self.frames = 0
        self._file = file
        magic = file.read(4)
        self._is_ng = magic == _SECTION
        if not self._is_ng and magic not in _PCAP and magic not in _MODIFIED:
            raise BadCapture(f"it begins neither as pcap nor as pcapng{_hint(magic)}")
        self._magic = magic

    def __iter__(self) -> Iterator[Frame]:
        """Yield the frames; a fault ends them, and `note` then names it."""
        frames = self._blocks() if self._is_ng else self._records()
        try:
            for frame in frames:
                self.frames += 1
                yield frame
        except BadCapture as fault:
            self.note = f"after {self.frames} frames: {fault}"

    def _skip(self, count: int) -> None:
        """Skip bytes of a block that is not used, which may be larger than a frame."""
        while count:
            count -= len(self._read(min(count, BLOCK_BYTES_MAX)))

    def _read(self, count: int) -> bytes:
        data = self._file.read(count)
        if len(data) != count:
            raise BadCapture("the file ends in the middle of a frame")
        return data

    # pcap.

    def _records(self) -> Iterator[Frame]:
        is_modified = self._magic in _MODIFIED
        order, parts = _PCAP.get(self._magic) or (_MODIFIED[self._magic], 1_000_000)
        *_, link_type = struct.unpack(order + "HHiIII", self._read(20))
        head = struct.Struct(order + "IIII")
        while first := self._file.read(1):
            seconds, part, size, _ = head.unpack(first + self._read(head.size - 1))
            if size > FRAME_BYTES_MAX:
                raise BadCapture(f"a frame of {size} bytes")
            if is_modified:
                self._read(_MODIFIED_BYTES)
            yield Frame(
                seconds + part / parts, link_type & (1 << _FCS_BITS) - 1 & 0xFFFF, self._read(size)
            )

    # pcapng.

    def _blocks(self) -> Iterator[Frame]:
        order, interfaces = self._begin_section(), list[_Interface]()
        while kind := self._file.read(4):
            if len(kind) != 4:
                raise BadCapture("the file ends in the middle of a frame")
            if kind == _SECTION:
                order, interfaces = self._begin_section(), []
                continue
            number, size = struct.unpack(order + "II", kind + self._read(4))
            is_used = number in (_INTERFACE, _PACKET, _OLD_PACKET, _SIMPLE_PACKET)
            if size < 12 or size % 4 or (is_used and size > BLOCK_BYTES_MAX):
                raise BadCapture(f"a block of {size} bytes")
            if not is_used:  # names of hosts, keys of TLS, statistics and others
                self._skip(size - 8)
                continue
            body = self._read(size - 8)[:-4]
            if number == _INTERFACE:
                if len(interfaces) >= INTERFACES_MAX:
                    raise BadCapture(f"more than {INTERFACES_MAX} interfaces")
                interfaces.append(_interface(body, order))
            else:
                yield _packet(number, body, order, interfaces)

    def _begin_section(self) -> str:
        """Return the byte order of the section that begins, after its first four bytes."""
        size, magic = self._read(4), self._read(4)
        order = _ORDERS.get(magic)
        if order is None:
            raise BadCapture("a section has no byte order")
        (length,) = struct.unpack(order + "I", size)
        if length < 28 or length % 4:
            raise BadCapture(f"a section head of {length} bytes")
        self._skip(length - 12)
        return order


def _hint(magic: bytes) -> str:
    """Return how to convert a file of another format, by its first four bytes; "": not known."""
    for beginning, hint in _OTHERS.items():
        if magic.startswith(beginning):
            return f": it is {hint}"
    return ""


def _interface(body: bytes, order: str) -> _Interface:
    if len(body) < 8:
        raise BadCapture("an interface without a link type")
    link_type, _, snap = struct.unpack_from(order + "HHI", body)
    parts, offset_s, at = 1_000_000, 0, 8
    while at + 4 <= len(body):
        code, size = struct.unpack_from(order + "HH", body, at)
        value = body[at + 4 : at + 4 + size]
        if code == 0 or len(value) != size:
            break
        if code == _RESOLUTION and size == 1:
            exponent = value[0] & 0x7F
            parts = 2**exponent if value[0] & 0x80 else 10 ** min(exponent, 18)
        elif code == _OFFSET and size == 8:
            (offset_s,) = struct.unpack(order + "q", value)
        at += 4 + size + -size % 4
    return _Interface(link_type, parts, offset_s, snap)


def _packet(number: int, body: bytes, order: str, interfaces: list[_Interface]) -> Frame:
    try:
        if number == _SIMPLE_PACKET:
            (original,) = struct.unpack_from(order + "I", body)
            place, ticks, size, at = 0, 0, min(original, len(body) - 4), 4
        elif number == _PACKET:
            place, high, low, size, _ = struct.unpack_from(order + "IIIII", body)
            ticks, at = high << 32 | low, 20
        else:
            place, _, high, low, size, _ = struct.unpack_from(order + "HHIIII", body)
            ticks, at = high << 32 | low, 20
        interface = interfaces[place]
    except (struct.error, IndexError):
        raise BadCapture("a frame of no interface") from None
    if number == _SIMPLE_PACKET and interface.snap:
        size = min(size, interface.snap)
    if size > FRAME_BYTES_MAX or at + size > len(body):
        raise BadCapture(f"a frame of {size} bytes")
    at_s = ticks / interface.parts + interface.offset_s
    return Frame(at_s, interface.link_type, body[at : at + size])
