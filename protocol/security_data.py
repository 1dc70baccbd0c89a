"""The structures inside a SecurityHeader, and those of keys in files and directories.

    SessionKeyBlob   a session key, encrypted with the receiver's public key (MS-MQQB 2.4.2)
    PublicKeyBlob    an RSA public key (MS-MQQB 2.4.1, MS-MQDS 2.2.18 and 2.2.19)
    ProviderInfo     the cryptographic provider of a sender (MS-MQMQ 2.2.20.6)
    PublicKey        a public key and its provider; a queue manager publishes several
                     (MS-MQMQ 2.2.1 and 2.2.2)
    UserCertificate  a registered certificate (MS-MQMQ 2.2.21 and 2.2.22)

Moduli, encrypted keys and signatures are little-endian integers, as CryptoAPI stores them.
"""

from __future__ import annotations

import hashlib
from typing import NamedTuple

import protocol.derived.public_key_head as _PUBLIC_KEY
import protocol.derived.public_key_records as _RECORDS
import protocol.derived.session_key_blob as _SESSION_KEY
import protocol.derived.user_certificates as _CERTIFICATES
from protocol.errors import MalformedPacket
from protocol.security_records import (
    BLOB_VERSION as BLOB_VERSION,
)
from protocol.security_records import (
    CERTIFICATE_BYTES_MAX as CERTIFICATE_BYTES_MAX,
)
from protocol.security_records import (
    KEYS_MAX as KEYS_MAX,
)
from protocol.security_records import (
    MODULUS_BITS_MAX as MODULUS_BITS_MAX,
)
from protocol.security_records import (
    PROVIDER_BYTES_MAX as PROVIDER_BYTES_MAX,
)
from protocol.security_records import (
    PUBLIC_KEY_BLOB as PUBLIC_KEY_BLOB,
)
from protocol.security_records import (
    RSA1 as RSA1,
)
from protocol.security_records import (
    RSA_KEY_EXCHANGE as RSA_KEY_EXCHANGE,
)
from protocol.security_records import (
    RSA_SIGNATURE as RSA_SIGNATURE,
)
from protocol.security_records import (
    SIMPLE_BLOB as SIMPLE_BLOB,
)
from protocol.security_records import (
    PublicKeyHead as PublicKeyHead,
)
from protocol.security_records import (
    PublicKeyRecord as PublicKeyRecord,
)
from protocol.security_records import (
    PublicKeyRecords as PublicKeyRecords,
)
from protocol.security_records import (
    SessionKeyBlob as SessionKeyBlob,
)
from protocol.security_records import (
    UserCertificate as UserCertificate,
)
from protocol.security_records import (
    UserCertificates as UserCertificates,
)
from protocol.text import plain_text, wide_text

PROVIDER_RSA_FULL, PROVIDER_RSA_AES = 1, 0x18
BASE_PROVIDER = "Microsoft Base Cryptographic Provider v1.0"
ENHANCED_PROVIDER = "Microsoft Enhanced Cryptographic Provider v1.0"
AES_PROVIDER = "Microsoft Enhanced RSA and AES Cryptographic Provider"
_SESSION_KEY_BYTES = 12


class SessionKey(NamedTuple):
    """An encrypted session key: its algorithm, and the RSA ciphertext in big-endian order."""

    algorithm: int
    encrypted: bytes


class RsaPublicKey(NamedTuple):
    """An RSA public key: modulus, public exponent, and the length of the modulus in bits."""

    modulus: int
    exponent: int
    bit_length: int

    @property
    def fingerprint(self) -> str:
        """The SHA-256 of exponent and modulus, in hexadecimal: it stands for the key."""
        return hashlib.sha256(f"{self.exponent:x}:{self.modulus:x}".encode()).hexdigest()


class ProviderInfo(NamedTuple):
    """A cryptographic provider: its type and its name."""

    provider_type: int
    name: str


class PublishedKey(NamedTuple):
    """A public key that a queue manager publishes for one provider."""

    provider: ProviderInfo
    key: RsaPublicKey


def parse_session_key(item: bytes) -> SessionKey:
    """Parse the item EncryptionKey of a SecurityHeader (MS-MQQB 2.4.2).

    The specification gives the encrypted key 256 bytes; keys of other lengths have other sizes.
    Raises MalformedPacket.
    """
    if len(item) <= _SESSION_KEY_BYTES:
        raise MalformedPacket("encryption_key", len(item), "MUST have more than 12 bytes")
    blob: SessionKeyBlob = _SESSION_KEY.parse(item[:_SESSION_KEY_BYTES])
    return SessionKey(blob.algorithm, item[: _SESSION_KEY_BYTES - 1 : -1])


def build_session_key(key: SessionKey) -> bytes:
    """Build the item EncryptionKey of a SecurityHeader."""
    head = SessionKeyBlob(SIMPLE_BLOB, BLOB_VERSION, 0, key.algorithm, RSA_KEY_EXCHANGE)
    return _SESSION_KEY.build(head) + key.encrypted[::-1]


def parse_public_key(blob: bytes) -> RsaPublicKey:
    """Parse a PUBLICKEYBLOB.  Raises MalformedPacket."""
    head: PublicKeyHead = _PUBLIC_KEY.parse(blob)
    return RsaPublicKey(int.from_bytes(head.modulus, "little"), head.exponent, head.bit_length)


def build_public_key(key: RsaPublicKey, *, algorithm: int = RSA_KEY_EXCHANGE) -> bytes:
    """Build a PUBLICKEYBLOB.  Raises MalformedPacket for a key that it has no room for."""
    modulus = key.modulus.to_bytes(key.bit_length // 8, "little")
    return _PUBLIC_KEY.build(
        PublicKeyHead(
            PUBLIC_KEY_BLOB,
            BLOB_VERSION,
            0,
            algorithm,
            RSA1,
            key.bit_length,
            key.exponent,
            modulus,
        )
    )


def parse_published_keys(data: bytes) -> tuple[PublishedKey, ...]:
    """Parse MQDSPUBLICKEYS (MS-MQMQ 2.2.2).  Raises MalformedPacket."""
    records: PublicKeyRecords = _RECORDS.parse(data)
    if records.size != len(data):
        raise MalformedPacket("size", 0, "MUST be the size of the structure")
    return tuple(
        PublishedKey(
            ProviderInfo(each.provider_type, plain_text(each.provider)), parse_public_key(each.key)
        )
        for each in records.keys
    )


def build_published_keys(keys: tuple[PublishedKey, ...]) -> bytes:
    """Build MQDSPUBLICKEYS.  Raises MalformedPacket."""
    records = tuple(
        PublicKeyRecord(
            0,
            0,
            each.provider.provider_type,
            wide_text(each.provider.name),
            build_public_key(each.key),
        )
        for each in keys
    )
    built = _RECORDS.build(PublicKeyRecords(0, 0, records))
    return len(built).to_bytes(4, "little") + built[4:]


def parse_user_certificates(data: bytes) -> tuple[UserCertificate, ...]:
    """Parse MQUSERSIGNCERTS (MS-MQMQ 2.2.21).  Raises MalformedPacket."""
    parsed: UserCertificates = _CERTIFICATES.parse(data)
    return parsed.certificates


def build_user_certificates(certificates: tuple[UserCertificate, ...]) -> bytes:
    """Build MQUSERSIGNCERTS.  Raises MalformedPacket."""
    return _CERTIFICATES.build(UserCertificates(0, certificates))


def parse_provider(item: bytes) -> ProviderInfo:
    """Parse the item ProviderInfo of a SecurityHeader.  Raises MalformedPacket."""
    name = item[4:]
    if len(item) < 6 or len(name) % 2 or name[-2:] != b"\0\0" or len(item) > PROVIDER_BYTES_MAX:
        raise MalformedPacket("provider", 4, "MUST be a type and UTF-16 with its null")
    return ProviderInfo(
        int.from_bytes(item[:4], "little"), name[:-2].decode("utf-16-le", "replace")
    )


def build_provider(provider: ProviderInfo) -> bytes:
    """Build the item ProviderInfo of a SecurityHeader."""
    return provider.provider_type.to_bytes(4, "little") + wide_text(provider.name)
