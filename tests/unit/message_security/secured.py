"""Signed and encrypted messages for tests, made with `cryptography` and plain bytes.

The signed bytes and the encrypted key are put together here a second time, from the packet, so that
the tests compare two implementations.
"""

from __future__ import annotations

import datetime
import os
from functools import cache

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives import padding as block_padding
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID

from protocol import SecurityFlags, SecurityHeader, UserMessage, build_user_message
from protocol.security_id import parse_security_id
from tests.unit.protocol.samples import express_message

SID = "S-1-5-21-1-2-3-1001"
NOW_S = 1_800_000_000.0  # in 2027
SHA512, SHA256, SHA1 = 0x800E, 0x800C, 0x8004
HASHES: dict[int, hashes.HashAlgorithm] = {
    SHA512: hashes.SHA512(),
    SHA256: hashes.SHA256(),
    SHA1: hashes.SHA1(),
}
AES256, AES128 = 0x6610, 0x660E


@cache
def key(name: str = "sender") -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(65537, 2048)


@cache
def certificate(name: str = "sender", *, days: int = 36_500) -> bytes:
    """Return a certificate that the key of that name signed itself, in DER."""
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    begins = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key(name).public_key())
        .serial_number(1)
        .not_valid_before(begins)
        .not_valid_after(begins + datetime.timedelta(days=days))
        .sign(key(name), hashes.SHA256())
        .public_bytes(Encoding.DER)
    )


def with_security(message: UserMessage, header: SecurityHeader) -> UserMessage:
    flags = message.user.flags.replace(security_header=1)
    return message._replace(user=message.user._replace(flags=flags), security=header)


def signature(message: UserMessage, name: str = "sender", *, algorithm: int = SHA512) -> bytes:
    """Return the MSMQ 2.0 signature of a message with direct names or none."""
    user, properties = message.user, message.properties
    covered = properties.correlation_id
    covered += properties.application_tag.to_bytes(4, "little")
    covered += properties.body + properties.label
    for queue in (user.response_queue, user.admin_queue):
        covered += b"" if queue is None else direct_bytes(queue)
    covered += user.source_queue_manager
    flags = int(user.flags)
    covered += bytes(
        (
            flags >> 5 & 3,
            int(message.base.flags) & 7,
            (flags >> 9 & 1) << 1 | flags >> 8 & 1,
            int(properties.flags) & 15,
        )
    )
    covered += properties.message_class.to_bytes(2, "little")
    covered += properties.body_type.to_bytes(4, "little")
    covered += user.connector_type or b""
    covered += direct_bytes(user.destination_queue)
    return key(name).sign(covered, padding.PKCS1v15(), HASHES[algorithm])[::-1]


def direct_bytes(queue: object) -> bytes:
    if isinstance(queue, int):
        return queue.to_bytes(4, "little")
    name: bytes = queue.name  # type: ignore[attr-defined]
    return len(name).to_bytes(2, "little") + name


def signed(
    message: UserMessage | None = None,
    name: str = "sender",
    *,
    algorithm: int = SHA512,
    sid: str = "",
    queue_manager: bytes = b"",
) -> UserMessage:
    """Return a message with the signature of that sender: a user, or a queue manager."""
    message = express_message() if message is None else message
    properties = message.properties._replace(hash_algorithm=algorithm)
    message = message._replace(properties=properties)
    header = SecurityHeader(
        SecurityFlags.of(
            sender_type=1 if sid else 2 if queue_manager else 0, default_provider=1, data_present=1
        ),
        *(0, 0, 0, 0, 0),
        parse_security_id(sid) if sid else queue_manager,
        b"",
        signature(message, name, algorithm=algorithm),
        certificate(name),
        b"",
    )
    return with_security(message, header)


def encrypted(
    message: UserMessage | None = None, receiver: str = "receiver", *, algorithm: int = AES256
) -> UserMessage:
    """Return a message with its body encrypted for that receiver; a signature stays."""
    message = express_message() if message is None else message
    session_key = os.urandom(32 if algorithm == AES256 else 16)
    padder = block_padding.PKCS7(128).padder()
    body = padder.update(message.properties.body) + padder.finalize()
    encryptor = Cipher(algorithms.AES(session_key), modes.CBC(bytes(16))).encryptor()
    body = encryptor.update(body) + encryptor.finalize()
    item = bytes.fromhex("01020000") + algorithm.to_bytes(4, "little") + bytes.fromhex("00A40000")
    item += key(receiver).public_key().encrypt(session_key, padding.PKCS1v15())[::-1]
    properties = message.properties._replace(
        body=body, privacy_level=5, encryption_algorithm=algorithm, allocation_body_size=len(body)
    )
    header = message.security
    if header is None:
        header = SecurityHeader(
            SecurityFlags.of(data_present=1), *(0, 0, 0, 0, 0), b"", b"", b"", b"", b""
        )
    header = header._replace(flags=header.flags.replace(body_encrypted=1), encryption_key=item)
    return with_security(message._replace(properties=properties), header)


def packet(message: UserMessage) -> bytes:
    return build_user_message(message)
