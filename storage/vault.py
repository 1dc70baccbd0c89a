"""Encryption of packets at rest: keys, and the seal of each row.

A sealed row keeps its length: the head of its packet stays as it is, the rest is encrypted with
AES-256-GCM, and column `seal` has everything else:

    version (1) | key id (8) | salt of the run (16) | number (8) | tag (16)

**No nonce repeats.**  Each open storage draws a salt, and derives a key of its own from it (HKDF
with SHA-256); under that key it numbers the seals.  A crash, a batch that is written again, or a
restored backup therefore never uses a nonce of an earlier run.

**A row cannot be exchanged.**  The tag also covers the table, the key of the row, the shared part
that completes its packet, and the head that is not encrypted.

The id of a key is derived from the key, so a wrong key is recognized before it is used.
"""

import hashlib
import itertools
import os
import sqlite3
import stat
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from zlib import crc32

from storage.digest_set import DigestSet
from storage.errors import KeyFileError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

KEY_BYTES = 32
KEY_ID_BYTES = 8
SALT_BYTES = 16
NUMBER_BYTES = 8
TAG_BYTES = 16
NONCE_BYTES = 12
#: Seals with one derived key; then the run draws a new salt.
NUMBERS_MAX = 1 << 32
#: Derived keys that are kept for reading: one for each run that has rows left.
DERIVED_MAX = 256

#: Bytes of each packet that stay readable: the base header, the two GUIDs, lifetimes and the
#: message number, by which the tables find messages.  [MS-MQMQ] 2.2.19.2
HEAD_BYTES = 60

_VERSION = b"\1"
_HEAD = len(_VERSION) + KEY_ID_BYTES + SALT_BYTES
SEAL_BYTES = _HEAD + NUMBER_BYTES + TAG_BYTES
_PLACE = struct.Struct(">BqQ")  # table, key, shared part or 0

#: Tables with sealed rows: their number in the tag, and the bytes that stay readable.
TABLES = {
    "message": (1, HEAD_BYTES),
    "outgoing": (2, HEAD_BYTES),
    "awaiting": (3, HEAD_BYTES),
    "shared_part": (4, 0),
    "damaged": (5, HEAD_BYTES),
    "stage": (6, 0),
    "unaddressed": (7, HEAD_BYTES),
    "owed": (8, HEAD_BYTES),
    "delayed": (9, 0),
}


class StorageKey:
    """A secret key of 32 bytes, and its id.  Its text form shows the id only."""

    __slots__ = ("id", "secret")

    def __init__(self, secret: bytes) -> None:
        if len(secret) != KEY_BYTES:
            raise ValueError(f"a key has {KEY_BYTES} bytes")
        self.secret = secret
        self.id = hashlib.sha256(b"qmd storage key\0" + secret).digest()[:KEY_ID_BYTES]

    def __repr__(self) -> str:
        return f"StorageKey({self.id.hex()})"


def read_key(path: Path, folder: Path) -> StorageKey:
    """Read a key file: 64 hexadecimal digits.  Raises KeyFileError.

    The file must not be in the data folder `folder`, or readable by all users.
    """
    try:
        if path.resolve().is_relative_to(folder.resolve()):
            raise KeyFileError(
                f"the storage key {path} is inside the data folder, and a copy of the folder would"
                " include it: keep it elsewhere"
            )
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            content = file.read(4 * KEY_BYTES)
    except OSError as error:
        raise KeyFileError(f"the storage key {path} cannot be read: {error.strerror}") from error
    if stat.S_IMODE(mode) & 0o007:
        raise KeyFileError(f"the storage key {path} is accessible to all users: chmod o= {path}")
    try:
        return StorageKey(bytes.fromhex(content.decode("ascii")))
    except ValueError:
        # Not chained: the cause would quote the content.
        raise KeyFileError(
            f"the storage key {path} does not have {2 * KEY_BYTES} hexadecimal digits; make one"
            " with `qmd storage key FILE`"
        ) from None


def read_keys(paths: Sequence[Path], folder: Path) -> tuple[StorageKey, ...]:
    """Read the key files for a data folder, without repetitions.  Raises KeyFileError."""
    keys = {key.id: key for key in (read_key(path, folder) for path in paths)}
    return tuple(keys.values())


class Opened(NamedTuple):
    """The packet of a sealed row; `checksum` does not match if the row was changed."""

    packet: bytes
    checksum: int


class Vault:
    """The keys of an open storage: the first one seals new rows, all open existing ones.

    The connection that writes seals rows in its thread; both connections open them.
    """

    def __init__(self, keys: Sequence[StorageKey], *, seals: bool = True) -> None:
        """Take the keys; with `seals` false, new rows are stored as plain text."""
        assert keys
        self._keys = {key.id: key for key in keys}
        self._key = keys[0]
        self.seals = seals
        self._derived: dict[bytes, AESGCM] = {}
        self._begin_run()

    @property
    def key_id(self) -> bytes:
        """Return the id of the key that seals new rows."""
        return self._key.id

    @property
    def key_ids(self) -> frozenset[bytes]:
        return frozenset(self._keys)

    def is_current(self, seal: bytes | None) -> bool:
        """Return whether a row is as this vault would write it."""
        if seal is None:
            return not self.seals
        return self.seals and seal[: 1 + KEY_ID_BYTES] == _VERSION + self.key_id

    def stored(
        self, table: str, key: int, packet: bytes | memoryview, part_id: int | None = None
    ) -> tuple[bytes, int, bytes]:
        """Return a row's packet as it is stored, its checksum, and its seal.

        The checksum is that of the stored bytes, so a check without the key can verify them, and
        it discloses nothing about the content.
        """
        number = next(self._numbers)
        if number >= NUMBERS_MAX:
            self._begin_run()
            number = next(self._numbers)
        nonce = number.to_bytes(NONCE_BYTES, "big")
        code, readable = TABLES[table]
        head = bytes(packet[:readable])
        covered = _PLACE.pack(code, key, part_id or 0) + head
        sealed = self._cipher.encrypt(nonce, packet[readable:], covered)
        stored = head + sealed[:-TAG_BYTES]
        seal = self._prefix + nonce[-NUMBER_BYTES:] + sealed[-TAG_BYTES:]
        return stored, crc32(stored), seal

    def opened(
        self, table: str, key: int, stored: bytes, seal: bytes, part_id: int | None = None
    ) -> Opened:
        """Return the packet of a row.

        Of a changed row the result is its decrypted content as far as that is possible, for an
        operator to examine; the checksum then does not match.
        """
        code, readable = TABLES[table]
        head = stored[:readable]
        cipher = self._reading(seal)
        if cipher is not None:
            from cryptography.exceptions import InvalidTag

            nonce = seal[_HEAD : _HEAD + NUMBER_BYTES].rjust(NONCE_BYTES, b"\0")
            covered = _PLACE.pack(code, key, part_id or 0) + head
            try:
                rest = cipher.decrypt(nonce, stored[readable:] + seal[-TAG_BYTES:], covered)
            except InvalidTag:
                rest = self._unverified(seal, nonce, stored[readable:])
                packet = head + rest
                return Opened(packet, crc32(packet) ^ 1)
            packet = head + rest
            return Opened(packet, crc32(packet))
        return Opened(stored, crc32(stored) ^ 1)

    def moved(
        self,
        table: str,
        key: int,
        new_table: str,
        new_key: int,
        stored: bytes,
        seal: bytes,
        part_id: int | None,
    ) -> tuple[bytes, int, bytes | None]:
        """Return the packet, checksum and seal of a row for its new place.

        A row that was changed since it was sealed is returned as it is: it must not become valid.
        """
        packet, checksum = self.opened(table, key, stored, seal, part_id)
        if checksum != crc32(packet):
            return stored, crc32(stored), seal
        if not self.seals:
            return packet, checksum, None
        return self.stored(new_table, new_key, packet, part_id)

    def _begin_run(self) -> None:
        salt = os.urandom(SALT_BYTES)
        self._numbers = itertools.count()
        self._prefix = _VERSION + self._key.id + salt
        self._cipher = self._derive(self._prefix)

    def _reading(self, seal: bytes) -> "AESGCM | None":
        """Return the cipher of the run that made a seal; None if its key is not known."""
        prefix = bytes(seal[:_HEAD])
        if len(seal) != SEAL_BYTES or prefix[:1] != _VERSION or self._key_of(prefix) is None:
            return None
        return self._derive(prefix)

    def _key_of(self, prefix: bytes) -> StorageKey | None:
        return self._keys.get(prefix[1 : 1 + KEY_ID_BYTES])

    def _derive(self, prefix: bytes) -> "AESGCM":
        found = self._derived.get(prefix)
        if found is None:
            from cryptography.hazmat.primitives.ciphers.aead import AESGCM

            if len(self._derived) >= DERIVED_MAX:
                self._derived.clear()
            found = self._derived[prefix] = AESGCM(self._secret_of_run(prefix))
        return found

    def _secret_of_run(self, prefix: bytes) -> bytes:
        from cryptography.hazmat.primitives.hashes import SHA256
        from cryptography.hazmat.primitives.kdf.hkdf import HKDF

        key = self._key_of(prefix)
        assert key is not None
        salt = prefix[1 + KEY_ID_BYTES :]
        return HKDF(SHA256(), KEY_BYTES, salt, b"qmd sealed rows").derive(key.secret)

    def _unverified(self, seal: bytes, nonce: bytes, sealed: bytes) -> bytes:
        """Decrypt bytes that do not match their tag.

        NIST SP 800-38D, 7.2: GCM encrypts with a counter that begins at nonce || 2.
        """
        from cryptography.hazmat.primitives.ciphers import Cipher
        from cryptography.hazmat.primitives.ciphers.algorithms import AES
        from cryptography.hazmat.primitives.ciphers.modes import CTR

        secret = self._secret_of_run(bytes(seal[:_HEAD]))
        decryptor = Cipher(AES(secret), CTR(nonce + b"\0\0\0\2")).decryptor()
        return decryptor.update(sealed) + decryptor.finalize()


class VaultConnection(sqlite3.Connection):
    """A connection by which the tables find the vault, the tally of rows, and known tokens."""

    vault: Vault | None = None
    tally: object = None  # storage/tables/tally.py
    #: The tokens that blocks of events carry, once one was searched: storage/tables/outcomes.py.
    digests: DigestSet | None = None


def attach(db: sqlite3.Connection, vault: Vault | None) -> None:
    """Let the tables use the vault on this connection."""
    if vault is not None:
        assert isinstance(db, VaultConnection)
        db.vault = vault


def vault_of(db: sqlite3.Connection) -> Vault | None:
    """Return the vault that opens the sealed rows of this connection, if there is one."""
    return getattr(db, "vault", None)


def writing_vault(db: sqlite3.Connection) -> Vault | None:
    """Return the vault that seals new rows, or None: they are stored as plain text."""
    vault = vault_of(db)
    return vault if vault is not None and vault.seals else None


def open_row(
    db: sqlite3.Connection,
    table: str,
    key: int,
    stored: bytes,
    seal: bytes | None,
    checksum: int | None,
    part_id: int | None = None,
) -> tuple[bytes, int | None]:
    """Return the packet of a row and the checksum of that; a row without a seal as it is.

    If the row was changed, or no key is there, the checksum does not match.
    """
    if seal is None:
        return stored, checksum
    vault = vault_of(db)
    if vault is None:
        return stored, crc32(stored) ^ 1
    return vault.opened(table, key, stored, seal, part_id)
