"""The Ed25519 key of this queue manager, and signatures of others.

Other queue managers know this one by the key (docs/decisions/0031). The seed is in the data folder
(storage/engine/key_file.py). `cryptography` is imported at the first use: it takes 30 ms.
"""

from __future__ import annotations

import hashlib
from functools import cached_property
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

SEED_BYTES = PUBLIC_KEY_BYTES = 32
SIGNATURE_BYTES = 64


class IdentityKey:
    """The key with a seed of 32 bytes."""

    def __init__(self, seed: bytes) -> None:
        assert len(seed) == SEED_BYTES, "a data folder that a queue manager has opened has a seed"
        self._seed = seed

    def __repr__(self) -> str:
        return "IdentityKey(...)"  # never the seed: representations may be logged

    @cached_property
    def private(self) -> Ed25519PrivateKey:
        """The key as `cryptography` has it, for certificates."""
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        return Ed25519PrivateKey.from_private_bytes(self._seed)

    @cached_property
    def public(self) -> bytes:
        """The public key, 32 bytes."""
        return self.private.public_key().public_bytes_raw()

    def sign(self, message: bytes) -> bytes:
        """Return the signature of a message, 64 bytes.

        The message must begin with a label that no other use of this key has: TLS signs with it,
        too.
        """
        return self.private.sign(message)


def verify(public: bytes, signature: bytes, message: bytes) -> bool:
    """Return whether a signature of a message was made with the key of which `public` is given."""
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, message)
    except (InvalidSignature, ValueError):
        return False
    return True


def fingerprint(public: bytes) -> str:
    """Return the name of a public key (32 bytes) in texts: the first half of its SHA-256, in hex.

    128 bits: a second key with the fingerprint of a given one cannot be found.
    """
    return hashlib.sha256(public).digest()[:16].hex()
