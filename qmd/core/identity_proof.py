"""Proof of the identity of a queue manager: each end of a handshake signs a challenge of the other.

    initiator  ── EstablishConnection: challenge, key, dialled address ──►  acceptor
               ◄─ EstablishConnection: challenge, key, signature ─────────
               ── EstablishConnection: signature ──►                        only to a proven peer
               ── ConnectionParameters ──►                                  and so on

The blocks stand at the beginning of the padding, which may have any content ([MS-MQQB] 2.2.3); the
instance (peer_instance.py) stays at its end. Other queue managers ignore the first block, do not
answer with the second, and never get the third packet.

Each signature covers a label for its role, the GUIDs of both, and both paddings with the
challenges, the keys, the instances and the address that the initiator has dialled. The acceptor
proves nothing if that address is not one of its own: a queue manager that is dialled could
otherwise pass the handshake on to another one, and speak to each in the name of the other.

A program that can change packets on the path can take over a session after its handshake. TLS is
for that.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import NamedTuple

from qmd.core.peer_instance import PADDING_BYTES

NONCE_BYTES = 32
ADDRESS_BYTES = 18  # an IPv6 or mapped IPv4 address, and a port, both big-endian

_CHALLENGE = struct.Struct(">12s32s32s18s")  # magic, nonce, key, address
_ANSWER = struct.Struct(">12s32s32s64s")  # magic, nonce, key, signature
_PROOF = struct.Struct(">12s64s")  # magic, signature
_CHALLENGE_MAGIC, _ANSWER_MAGIC, _PROOF_MAGIC = (
    b"qmd\x01challeng",
    b"qmd\x01answered",
    b"qmd\x01identity",
)
_SIGNATURE_AT = _ANSWER.size - 64
_ACCEPTOR, _INITIATOR = b"qmd 1 session: acceptor\0", b"qmd 1 session: initiator\0"


class Prover(NamedTuple):
    """The key of this queue manager, for one handshake.

    `find_public()` returns the key, 32 bytes: finding it takes long the first time, and an acceptor
    may never need it. `sign(message)` returns 64 bytes; `verify(public, signature, message)` checks
    a signature of the other end. `nonce` has 32 random bytes that no other handshake has. An
    initiator has dialled `address`; for an acceptor `is_own(address)` says whether an address is
    one of its own.
    """

    find_public: Callable[[], bytes]
    sign: Callable[[bytes], bytes]
    verify: Callable[[bytes, bytes, bytes], bool]
    nonce: bytes
    address: bytes = bytes(ADDRESS_BYTES)
    is_own: Callable[[bytes], bool] = lambda _: False

    @property
    def public(self) -> bytes:
        """The key, 32 bytes."""
        return self.find_public()


class Exchange(NamedTuple):
    """The parts of a handshake that signatures cover: two GUIDs, and the paddings of both."""

    client: bytes
    server: bytes
    request: bytes
    response: bytes


def is_challenge(request: bytes) -> bool:
    """Return whether the padding of a connection request contains a challenge."""
    return _begins_with(request, _CHALLENGE_MAGIC)


def is_answer(response: bytes) -> bool:
    """Return whether the padding of a connection response contains an answer to a challenge."""
    return _begins_with(response, _ANSWER_MAGIC)


def dialled_address(request: bytes) -> bytes:
    """Return the address in a challenge, 18 bytes: that which its initiator has dialled."""
    return bytes(_CHALLENGE.unpack_from(request)[3])


def challenge(padding: bytes, prover: Prover) -> bytes:
    """Return the padding of a request with a challenge at its beginning."""
    block = _CHALLENGE.pack(_CHALLENGE_MAGIC, prover.nonce, prover.public, prover.address)
    return block + padding[len(block) :]


def answer(padding: bytes, prover: Prover, exchange: Exchange) -> bytes:
    """Return the padding of a response with an answer to the challenge of `exchange.request`.

    The `response` of the exchange is not used.
    """
    block = _ANSWER.pack(_ANSWER_MAGIC, prover.nonce, prover.public, bytes(64))
    unsigned = block + padding[len(block) :]
    signature = prover.sign(_ACCEPTOR + b"".join(exchange._replace(response=unsigned)))
    return unsigned[:_SIGNATURE_AT] + signature + unsigned[_ANSWER.size :]


def acceptor_key(prover: Prover, exchange: Exchange) -> bytes | None:
    """Return the key that the acceptor has proven, 32 bytes; None if its answer is not valid."""
    if not is_answer(exchange.response):
        return None
    _, _, public, signature = _ANSWER.unpack_from(exchange.response)
    response = exchange.response
    unsigned = response[:_SIGNATURE_AT] + bytes(64) + response[_ANSWER.size :]
    message = _ACCEPTOR + b"".join(exchange._replace(response=unsigned))
    return bytes(public) if prover.verify(public, signature, message) else None


def proof(padding: bytes, prover: Prover, exchange: Exchange) -> bytes:
    """Return the padding of the initiator's packet that proves its key."""
    block = _PROOF.pack(_PROOF_MAGIC, prover.sign(_INITIATOR + b"".join(exchange)))
    return block + padding[len(block) :]


def initiator_key(prover: Prover, exchange: Exchange, padding: bytes) -> bytes | None:
    """Return the key that the initiator has proven, 32 bytes; None if its proof is not valid."""
    if not (_begins_with(padding, _PROOF_MAGIC) and is_challenge(exchange.request)):
        return None
    _, signature = _PROOF.unpack_from(padding)
    public = bytes(_CHALLENGE.unpack_from(exchange.request)[2])
    message = _INITIATOR + b"".join(exchange)
    return public if prover.verify(public, signature, message) else None


def _begins_with(padding: bytes, magic: bytes) -> bool:
    return len(padding) == PADDING_BYTES and padding.startswith(magic)
