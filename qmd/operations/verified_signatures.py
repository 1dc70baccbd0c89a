"""Signatures that were verified just now, for messages to queues of this host.

A message is verified when its application gives it, and marked when it gets its place.  A request
of tens of thousands of them is verified in parts, and gets its places in one turn of the event
loop, in which there is no time for a second verification of each.
"""

from __future__ import annotations

import hashlib
from collections import deque
from typing import TYPE_CHECKING

import msgspec

from protocol import build_user_message
from protocol.signed_fields import SignatureStyle, signed_parts

if TYPE_CHECKING:
    from collections.abc import Callable

    from protocol import UserMessage
    from qmd.control_protocol.messages import NewMessage

#: An older one is verified again: its certificate may have been revoked meanwhile.
VALID_S = 60.0
SIGNATURES_MAX = 100_000

_encode = msgspec.msgpack.Encoder().encode


def signature_key(new: NewMessage, queue: int, delivery: int) -> bytes:
    """Return the digest of a message with all of its properties, its queue and its delivery."""
    return hashlib.blake2b(_encode((new, queue, delivery)), digest_size=20).digest()


def list_key(message: UserMessage) -> bytes | None:
    """Return the digest of all that the verification of a signature over a list of queues reads.

    None: the message has no such signature, or another one as well.
    """
    header, multi_queue = message.security, message.multi_queue
    if header is None or multi_queue is None or header.signature or header.flags.body_encrypted:
        return None
    if not multi_queue.signature.signature:
        return None
    flags = header.flags.replace(signature_type=0, authenticated=0)
    digest = hashlib.blake2b(digest_size=20)
    for part in (
        *signed_parts(message, SignatureStyle.MSMQ_3),
        multi_queue.signature.signature,
        header.certificate,
        header.provider,
        header.sender_id,
        b"%d %d" % (int(flags), message.properties.hash_algorithm),
    ):
        digest.update(b"%d " % len(part))
        digest.update(part)
    return digest.digest()


def marked(message: UserMessage, style: SignatureStyle) -> bytes:
    """Return the packet of a message with the mark that its signature was verified."""
    header = message.security
    assert header is not None
    flags = header.flags.replace(authenticated=0, body_encrypted=0, signature_type=int(style))
    return build_user_message(
        message._replace(security=header._replace(flags=flags, encryption_key=b""))
    )


class VerifiedSignatures:
    """The keys of messages with verified signatures; the oldest ones are forgotten."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._until: dict[bytes, float] = {}
        self._order: deque[tuple[float, bytes]] = deque()

    def add(self, key: bytes) -> None:
        """Remember a key."""
        now = self._now()
        while self._order and (self._order[0][0] <= now or len(self._order) >= SIGNATURES_MAX):
            until, old = self._order.popleft()
            if self._until.get(old) == until:
                del self._until[old]
        until = now + VALID_S
        self._until[key] = until
        self._order.append((until, key))

    def has(self, key: bytes) -> bool:
        """Return whether a key was added in the last minute."""
        return self._until.get(key, 0.0) > self._now()
