"""Files of credentials of NATS: a token of a user, and the key that proves it.

The parts have headings, as the tool of NATS writes them.  A key is the base32 text of two bytes for
its kind, 32 bytes of a seed of Ed25519, and two bytes of a checksum (CRC-16).
"""

from __future__ import annotations

import base64
import binascii
import re
from pathlib import Path
from typing import NamedTuple

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

FILE_BYTES_MAX = 64 * 1024
_PARTS = re.compile(r"-----BEGIN ([A-Z ]+)-----\s*(\S+)\s*-+END \1-+")
_TOKEN, _SEED = "NATS USER JWT", "USER NKEY SEED"
_SEED_BYTES = 36
#: Five bits each for a seed ("S") and a user ("U", of eight): the text begins with "SU".
_KIND = (18 << 3 | 20 >> 2, (20 & 3) << 6)


class BadCredentials(ValueError):
    """A file that has no credentials; the text says why, and contains none of them."""


class Credentials(NamedTuple):
    """The token of a user and the key with which it signs."""

    token: bytes
    key: Ed25519PrivateKey

    def signed(self, nonce: str) -> bytes:
        """Return the signature of a nonce of the server."""
        return base64.b64encode(self.key.sign(nonce.encode()))


def read_credentials(file: Path) -> Credentials:
    """Read a file.  Raises BadCredentials and OSError."""
    with file.open("rb") as opened:
        content = opened.read(FILE_BYTES_MAX + 1)
    if len(content) > FILE_BYTES_MAX:
        raise BadCredentials(f"{file} has more than {FILE_BYTES_MAX} bytes")
    parts = dict(_PARTS.findall(content.decode("ascii", "replace")))
    if _TOKEN not in parts or _SEED not in parts:
        raise BadCredentials(f"{file} has no parts {_TOKEN!r} and {_SEED!r}")
    try:
        return Credentials(parts[_TOKEN].encode("ascii"), _key(parts[_SEED]))
    except ValueError as error:
        raise BadCredentials(f"{file}: {error}") from None


def _key(text: str) -> Ed25519PrivateKey:
    """Return the key of a seed.  Raises ValueError."""
    try:
        raw = base64.b32decode(text + "=" * (-len(text) % 8))
    except binascii.Error:
        raise ValueError("the seed is no base32 text") from None
    if len(raw) != _SEED_BYTES or binascii.crc_hqx(raw[:-2], 0) != int.from_bytes(
        raw[-2:], "little"
    ):
        raise ValueError("the seed is not complete, or was changed")
    if (raw[0], raw[1]) != _KIND:
        raise ValueError("the seed is not that of a user")
    return Ed25519PrivateKey.from_private_bytes(raw[2:-2])
