"""Self-relative security descriptors of queues: the owner and the access list. [MS-DTYP] 2.4.6

descriptor = revision 1, 0, control u16, offsets u32 of owner, group, SACL, DACL
list       = revision, 0, size u16, count u16, 0 u16, entries
entry      = type, flags, size u16, mask u32, SID (types 0 and 1)
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from protocol.security_id import security_id_text
from qmd.migration.errors import BadSource

DESCRIPTOR_BYTES_MAX = 64 * 1024
ENTRIES_MAX = 1_000

_HEADER = struct.Struct("<BBHIIII")
_LIST = struct.Struct("<BBHHH")
_ENTRY = struct.Struct("<BBHI")
_DACL_PRESENT = 0x0004
_SELF_RELATIVE = 0x8000
_ALLOWED, _DENIED = 0, 1  # [MS-DTYP] 2.4.4.1
_INHERIT_ONLY = 0x08


class AccessEntry(NamedTuple):
    """An entry of the access list: `mask` has the rights of MSMQ, [MS-MQMQ] 2.2.25."""

    sid: str
    allows: bool
    mask: int


class SecurityDescriptor(NamedTuple):
    """The parts that decide about access; `entries` of None: no list, so everyone has all rights.

    `others` counts entries of kinds that have no counterpart, such as those for audits.
    """

    owner: str | None
    entries: tuple[AccessEntry, ...] | None
    others: int


def parse_descriptor(raw: bytes) -> SecurityDescriptor:
    """Parse the bytes of a descriptor.  Raises BadSource."""
    if len(raw) > DESCRIPTOR_BYTES_MAX:
        raise BadSource(f"a security descriptor has {len(raw)} bytes")
    if len(raw) < _HEADER.size:
        raise BadSource(f"a security descriptor ends after {len(raw)} bytes")
    revision, _, control, owner_at, _, _, list_at = _HEADER.unpack_from(raw)
    if revision != 1 or not control & _SELF_RELATIVE:
        raise BadSource("a security descriptor is not self-relative, or of another revision")
    owner = _sid(raw, owner_at) if owner_at else None
    if not control & _DACL_PRESENT or not list_at:
        return SecurityDescriptor(owner, None, 0)
    entries, others = _entries(raw, list_at)
    return SecurityDescriptor(owner, tuple(entries), others)


def _entries(raw: bytes, at: int) -> tuple[list[AccessEntry], int]:
    if at < _HEADER.size or at + _LIST.size > len(raw):
        raise BadSource(f"an access list begins at {at} of {len(raw)} bytes")
    _, _, size, count, _ = _LIST.unpack_from(raw, at)
    end = at + size
    if end > len(raw) or count > ENTRIES_MAX:
        raise BadSource(f"an access list has {count} entries in {size} bytes at {at}")
    found: list[AccessEntry] = []
    others = 0
    at += _LIST.size
    for _ in range(count):
        if at + _ENTRY.size > end:
            raise BadSource(
                f"an entry of an access list begins at {at}, and the list ends at {end}"
            )
        kind, flags, size, mask = _ENTRY.unpack_from(raw, at)
        if size < _ENTRY.size or at + size > end:
            raise BadSource(f"an entry of an access list at {at} has {size} bytes")
        if kind in (_ALLOWED, _DENIED) and not flags & _INHERIT_ONLY:
            sid = _sid(raw[: at + size], at + _ENTRY.size)
            found.append(AccessEntry(sid, kind == _ALLOWED, mask))
        else:
            others += 1
        at += size
    return found, others


def _sid(raw: bytes, at: int) -> str:
    end = at + 8 + 4 * raw[at + 1] if at + 2 <= len(raw) else 0
    text = security_id_text(raw[at:end]) if at >= _HEADER.size and end <= len(raw) else None
    if text is None:
        raise BadSource(f"a security descriptor has no valid SID at {at}")
    return text
