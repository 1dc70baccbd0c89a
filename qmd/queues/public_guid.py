"""Public GUID: names a queue as PUBLIC=guid without a directory.

A DebugHeader can name the queue for reports only so ([MS-MQMQ] 2.2.20.8). The GUID is computed from
constant properties of the queue, so it is not stored.
"""

from __future__ import annotations

import hashlib
import struct

_QUEUE = struct.Struct("<IQ")


def public_guid(queue_manager: bytes, number: int, created_at_s: int) -> bytes:
    """Return the GUID of a queue: 16 bytes, derived as from a name (RFC 4122, version 5)."""
    digest = hashlib.sha1(
        queue_manager + _QUEUE.pack(number, created_at_s), usedforsecurity=False
    ).digest()
    guid = bytearray(digest[:16])
    guid[7] = guid[7] & 0x0F | 0x50  # the version is in Data3, little-endian
    guid[8] = guid[8] & 0x3F | 0x80
    return bytes(guid)
