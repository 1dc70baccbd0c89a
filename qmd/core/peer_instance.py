"""Which run of which queue manager speaks: against two machines that bear one GUID.

A cloned image has the GUID, the sequences and the message numbers of its original.  What differs
is the run: a *nonce* made anew at each start, and the count of starts, which is on disk.  Two that
were cloned go on counting from the same number:

    original   starts 7, nonce a ──► starts 8, nonce b ──► ...
    clone                      └──► starts 8, nonce c        same count, other nonce: two machines

Between queue managers of our kind it travels in the padding of the connection request, which may
hold anything ([MS-MQQB] 2.2.3), and in that of the response to such a request.  Others see nothing
of it: what they get is filled as the specification has it.
"""

from __future__ import annotations

import struct
from enum import Enum
from typing import NamedTuple

PADDING_BYTES = 512

_MAGIC = b"qmd\x01instance"
_LAYOUT = struct.Struct("<12sBQ16s")
_FILL = 0x5A


class Instance(NamedTuple):
    """A run.  `refusal`: 1 in a response that refuses the session because of another one's."""

    starts: int
    nonce: bytes
    refusal: int = 0


TWO_OF_ONE_IDENTITY = 1


def to_padding(instance: Instance) -> bytes:
    said = _LAYOUT.pack(_MAGIC, instance.refusal, instance.starts, instance.nonce)
    return bytes((_FILL,)) * (PADDING_BYTES - len(said)) + said


def from_padding(padding: bytes) -> Instance | None:
    """None: nobody of our kind has filled it."""
    if len(padding) != PADDING_BYTES:
        return None
    magic, refusal, starts, nonce = _LAYOUT.unpack_from(padding, PADDING_BYTES - _LAYOUT.size)
    return Instance(starts, nonce, refusal) if magic == _MAGIC else None


class Verdict(Enum):
    SAME = "the run that is known"
    NEWER = "a later run of it"
    ANOTHER = "a run that cannot be of the same machine"


def judge(known: Instance | None, met: Instance) -> Verdict:
    """What a run is that says it is the queue manager of a run that was met before."""
    if known is None:
        return Verdict.NEWER
    if met.nonce == known.nonce:
        return Verdict.SAME
    return Verdict.NEWER if met.starts > known.starts else Verdict.ANOTHER
