"""The key file of a data folder: the seed of the queue manager's Ed25519 key, in PEM (PKCS #8).

The first start creates `identity.key`; then the database records the SHA-256 digest of the seed.
Other queue managers know this one by its key. So a recorded key that is missing, damaged or
replaced is missing data (missing.py): the daemon does not start, and makes a new key only after
`qmd check --accept-loss`. A file without a record was left by an interrupted first start.

The encoding is that of RFC 8410, section 7, which TLS libraries read directly.
"""

import binascii
import hashlib
import sqlite3
from pathlib import Path

from storage.engine.disk import Disk

NAME = "identity.key"
SEED_BYTES = 32

_BEGIN, _END = "-----BEGIN PRIVATE KEY-----", "-----END PRIVATE KEY-----"
# PrivateKeyInfo with version 0, the algorithm 1.3.101.112, and the seed as an octet string.
_DER_HEAD = bytes.fromhex("302e020100300506032b657004220420")


def encode(seed: bytes) -> bytes:
    """Encode a seed of 32 bytes as a PEM file."""
    assert len(seed) == SEED_BYTES
    return f"{_BEGIN}\n{_text(_DER_HEAD + seed)}\n{_END}\n".encode("ascii")


def _text(data: bytes) -> str:
    return binascii.b2a_base64(data, newline=False).decode("ascii")


def decode(data: bytes) -> bytes | None:
    """Decode a PEM file to the seed; None if it is not an Ed25519 key as `encode` writes it."""
    lines = data.decode("ascii", "replace").split()
    text = "".join(lines[3:-3])
    try:
        der = binascii.a2b_base64(text)  # below, all characters are compared
    except (binascii.Error, ValueError):
        return None
    seed = der[len(_DER_HEAD) :]
    if len(seed) != SEED_BYTES or encode(seed).split() != data.split():
        return None
    return seed


def digest(seed: bytes) -> bytes:
    """Return the digest that the database records, 32 bytes; the seed cannot be derived from it."""
    return hashlib.sha256(b"qmd identity key\0" + seed).digest()


def read(folder: Path, disk: Disk | None = None) -> bytes | None:
    """Read the seed from a data folder; None if there is no readable key.  Raises OSError."""
    data = (disk or Disk()).read_small(folder / NAME)
    return None if data is None else decode(data)


def find_fault(folder: Path, disk: Disk, recorded: bytes) -> str | None:
    """Return a sentence if the recorded key is not in the folder, or None.  Raises OSError."""
    data = disk.read_small(folder / NAME)
    if data is None:
        return f"{NAME}, the key by which other queue managers know this one, is gone"
    seed = decode(data)
    if seed is None:
        return f"{NAME}, the key by which other queue managers know this one, is damaged"
    if digest(seed) != recorded:
        return f"{NAME} is not the key of this queue manager: it was replaced"
    return None


def take(folder: Path, disk: Disk, new_seed: bytes) -> bytes:
    """Return the seed in the folder; write `new_seed` if there is none.  Raises OSError."""
    seed = read(folder, disk)
    if seed is None:
        seed = new_seed
        disk.create_small(folder / NAME, encode(seed))
    return seed


def record(db: sqlite3.Connection, key_digest: bytes) -> None:
    """Record the digest of a key that is durable in the folder."""
    db.execute("UPDATE identity SET key_digest = ? WHERE key_digest IS NOT ?", [key_digest] * 2)
