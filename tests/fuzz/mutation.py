"""Mutations of packets: wrong lengths, announced headers that are missing, spliced parts.

Random changes of bytes hardly ever pass the checks of version, signature and size.  These mutations
keep most of a packet, change one meaningful part, and mostly correct PacketSize, so that the parser
goes on.  They draw from the given Random only.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from random import Random

from tests.fuzz import anatomy
from tests.fuzz.anatomy import Anatomy, dissect
from tests.process import wire

LIES = (0, 1, 2, 3, 4, 7, 8, 11, 12, 0x24, 0xFA, 0xFB, 0xFF, 0x7FFF, 0x8000, 0xFFFF, 0x10000)
LIES_32 = (0x3FFFFF, 0x400000, 0x400001, 0x7FFFFFFF, 0x80000000, 0x80000005, 0xFFFFFFFF)

# A header of each kind, as its flag announces it: (part, flag word, flag, bytes).
Spare = tuple[str, int, int, bytes]
SPARE_HEADERS: list[Spare] = [
    ("transaction", anatomy.USER_FLAGS_AT, anatomy.TRANSACTION, data)
    for data in (
        wire.Transaction(0xC, 5 << 32 | 1, 2, 1).build(),
        wire.Transaction(1, 1, 0, 0, bytes(16)).build(),
    )
]
SPARE_HEADERS += [
    ("security", anatomy.USER_FLAGS_AT, anatomy.SECURITY, data)
    for data in (
        wire.security_header(b"\1" * 28),
        wire.security_header(
            b"", key=b"k" * 5, signature=b"s" * 3, certificate=b"c", provider=b"p"
        ),
    )
]
SPARE_HEADERS += [
    ("connector", anatomy.USER_FLAGS_AT, anatomy.CONNECTOR, bytes(16)),
    ("debug", anatomy.BASE_FLAGS_AT, anatomy.DEBUG, wire.debug_header()),
    ("debug", anatomy.BASE_FLAGS_AT, anatomy.DEBUG, wire.debug_header(b"q" * 16)),
    ("soap", anatomy.USER_FLAGS_AT, anatomy.SOAP, wire.soap_header("a", "b")),
    ("soap", anatomy.USER_FLAGS_AT, anatomy.SOAP, wire.soap_header("", "<x/>")),
    (
        "multi_queue",
        anatomy.USER_FLAGS_AT,
        anatomy.MULTI_QUEUE,
        wire.multi_queue_header(["OS:a\\b", "TCP:10.0.0.5\\private$\\q"]),
    ),
    ("session", anatomy.BASE_FLAGS_AT, anatomy.SESSION, wire.Session(1, 1, 1, 1, 1).build()),
]

SPARE_NAMES = [
    wire.private("q"),
    wire.direct("TCP:127.0.0.1\\PRIVATE$\\order_queue$"),
    wire.direct("OS:host\\private$\\ä\U0001f600"),
    *(wire.Name(kind, guid=b"g" * 16, number=4) for kind in (0, 1, 2, 3, 4, 5, 6)),
]

Change = Callable[[bytearray, Anatomy, Random], None]


def mutate_packet(packet: bytes, size_max: int, random: Random) -> bytes:
    """Return a packet with one to three changes; it has `size_max` bytes at most."""
    data = bytearray(packet)
    for _ in range(random.choice((1, 1, 1, 2, 3))):
        if len(data) < anatomy.BASE_BYTES:
            break
        change = random.choice(CHANGES)
        change(data, dissect(bytes(data)), random)
    if random.random() < 0.8:
        fix_size(data)
    return bytes(data[:size_max])


def mutate_stream(stream: bytes, size_max: int, random: Random) -> bytes:
    """Return a stream of packets with one of them changed, doubled, moved or removed."""
    packets = split(stream)
    if not packets:
        return mutate_packet(stream, size_max, random)
    at = random.randrange(len(packets))
    match random.randrange(8):
        case 0:
            packets.insert(at, random.choice(packets))
        case 1:
            del packets[at]
        case 2:
            other = random.randrange(len(packets))
            packets[at], packets[other] = packets[other], packets[at]
        case 3:
            packets[at] = packets[at][: random.randrange(len(packets[at]) + 1)]
        case _:
            packets[at] = mutate_packet(packets[at], size_max, random)
    return b"".join(packets)[:size_max]


def split(stream: bytes) -> list[bytes]:
    """Split a stream into packets by their announced sizes; the last one may be anything."""
    packets: list[bytes] = []
    while len(stream) >= anatomy.BASE_BYTES:
        flags, size = struct.unpack_from("<xxH4xI", stream)
        riding = flags & (anatomy.INTERNAL | anatomy.SESSION) == anatomy.SESSION
        size = max(anatomy.BASE_BYTES, size + 16 * riding)
        packets.append(stream[:size])
        stream = stream[size:]
    return [*packets, stream] if stream else packets


def fix_size(data: bytearray) -> None:
    """Set PacketSize to the right value."""
    if len(data) >= anatomy.BASE_BYTES:
        flags = data[anatomy.BASE_FLAGS_AT]
        riding = flags & (anatomy.INTERNAL | anatomy.SESSION) == anatomy.SESSION
        size = max(0, len(data) - 16 * riding)
        data[anatomy.SIZE_AT : anatomy.SIZE_AT + 4] = struct.pack("<I", size)


# Changes.


def _lie(data: bytearray, found: Anatomy, random: Random) -> None:
    at, size = random.choice(found.lengths)
    _write_odd(data, at, size, random)


def _set_odd_number(data: bytearray, found: Anatomy, random: Random) -> None:
    size = random.choice((1, 2, 4, 8))
    at = random.randrange(len(data)) & -size
    _write_odd(data, at, size, random)


def _write_odd(data: bytearray, at: int, size: int, random: Random) -> None:
    if at + size > len(data):
        return
    was = int.from_bytes(data[at : at + size], "little")
    near = (was + 1, was - 1, was + 4, was - 4, was * 2, len(data) - at, len(data) - at - size)
    value = random.choice((*LIES, *(LIES_32 if size >= 4 else ()), *near))
    data[at : at + size] = (value & (1 << 8 * size) - 1).to_bytes(size, "little")


def _flip_flag(data: bytearray, found: Anatomy, random: Random) -> None:
    at, size = random.choice(found.flags)
    if at + size <= len(data):
        bit = random.randrange(8 * size)
        data[at + bit // 8] ^= 1 << bit % 8


def _splice_header(data: bytearray, found: Anatomy, random: Random) -> None:
    """Insert a header at its place, and mostly announce it."""
    part, word_at, flag, header = random.choice(SPARE_HEADERS)
    at = found.start_of(part)
    if at is None:
        return
    if random.random() < 0.85:
        _set_flag(data, word_at, flag)
        if part == "transaction":
            data[anatomy.USER_FLAGS_AT] |= wire.DM
        start, stop = found.parts[part]
        del data[start:stop]
    data[at:at] = header


def _remove_part(data: bytearray, found: Anatomy, random: Random) -> None:
    part = random.choice([*found.parts])
    start, stop = found.parts[part]
    del data[start:stop]
    for name, word_at, flag, _ in SPARE_HEADERS:
        if name == part and random.random() < 0.7:
            _set_flag(data, word_at, flag, clear=True)


def _set_flag(data: bytearray, at: int, flag: int, *, clear: bool = False) -> None:
    size = 4 if at == anatomy.USER_FLAGS_AT else 2
    if at + size <= len(data):
        word = int.from_bytes(data[at : at + size], "little")
        data[at : at + size] = (word & ~flag if clear else word | flag).to_bytes(size, "little")


def _rename(data: bytearray, found: Anatomy, random: Random) -> None:
    """Replace a queue name, and sometimes its type."""
    part = random.choice([*anatomy.NAME_SHIFTS])
    if part not in found.parts:
        return
    name = random.choice(SPARE_NAMES)
    start, stop = found.parts[part]
    data[start:stop] = name.build()
    kind = name.kind if random.random() < 0.85 else random.randrange(8)
    shift = anatomy.NAME_SHIFTS[part]
    (flags,) = struct.unpack_from("<I", data, anatomy.USER_FLAGS_AT)
    struct.pack_into("<I", data, anatomy.USER_FLAGS_AT, flags & ~(7 << shift) | kind << shift)


def _cut(data: bytearray, found: Anatomy, random: Random) -> None:
    start, stop = random.choice([*found.parts.values()])
    del data[random.randint(start, stop) :]


def _insert(data: bytearray, found: Anatomy, random: Random) -> None:
    at = random.choice(random.choice([*found.parts.values()]))
    noise = random.choice((b"\0", b"\0\0", b"\xff" * 4, random.randbytes(4), b"\0" * 16))
    data[at:at] = noise


def _repeat(data: bytearray, found: Anatomy, random: Random) -> None:
    start, stop = random.choice([*found.parts.values()])
    if stop - start <= 4096:
        data[stop:stop] = data[start:stop]


def _odd_text(data: bytearray, found: Anatomy, random: Random) -> None:
    """Draw UTF-16 with nulls inside, halves of surrogate pairs, or without terminator."""
    part = random.choice(("label", "destination", "admin", "response", "soap", "multi_queue"))
    start, stop = found.parts.get(part, (0, 0))
    if stop - start < 4:
        return
    at = random.randrange(start, stop - 1)
    at -= (at - start) % 2 if random.random() < 0.8 else 0
    data[at : at + 2] = random.choice((b"\0\0", b"\0\xd8", b"\0\xdc", b"\\\0", b";\0", b"\0\1"))


CHANGES: list[Change] = [
    _lie,
    _lie,
    _set_odd_number,
    _flip_flag,
    _flip_flag,
    _splice_header,
    _splice_header,
    _remove_part,
    _rename,
    _cut,
    _insert,
    _repeat,
    _odd_text,
]
