"""Instances (runs) of queue managers, to detect two machines with the same GUID.

A cloned image has the GUID, the sequences and the message numbers of its original. Only the run
differs: it has a *nonce*, generated at each start, and the number of starts, which is on disk. Two
clones continue to count from the same number:

    original   starts 7, nonce a ──► starts 8, nonce b ──► ...
    clone                      └──► starts 8, nonce c        same count, other nonce: two machines

Queue managers of qmd exchange the instance in the padding of the connection request, which may have
any content ([MS-MQQB] 2.2.3), and in the padding of the response to such a request. Other queue
managers get the padding that the specification describes.

A queue manager that has closed a session for want of room says so in its next handshake, because
the protocol has no packet for it: the sender would see connections that end, and no reason.
"""

from __future__ import annotations

import struct
from enum import Enum
from typing import NamedTuple

from protocol.identifiers import guid_text

PADDING_BYTES = 512

_MAGIC = b"qmd\x01instance"
_LAYOUT = struct.Struct("<12sBQ16s")
_OFFER_MAGIC = b"qmd\x01tls-port"
_OFFER = struct.Struct(">12sH")  # before the instance
_LACK_MAGIC = b"qmd\x01no-room\0"
_LACK = struct.Struct(">12sB")  # before the offer
#: The padding that the specification describes. [MS-MQQB] 2.2.3.1
FILL = b"\x5a" * PADDING_BYTES


class Lack(Enum):
    """The room that a queue manager lacks; the value is that of the wire."""

    COMPUTER = 1
    DISK = 2
    EXPRESS = 3
    RELAY = 4
    OTHER = 255  # of a later release, or for a moment

    @property
    def sentence(self) -> str:
        """The reason why messages are not taken, and the remedy, for people at the sender."""
        return _LACKS[self]


_LACKS = {
    Lack.COMPUTER: "it has no room for messages, as its computer quota is reached: receive or purge"
    " messages there, or raise computer in [quotas]",
    Lack.DISK: "it has no room for messages, as its disk is full: make room on the disk there",
    Lack.EXPRESS: "it has no room for express messages in its memory: receive some there, or raise"
    " express in [quotas]",
    Lack.RELAY: "it has no room for messages to others: see relay_bytes_max in [routing] there",
    Lack.OTHER: "it has no room for messages now",
}


class Instance(NamedTuple):
    """One run of a queue manager.

    `refusal` is not 0 in a response that refuses the session: because another run with this GUID is
    known, or because TLS is needed. `tls_port` is the port for TLS that a response offers, or 0.
    `lack` says for which want of room messages were not taken lately.
    """

    starts: int
    nonce: bytes
    refusal: int = 0
    tls_port: int = 0
    lack: Lack | None = None


def run_text(guid: bytes, run: Instance) -> str:
    """Return how events name a run of a queue manager."""
    return f"{guid_text(guid)}, run {run.starts} {run.nonce[:8].hex()}"


TWO_OF_ONE_IDENTITY = 1
NEEDS_TLS = 2


class TlsNeeded(str):
    """The reason for the refusal of a session that has to use TLS."""


def to_padding(instance: Instance) -> bytes:
    said = _LAYOUT.pack(_MAGIC, instance.refusal, instance.starts, instance.nonce)
    if instance.tls_port:
        said = _OFFER.pack(_OFFER_MAGIC, instance.tls_port) + said
    if instance.lack is not None:
        said = said.rjust(_LAYOUT.size + _OFFER.size, FILL[:1])
        said = _LACK.pack(_LACK_MAGIC, instance.lack.value) + said
    return FILL[len(said) :] + said


def from_padding(padding: bytes) -> Instance | None:
    """Return the instance in the padding, or None if no qmd queue manager has written one."""
    if len(padding) != PADDING_BYTES:
        return None
    magic, refusal, starts, nonce = _LAYOUT.unpack_from(padding, PADDING_BYTES - _LAYOUT.size)
    if magic != _MAGIC:
        return None
    offer, port = _OFFER.unpack_from(padding, PADDING_BYTES - _LAYOUT.size - _OFFER.size)
    return Instance(starts, nonce, refusal, port if offer == _OFFER_MAGIC else 0, _lack(padding))


def _lack(padding: bytes) -> Lack | None:
    at = PADDING_BYTES - _LAYOUT.size - _OFFER.size - _LACK.size
    magic, value = _LACK.unpack_from(padding, at)
    if magic != _LACK_MAGIC:
        return None
    try:
        return Lack(value)
    except ValueError:
        return Lack.OTHER


class Verdict(Enum):
    SAME = "the run that is known"
    NEWER = "a later run of it"
    ANOTHER = "a run that cannot be of the same machine"


def judge(known: Instance | None, met: Instance) -> Verdict:
    """Compare the run of a peer with the run known for its GUID."""
    if known is None:
        return Verdict.NEWER
    if met.nonce == known.nonce:
        return Verdict.SAME
    return Verdict.NEWER if met.starts > known.starts else Verdict.ANOTHER
