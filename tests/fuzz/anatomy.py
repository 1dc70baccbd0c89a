"""The parts of a packet, valid or broken, found by a parser of the tests.  [MS-MQMQ] 2.2.20

Nothing here comes from `protocol/`.  The parser follows the sizes and flags of the packet as long
as they make sense, and stops where they do not: mutations of the parts before are still useful.
"""

from __future__ import annotations

import contextlib
import struct
from dataclasses import dataclass, field

BASE_BYTES, USER_BYTES, PROPERTIES_BYTES, SESSION_BYTES = 16, 48, 56, 16
BASE_FLAGS_AT, SIZE_AT, USER_FLAGS_AT, NAMES_AT = 2, 8, 60, 64

INTERNAL, SESSION, DEBUG = 0x08, 0x10, 0x20  # BaseHeader.Flags IN, SH, DH
SECURITY, TRANSACTION, CONNECTOR = 1 << 19, 1 << 20, 1 << 22  # UserHeader.Flags
MULTI_QUEUE, SOAP = 1 << 23, 1 << 28
NAME_SHIFTS = {"destination": 10, "admin": 13, "response": 16}
NAME_BYTES = {0: 0, 1: 0, 2: 4, 3: 4, 4: 4, 5: 16, 6: 20}
DIRECT = 7


@dataclass(slots=True)
class Anatomy:
    """The parts that were found, as name -> (start, stop), and the places of sizes and flags.

    `lengths` and `flags` are (offset, bytes).
    """

    parts: dict[str, tuple[int, int]] = field(default_factory=dict)
    lengths: list[tuple[int, int]] = field(default_factory=list)
    flags: list[tuple[int, int]] = field(default_factory=list)

    def start_of(self, name: str) -> int | None:
        """Return the offset at which a part begins or would be inserted.

        None if it was not reached.
        """
        return self.parts[name][0] if name in self.parts else None


class _Over(Exception):
    """The packet ends here."""


def dissect(packet: bytes) -> Anatomy:
    """Return the anatomy of one packet."""
    found = Anatomy()
    with contextlib.suppress(_Over):
        _walk(packet, found)
    return found


def _walk(packet: bytes, found: Anatomy) -> None:
    at = _part(packet, found, "base", 0, BASE_BYTES)
    (base_flags,) = struct.unpack_from("<H", packet, BASE_FLAGS_AT)
    found.flags.append((BASE_FLAGS_AT, 2))
    found.lengths.append((SIZE_AT, 4))
    if base_flags & INTERNAL:
        at = _part(packet, found, "internal", at, 4)
        found.flags.append((at - 2, 2))
        _part(packet, found, "rest", at, len(packet) - at)
        return
    at = _part(packet, found, "user", at, USER_BYTES)
    (flags,) = struct.unpack_from("<I", packet, USER_FLAGS_AT)
    found.flags.append((USER_FLAGS_AT, 4))
    for name, shift in NAME_SHIFTS.items():
        at = _name(packet, found, name, at, flags >> shift & 7)
    at = _part(packet, found, "connector", at, 16 if flags & CONNECTOR else 0)
    at = _transaction(packet, found, at, present=bool(flags & TRANSACTION))
    at = _security(packet, found, at, present=bool(flags & SECURITY))
    at = _properties(packet, found, at)
    at = _debug(packet, found, at, present=bool(base_flags & DEBUG))
    at = _soap(packet, found, at, present=bool(flags & SOAP))
    at = _multi_queue(packet, found, at, present=bool(flags & MULTI_QUEUE))
    (size,) = struct.unpack_from("<I", packet, SIZE_AT)
    at = _part(packet, found, "trailing", at, max(0, min(size, len(packet)) - at))
    _part(packet, found, "session", at, SESSION_BYTES if base_flags & SESSION else 0)


def _part(packet: bytes, found: Anatomy, name: str, start: int, size: int) -> int:
    stop = start + size
    if stop > len(packet):
        raise _Over
    found.parts[name] = start, stop
    return stop


def _name(packet: bytes, found: Anatomy, name: str, at: int, kind: int) -> int:
    if kind != DIRECT:
        return _part(packet, found, name, at, NAME_BYTES[kind])
    found.lengths.append((at, 2))
    count = _number(packet, at, 2)
    return _part(packet, found, name, at, 2 + count + 3 & ~3)


def _transaction(packet: bytes, found: Anatomy, at: int, *, present: bool) -> int:
    if not present:
        return _part(packet, found, "transaction", at, 0)
    found.flags.append((at, 4))
    size = 36 if _number(packet, at, 4) & 1 else 20
    return _part(packet, found, "transaction", at, size)


def _security(packet: bytes, found: Anatomy, at: int, *, present: bool) -> int:
    if not present:
        return _part(packet, found, "security", at, 0)
    found.flags.append((at, 2))
    size = 16
    for offset, width in ((2, 2), (4, 2), (6, 2), (8, 4), (12, 4)):
        found.lengths.append((at + offset, width))
        size += _number(packet, at + offset, width) + 3 & ~3
    return _part(packet, found, "security", at, size)


def _properties(packet: bytes, found: Anatomy, at: int) -> int:
    found.flags.append((at, 1))
    found.lengths += [(at + 1, 1), (at + 32, 4), (at + 52, 4)]
    _part(packet, found, "properties head", at, PROPERTIES_BYTES)
    label, body, extension = (
        _number(packet, at + offset, width) for offset, width in ((1, 1), (32, 4), (52, 4))
    )
    _part(packet, found, "label", at + PROPERTIES_BYTES, 2 * label)
    size = PROPERTIES_BYTES + 2 * label + extension + body
    return _part(packet, found, "properties", at, min(size + 3 & ~3, len(packet) - at))


def _debug(packet: bytes, found: Anatomy, at: int, *, present: bool) -> int:
    if not present:
        return _part(packet, found, "debug", at, 0)
    found.flags.append((at, 2))
    return _part(packet, found, "debug", at, 20 if _number(packet, at, 2) & 3 else 4)


def _soap(packet: bytes, found: Anatomy, at: int, *, present: bool) -> int:
    start = at
    for _ in range(2 if present else 0):
        found.lengths.append((at + 4, 4))
        at += 8 + 2 * _number(packet, at + 4, 4) + 3 & ~3
    return _part(packet, found, "soap", start, at - start)


def _multi_queue(packet: bytes, found: Anatomy, at: int, *, present: bool) -> int:
    start = at
    for _ in range(3 if present else 0):
        found.lengths += [(at, 4), (at + 8, 4)]
        at += max(12, _number(packet, at, 4)) + 3 & ~3
    if present:
        found.lengths.append((at + 4, 4))
        at += 8 + _number(packet, at + 4, 4) + 3 & ~3
    return _part(packet, found, "multi_queue", start, at - start)


def _number(packet: bytes, at: int, size: int) -> int:
    if at + size > len(packet):
        raise _Over
    return int.from_bytes(packet[at : at + size], "little")
