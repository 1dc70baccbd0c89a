"""Encryption of bodies: a session key, which is encrypted with the receiver's RSA key.

[MS-MQQB] 3.1.5.8.3, 3.1.7.1.5.  AES and RC2 are used with cipher block chaining, a zero
initialization vector and the padding of PKCS #5, as the specification prescribes.
"""

from __future__ import annotations

import os

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.decrepit.ciphers.algorithms import ARC4
from cryptography.hazmat.decrepit.ciphers.algorithms import RC2 as Rc2
from cryptography.hazmat.primitives import padding as block_padding
from cryptography.hazmat.primitives.asymmetric import padding
from cryptography.hazmat.primitives.asymmetric.rsa import (
    RSAPrivateKey,
    RSAPublicKey,
    RSAPublicNumbers,
)
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import CBC

from protocol.errors import MalformedPacket
from protocol.message_class import MessageClass
from protocol.security_data import RsaPublicKey, SessionKey, build_session_key, parse_session_key
from qmd.message_security.algorithms import (
    AES_KEY_BYTES,
    CIPHERS,
    CIPHERS_OF_LEVEL,
    RC2,
    RC4,
    Policy,
    Unacceptable,
    cipher_name,
)

_BAD, _UNSUPPORTED = (
    MessageClass.NACK_BAD_ENCRYPTION,
    MessageClass.NACK_UNSUPPORTED_CRYPTO_PROVIDER,
)
_OLD_KEY_BYTES = (5, 16)  # 40 and 128 bits
_RC2_KEY_BYTES = 16  # `cryptography` has no other


def check_cipher(privacy_level: int, algorithm: int, policy: Policy) -> None:
    """Raise Unacceptable unless a privacy level has a cipher, and the policy allows it."""
    ciphers = CIPHERS_OF_LEVEL.get(privacy_level)
    if ciphers is None or algorithm not in CIPHERS.values():
        raise Unacceptable(
            _BAD, f"there is no privacy level {privacy_level} with {cipher_name(algorithm)}"
        )
    if algorithm not in ciphers:
        raise Unacceptable(
            _BAD, f"privacy level {privacy_level} does not have {cipher_name(algorithm)}"
        )
    if algorithm not in policy.ciphers:
        raise Unacceptable(_UNSUPPORTED, f"{cipher_name(algorithm)} is not allowed here")


def public_key(key: RsaPublicKey) -> RSAPublicKey:
    """Return a published key as `cryptography` has it.  Raises ValueError."""
    return RSAPublicNumbers(key.exponent, key.modulus).public_key()


def new_session_key(algorithm: int, receiver: RSAPublicKey) -> tuple[bytes, bytes]:
    """Make a key for AES; return it, and the item EncryptionKey with it for the receiver."""
    key = os.urandom(AES_KEY_BYTES[algorithm])
    encrypted = receiver.encrypt(key, padding.PKCS1v15())
    return key, build_session_key(SessionKey(algorithm, encrypted))


def open_session_key(item: bytes, algorithm: int, private: RSAPrivateKey) -> bytes:
    """Decrypt the item EncryptionKey of a message.  Raises Unacceptable."""
    try:
        blob = parse_session_key(item)
    except MalformedPacket as error:
        raise Unacceptable(_BAD, f"its encryption key is not valid: {error}") from error
    if blob.algorithm != algorithm:
        raise Unacceptable(_BAD, "its encryption key is for another algorithm")
    try:
        key = private.decrypt(blob.encrypted, padding.PKCS1v15())
    except ValueError as error:
        raise Unacceptable(_BAD, "it was encrypted with another key than this host's") from error
    wanted = (AES_KEY_BYTES[algorithm],) if algorithm in AES_KEY_BYTES else _OLD_KEY_BYTES
    if len(key) not in wanted:
        raise Unacceptable(_BAD, "it was encrypted with another key than this host's")
    return key


def decrypt(body: bytes, key: bytes, algorithm: int) -> bytes:
    """Return the plain body.  Raises Unacceptable."""
    try:
        cipher = _cipher(key, algorithm)
        decryptor = cipher.decryptor()
        plain = decryptor.update(body) + decryptor.finalize()
        if algorithm == RC4:
            return plain
        unpadder = block_padding.PKCS7(_block_bits(algorithm)).unpadder()
        return unpadder.update(plain) + unpadder.finalize()
    except UnsupportedAlgorithm as error:
        name = cipher_name(algorithm)
        raise Unacceptable(_UNSUPPORTED, f"{name} is not available here") from error
    except ValueError as error:
        raise Unacceptable(_BAD, "its body cannot be decrypted") from error


def encrypt(body: bytes, key: bytes, algorithm: int) -> bytes:
    """Return the encrypted body.  Raises UnsupportedAlgorithm."""
    encryptor = _cipher(key, algorithm).encryptor()
    if algorithm == RC4:
        return encryptor.update(body) + encryptor.finalize()
    padder = block_padding.PKCS7(_block_bits(algorithm)).padder()
    padded = padder.update(body) + padder.finalize()
    return encryptor.update(padded) + encryptor.finalize()


def _cipher(key: bytes, algorithm: int) -> Cipher[CBC] | Cipher[None]:
    if algorithm == RC4:
        return Cipher(ARC4(key), None)
    if algorithm == RC2:
        if len(key) != _RC2_KEY_BYTES:
            raise UnsupportedAlgorithm("RC2 with a key of 40 bits")
        return Cipher(Rc2(key), CBC(bytes(8)))
    return Cipher(AES(key), CBC(bytes(16)))


def _block_bits(algorithm: int) -> int:
    return 64 if algorithm == RC2 else 128
