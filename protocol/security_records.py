"""The layouts of keys and certificates: see `security_data.py`."""

# No `from __future__ import annotations` here: the annotations are the layout.

from typing import Annotated, NamedTuple

from protocol.codec.vocabulary import (
    Int8ul,
    Int16ul,
    Int32ul,
    NothingLeft,
    Octets,
    Rebuild,
    Repeat,
    Rule,
    WideText,
    len_,
    this,
)

SIMPLE_BLOB, PUBLIC_KEY_BLOB = 1, 6  # BLOBHEADER.bType
BLOB_VERSION = 2
RSA_KEY_EXCHANGE, RSA_SIGNATURE = 0xA400, 0x2400
RSA1 = 0x31415352
#: A modulus of 16,384 bits: limits of ours, so that one key cannot occupy the processor.
MODULUS_BITS_MAX = 16_384
PROVIDER_BYTES_MAX = 1024
KEYS_MAX = 64
CERTIFICATE_BYTES_MAX = 0xFFFF
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
