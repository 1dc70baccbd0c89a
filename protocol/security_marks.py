"""The marks of a checked message: words of this queue manager in the SecurityHeader of its packet.

They are true in queues of this host only: a check writes them when a message arrives, and removes
those that a peer or a file states.

    Flags.AS        the style of the verified signature, 0: not authenticated
    EncryptionKey   not empty, and Flags.EB 0: the body came encrypted
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from protocol.identifiers import guid_text
from protocol.security_id import security_id_text
from protocol.user_message import build_user_message, parse_user_message

if TYPE_CHECKING:
    from protocol.headers import SecurityHeader
    from protocol.records import UserMessage

_SID, _QUEUE_MANAGER = 1, 2  # SecurityHeader.Flags.ST
_SECURITY_BYTE, _SECURITY_BIT = 62, 0x08  # of a packet: UserHeader.Flags.SH


def has_security(packet: bytes) -> bool:
    """Return whether a packet has a SecurityHeader, without parsing it."""
    return len(packet) > _SECURITY_BYTE and bool(packet[_SECURITY_BYTE] & _SECURITY_BIT)


def is_authenticated(message: UserMessage) -> bool:
    """Return whether the signature of a message in a queue of this host was verified."""
    return message.security is not None and message.security.flags.signature_type != 0


def was_encrypted(message: UserMessage) -> bool:
    """Return whether the body of a message in a queue of this host came encrypted."""
    header = message.security
    return bool(header is not None and header.encryption_key and not header.flags.body_encrypted)


def fingerprint(message: UserMessage) -> str | None:
    """Return the SHA-256 of the certificate of a message, in hexadecimal, or None."""
    header = message.security
    if header is None or not header.certificate:
        return None
    return hashlib.sha256(header.certificate).hexdigest()


def principals(message: UserMessage) -> tuple[str, ...]:
    """Return the names of the verified sender of a message, for rights: none if it is not signed.

    `sid:S-1-...` if the certificate is registered for that security identifier, and `signer:` with
    the SHA-256 fingerprint of the certificate in hexadecimal.
    """
    header = message.security
    if header is None or not is_authenticated(message):
        return ()
    signer = f"signer:{fingerprint(message)}"
    sid = security_id_text(header.sender_id) if header.flags.sender_type == _SID else None
    return (signer,) if sid is None else (f"sid:{sid}", signer)


def sender_text(header: SecurityHeader) -> str | None:
    """Return the sender id as text: a SID, or the GUID of a queue manager; None: neither."""
    if header.flags.sender_type == _SID:
        return security_id_text(header.sender_id)
    if header.flags.sender_type == _QUEUE_MANAGER and len(header.sender_id) == 16:
        return guid_text(header.sender_id)
    return None


def unmarked(packet: bytes) -> bytes:
    """Return a packet without the mark of a verified signature.  Raises MalformedPacket."""
    if not has_security(packet):
        return packet
    message = parse_user_message(packet)
    header = message.security
    if header is None or not (header.flags.signature_type or header.flags.authenticated):
        return packet
    flags = header.flags.replace(signature_type=0, authenticated=0)
    return build_user_message(message._replace(security=header._replace(flags=flags)))
