"""Signatures of messages, with RSA and the padding of PKCS #1 v1.5.  [MS-MQMQ] 2.5

CryptoAPI stores a signature as a little-endian integer; `cryptography` has the other order.
"""

from __future__ import annotations

import datetime
from functools import lru_cache
from typing import NamedTuple

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey, RSAPublicKey
from cryptography.hazmat.primitives.asymmetric.utils import Prehashed
from cryptography.hazmat.primitives.serialization import Encoding

from protocol.message_class import MessageClass
from protocol.security_data import RsaPublicKey
from qmd.message_security.algorithms import HASHES, Policy, Unacceptable, hash_name

_BAD, _UNSUPPORTED = (
    MessageClass.NACK_BAD_SIGNATURE,
    MessageClass.NACK_UNSUPPORTED_CRYPTO_PROVIDER,
)
#: Keys of other sizes cost too much time, or protect nothing.
KEY_BITS_MIN, KEY_BITS_MAX = 1024, 8192
EXPONENT_BITS_MAX = 32  # a PUBLICKEYBLOB has no room for more
SIGNERS_MAX = 128  # certificates that are kept as objects
_HASHES: dict[int, hashes.HashAlgorithm] = {
    HASHES["md5"]: hashes.MD5(),  # nosec B303: if a setting allows it
    HASHES["sha1"]: hashes.SHA1(),  # nosec B303: if a setting allows it
    HASHES["sha256"]: hashes.SHA256(),
    HASHES["sha512"]: hashes.SHA512(),
}

Parts = tuple[bytes, bytes, bytes]


class Signer(NamedTuple):
    """The certificate of a sender: its key, its fingerprint and its encoding (DER)."""

    key: RSAPublicKey
    fingerprint: str  # SHA-256, in hexadecimal
    encoded: bytes
    certificate: x509.Certificate

    @property
    def key_fingerprint(self) -> str:
        """The fingerprint of its key, as `protocol.security_data.RsaPublicKey` has it."""
        numbers = self.key.public_numbers()
        return RsaPublicKey(numbers.n, numbers.e, self.key.key_size).fingerprint


def signer_of(encoded: bytes, wall_s: float | None = None) -> Signer:
    """Read the certificate of a sender, which is DER as in SecurityData.SenderCert.

    wall_s: the wall clock in seconds since 1970; None: the period of validity is not looked at.
    Raises Unacceptable.
    """
    signer = _known_signer(encoded)
    if wall_s is not None:
        certificate = signer.certificate
        begins, ends = certificate.not_valid_before_utc, certificate.not_valid_after_utc
        now = datetime.datetime.fromtimestamp(wall_s, datetime.UTC)
        if not begins <= now <= ends:
            raise Unacceptable(
                _BAD, f"the sender's certificate is valid from {begins:%F} to {ends:%F} only"
            )
    return signer


@lru_cache(SIGNERS_MAX)
def _known_signer(encoded: bytes) -> Signer:
    """Read a certificate; to do it again takes longer than to verify a signature."""
    try:
        certificate = x509.load_der_x509_certificate(encoded)
        key = certificate.public_key()
        _ = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    except UnsupportedAlgorithm as error:
        raise Unacceptable(_UNSUPPORTED, f"the certificate's key is unknown: {error}") from error
    except Exception as error:  # any fault of a parser is one of the certificate
        raise Unacceptable(_BAD, f"the sender's certificate is not X.509: {error}") from error
    if not isinstance(key, RSAPublicKey):
        raise Unacceptable(_UNSUPPORTED, "the sender's certificate has no RSA key")
    if not KEY_BITS_MIN <= key.key_size <= KEY_BITS_MAX:
        raise Unacceptable(
            _BAD, f"the sender's key has {key.key_size} bits; {KEY_BITS_MIN} are needed"
        )
    if key.public_numbers().e.bit_length() > EXPONENT_BITS_MAX:
        raise Unacceptable(_BAD, "the sender's key has an exponent of more than 32 bits")
    if not _may_sign(certificate):
        raise Unacceptable(_BAD, "the sender's certificate is not one for signatures")
    fingerprint = certificate.fingerprint(hashes.SHA256()).hex()
    return Signer(key, fingerprint, certificate.public_bytes(Encoding.DER), certificate)


def described(encoded: bytes) -> dict[str, str | int]:
    """Describe a certificate (DER) for people; an empty result if it cannot be read."""
    try:
        certificate = x509.load_der_x509_certificate(encoded)
        key = certificate.public_key()
        return {
            "subject": certificate.subject.rfc4514_string(),
            "issuer": certificate.issuer.rfc4514_string(),
            "serial": f"{certificate.serial_number:x}",
            "fingerprint": certificate.fingerprint(hashes.SHA256()).hex(),
            "expires": certificate.not_valid_after_utc.isoformat(),
            "key_bits": key.key_size if isinstance(key, RSAPublicKey) else 0,
        }
    except (ValueError, UnsupportedAlgorithm):
        return {}


def _may_sign(certificate: x509.Certificate) -> bool:
    """Return whether the key usage of a certificate, if it has one, allows signatures.

    RFC 5280 4.2.1.3.  A certificate with an extension that cannot be read may not sign.
    """
    try:
        usage = certificate.extensions.get_extension_for_class(x509.KeyUsage).value
    except x509.ExtensionNotFound:
        return True
    except Exception:  # any fault of a parser is one of the certificate
        return False
    return usage.digital_signature or usage.content_commitment


def check_hash(value: int, policy: Policy) -> None:
    """Raise Unacceptable unless the policy allows a hash algorithm."""
    if value not in HASHES.values():
        raise Unacceptable(_BAD, f"there is no hash algorithm {hash_name(value)}")
    if value not in policy.hashes or value not in _HASHES:
        raise Unacceptable(
            _UNSUPPORTED, f"the hash algorithm {hash_name(value)} is not allowed here"
        )


def verify(signer: Signer, signature: bytes, parts: Parts, algorithm: int) -> bool:
    """Return whether a signature of a message was made with the key of the certificate.

    `parts` are those of `protocol.signed_fields.signed_parts`; `check_hash` has accepted the hash
    algorithm.
    """
    if len(signature) != (signer.key.key_size + 7) // 8:
        return False
    try:
        signer.key.verify(
            signature[::-1],
            _digest(parts, algorithm),
            padding.PKCS1v15(),
            Prehashed(_HASHES[algorithm]),
        )
    except (InvalidSignature, ValueError, UnsupportedAlgorithm):
        return False
    return True


def sign(key: RSAPrivateKey, parts: Parts, algorithm: int) -> bytes:
    """Return the signature of a message, in the byte order of a packet."""
    digest = _digest(parts, algorithm)
    return key.sign(digest, padding.PKCS1v15(), Prehashed(_HASHES[algorithm]))[::-1]


def _digest(parts: Parts, algorithm: int) -> bytes:
    hasher = hashes.Hash(_HASHES[algorithm])
    for part in parts:
        hasher.update(part)
    return hasher.finalize()
