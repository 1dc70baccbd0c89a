"""The structures inside a SecurityHeader, and those of keys in files and directories.

    SessionKeyBlob   a session key, encrypted with the receiver's public key (MS-MQQB 2.4.2)
    PublicKeyBlob    an RSA public key (MS-MQQB 2.4.1, MS-MQDS 2.2.18 and 2.2.19)
    ProviderInfo     the cryptographic provider of a sender (MS-MQMQ 2.2.20.6)
    PublicKey        a public key and its provider; a queue manager publishes several
                     (MS-MQMQ 2.2.1 and 2.2.2)
    UserCertificate  a registered certificate (MS-MQMQ 2.2.21 and 2.2.22)

Moduli, encrypted keys and signatures are little-endian integers, as CryptoAPI stores them.
"""

# No `from __future__ import annotations` here: the annotations are the layout.

import hashlib
from typing import Annotated, NamedTuple

from construct import Int8ul, Int16ul, Int32ul, Rebuild, len_, this

from protocol.codec.derive import Codec
from protocol.codec.layout import Octets, Repeat, WideText
from protocol.codec.marks import NothingLeft, Rule
from protocol.errors import MalformedPacket
from protocol.text import plain_text, wide_text

SIMPLE_BLOB, PUBLIC_KEY_BLOB = 1, 6  # BLOBHEADER.bType
BLOB_VERSION = 2
RSA_KEY_EXCHANGE, RSA_SIGNATURE = 0xA400, 0x2400
RSA1 = 0x31415352
PROVIDER_RSA_FULL, PROVIDER_RSA_AES = 1, 0x18
BASE_PROVIDER = "Microsoft Base Cryptographic Provider v1.0"
ENHANCED_PROVIDER = "Microsoft Enhanced Cryptographic Provider v1.0"
AES_PROVIDER = "Microsoft Enhanced RSA and AES Cryptographic Provider"
#: A modulus of 16,384 bits: limits of ours, so that one key cannot occupy the processor.
MODULUS_BITS_MAX = 16_384
PROVIDER_BYTES_MAX = 1024
KEYS_MAX = 64
CERTIFICATE_BYTES_MAX = 0xFFFF
_SESSION_KEY_BYTES = 12
_PUBLIC_KEY_BYTES = 20


class SessionKeyBlob(NamedTuple):
    """A session key, encrypted with an RSA public key; the size of the item ends it."""

    blob_type: Annotated[int, Int8ul, Rule(this.blob_type == SIMPLE_BLOB, "MUST be 0x01")]
    version: Annotated[int, Int8ul, Rule(this.version == BLOB_VERSION, "MUST be 0x02")]
    reserved: Annotated[int, Int16ul]
    algorithm: Annotated[int, Int32ul]  # of the session key
    key_algorithm: Annotated[
        int, Int32ul, Rule(this.key_algorithm == RSA_KEY_EXCHANGE, "MUST be 0x0000A400")
    ]


class PublicKeyHead(NamedTuple):
    """BLOBHEADER and RSAPUBKEY, up to the modulus."""

    blob_type: Annotated[int, Int8ul, Rule(this.blob_type == PUBLIC_KEY_BLOB, "MUST be 0x06")]
    version: Annotated[int, Int8ul, Rule(this.version == BLOB_VERSION, "MUST be 0x02")]
    reserved: Annotated[int, Int16ul]
    key_algorithm: Annotated[
        int,
        Int32ul,
        Rule(
            (this.key_algorithm == RSA_KEY_EXCHANGE) | (this.key_algorithm == RSA_SIGNATURE),
            "MUST be 0x0000A400 or 0x00002400",
        ),
    ]
    magic: Annotated[int, Int32ul, Rule(this.magic == RSA1, "MUST be 0x31415352")]
    bit_length: Annotated[
        int,
        Int32ul,
        Rule(
            (this.bit_length // 8 * 8 == this.bit_length) & (this.bit_length <= MODULUS_BITS_MAX),
            "MUST be a multiple of 8, not over 16384 (our limit)",
        ),
    ]
    exponent: Annotated[int, Int32ul]
    modulus: Annotated[
        bytes,
        Octets(this.bit_length // 8),
        NothingLeft("modulus", _PUBLIC_KEY_BYTES, "MUST end the key"),
    ]


class PublicKeyRecord(NamedTuple):
    """MQDSPUBLICKEY: a public key of a queue manager, for one provider."""

    key_size: Annotated[
        int,
        Rebuild(Int32ul, len_(this.key)),
        Rule(this.key_size <= 4096, "MUST NOT be over 4096 bytes (our limit)"),
    ]
    provider_size: Annotated[
        int,
        Rebuild(Int32ul, len_(this.provider)),
        Rule(this.provider_size <= PROVIDER_BYTES_MAX, "MUST NOT be over 1024 bytes (our limit)"),
    ]
    provider_type: Annotated[int, Int32ul]
    provider: Annotated[bytes, WideText(this.provider_size)]
    key: Annotated[bytes, Octets(this.key_size)]


class PublicKeyRecords(NamedTuple):
    """MQDSPUBLICKEYS, as in the attribute mSMQEncryptKey of a queue manager."""

    size: Annotated[int, Int32ul]  # of the whole structure
    count: Annotated[  # type: ignore[assignment]  # not the method of tuples
        int,
        Rebuild(Int32ul, len_(this.keys)),
        Rule(this.count <= KEYS_MAX, "MUST NOT be over 64 (our limit)"),
    ]
    keys: Annotated[
        tuple[PublicKeyRecord, ...],
        Repeat(this.count, PublicKeyRecord),
        NothingLeft("keys", 8, "MUST end the structure"),
    ]


class UserCertificate(NamedTuple):
    """MQUSERSIGNCERT: a registered certificate of a user."""

    digest: Annotated[bytes, Octets(16)]  # MD5 of the certificate
    identifier: Annotated[bytes, Octets(16)]
    size: Annotated[
        int,
        Rebuild(Int32ul, len_(this.certificate)),
        Rule(this.size <= CERTIFICATE_BYTES_MAX, "MUST NOT be over 0xFFFF bytes"),
    ]
    certificate: Annotated[bytes, Octets(this.size)]


class UserCertificates(NamedTuple):
    """MQUSERSIGNCERTS, as in the attribute mSMQSignCertificates of a user."""

    count: Annotated[  # type: ignore[assignment]  # not the method of tuples
        int,
        Rebuild(Int32ul, len_(this.certificates)),
        Rule(this.count <= KEYS_MAX, "MUST NOT be over 64 (our limit)"),
    ]
    certificates: Annotated[
        tuple[UserCertificate, ...],
        Repeat(this.count, UserCertificate),
        NothingLeft("certificates", 4, "MUST end the structure"),
    ]


_SESSION_KEY, _PUBLIC_KEY = Codec(SessionKeyBlob), Codec(PublicKeyHead)
_RECORDS, _CERTIFICATES = Codec(PublicKeyRecords), Codec(UserCertificates)


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
