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

if TYPE_CHECKING:
    from collections.abc import Callable

    from qmd.control_protocol.messages import NewMessage

#: An older one is verified again: its certificate may have been revoked meanwhile.
VALID_S = 60.0
SIGNATURES_MAX = 100_000

_encode = msgspec.msgpack.Encoder().encode


def signature_key(new: NewMessage, queue: int, delivery: int) -> bytes:
    """Return the digest of a message with all of its properties, its queue and its delivery."""
    return hashlib.blake2b(_encode((new, queue, delivery)), digest_size=20).digest()


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
