"""The verified signer of a message, for people: in places, in events and in explanations."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

from protocol.security_marks import fingerprint, is_authenticated, principals
from qmd.message_security.algorithms import hash_name
from qmd.message_security.signatures import described

if TYPE_CHECKING:
    from protocol import UserMessage

SUBJECT_CHARACTERS_MAX = 200  # in an event: a certificate may name anything
_described = lru_cache(maxsize=64)(described)


def signer_facts(message: UserMessage) -> dict[str, Any] | None:
    """Return the verified signer of a message, or None.

    {principals, subject, fingerprint, key_bits, hash, style}
    """
    header = message.security
    if header is None or not is_authenticated(message):
        return None
    facts = _described(bytes(header.certificate))
    return {
        "principals": list(principals(message)),
        "subject": facts.get("subject", ""),
        "fingerprint": fingerprint(message),
        "key_bits": facts.get("key_bits", 0),
        "hash": hash_name(message.properties.hash_algorithm),
        "style": (int(header.flags.signature_type) + 1) // 2,
    }


def signer_sentence(signer: dict[str, Any]) -> str:
    """Return a sentence about a verified signer."""
    subject = str(signer["subject"])
    if len(subject) > SUBJECT_CHARACTERS_MAX:
        subject = f"{subject[:SUBJECT_CHARACTERS_MAX]}..."
    return (
        f"Its signature was verified: {subject or 'a signer without a name'}"
        f" ({', '.join(signer['principals'])}; RSA with {signer['key_bits']} bits,"
        f" {signer['hash']}, a signature of MSMQ {signer['style']}.0)."
    )
