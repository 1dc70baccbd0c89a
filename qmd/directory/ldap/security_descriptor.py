"""Security descriptor of a queue manager's object in Active Directory. [MS-DTYP] 2.4.6

The default of the class lets only administrators add queues. The descriptor therefore gives the
computer full control of everything below the object; [MS-MQDSSM] 3.1.6.1.1.8 demands the same.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

FULL_CONTROL: Final = 0x000F01FF
READ: Final = 0x00020094  # list, read properties, list object, read the descriptor

_EVERYBODY: Final = "S-1-1-0"
_ADMINISTRATORS: Final = "S-1-5-32-544"
_DOMAIN_ADMINS_RID: Final = 512

_SELF_RELATIVE, _HAS_DACL = 0x8000, 0x0004
_ALLOWED, _INHERITED_BY_CONTAINERS = 0x00, 0x02
_REVISION_ADS = 4


def queue_manager_descriptor(computer: bytes) -> bytes:
    """Return the descriptor for CN=msmq of the computer with that objectSid.

    Every account may read; the computer itself and administrators may write.
    """
    everything = (computer, sid(_ADMINISTRATORS), _domain_admins(computer))
    return descriptor(
        [*((FULL_CONTROL, one) for one in everything), (READ, sid(_EVERYBODY))],
    )


def descriptor(entries: Sequence[tuple[int, bytes]]) -> bytes:
    """Return a descriptor with (rights, SID) entries; the server adds owner and group."""
    body = b"".join(
        struct.pack("<BBHI", _ALLOWED, _INHERITED_BY_CONTAINERS, 8 + len(account), mask) + account
        for mask, account in entries
    )
    dacl = struct.pack("<BBHHH", _REVISION_ADS, 0, 8 + len(body), len(entries), 0) + body
    header = struct.pack("<BBHIIII", 1, 0, _SELF_RELATIVE | _HAS_DACL, 0, 0, 0, 20)
    return header + dacl


def sid(text: str) -> bytes:
    """Return the bytes of a SID such as `S-1-5-32-544`. [MS-DTYP] 2.4.2"""
    _, revision, authority, *parts = text.split("-")
    head = struct.pack("<BB", int(revision), len(parts)) + int(authority).to_bytes(6, "big")
    return head + b"".join(struct.pack("<I", int(part)) for part in parts)


def _domain_admins(member: bytes) -> bytes:
    """Return the SID of the domain admins of an account's domain.

    The SID of an account ends in the account's number.
    """
    return member[:-4] + struct.pack("<I", _DOMAIN_ADMINS_RID)
