"""Which copy of a message to several queues is which, by what the packets say of themselves.

All copies have one body, and so one mark in it.  A copy is known by its queue, and by the number
that its queue manager gave it; where a queue was named twice, the first number that is seen is that
of the first of its copies.  This file knows nothing of qmd's code.  [MS-MQMQ] 2.2.19.2, 2.2.20.2
"""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

#: Of a packet: the GUID of its source, and the number there.
Identity = tuple[bytes, int]
_Queue = tuple[str, str]  # host, and queue there
_DIRECT = 7  # the type of the destination's name, in bits 10 to 12 of UserHeader.Flags


class Received(Protocol):
    """What an application sees of a message."""

    @property
    def id(self) -> str: ...
    @property
    def body(self) -> bytes: ...


def wire_identity(text: str) -> Identity:
    """Of a message whose id an application has read: a GUID, a backslash, a number."""
    guid, _, number = text.partition("\\")
    return uuid.UUID(guid).bytes_le, int(number)


class CopyFound(NamedTuple):
    """A copy in somebody's database."""

    mark: int
    identity: Identity
    target: str
    queue: str
    place: tuple[str, str, str]

    @classmethod
    def of(
        cls, mark: int, packet: bytes, place: tuple[str, str, str], hosts: Mapping[str, str]
    ) -> CopyFound:
        """`hosts`: who is meant by the host part of a direct name."""
        identity = packet[16:32], int.from_bytes(packet[56:60], "little")
        flags = int.from_bytes(packet[60:64], "little")
        assert flags >> 10 & 7 == _DIRECT, "its destination has no direct name"
        size = int.from_bytes(packet[64:66], "little")
        name = packet[66 : 66 + size].decode("utf-16-le").rstrip("\0").casefold()
        host, _, queue = name.partition(":")[2].partition("\\")
        return cls(mark, identity, hosts[host], queue, place)


class Copies:
    """Those of one message."""

    def __init__(self, copies: Iterable[tuple[str, str, int]]) -> None:
        """Of each its host, its queue and its number, in the order of the queues."""
        self._sent = list(copies)
        self._left: dict[_Queue, list[int]] = defaultdict(list)
        for host, queue, number in self._sent:
            self._left[host, queue].append(number)
        self._known: dict[tuple[_Queue, Identity], int] = {}

    def number_of(self, host: str, queue: str, identity: Identity) -> int | None:
        """Of the copy that is there; None: there was none for it, or there were not so many."""
        where = host, queue
        known = self._known.get((where, identity))
        if known is None and self._left.get(where):
            known = self._known[where, identity] = self._left[where].pop(0)
        return known

    def told(self, ids: Sequence[str]) -> str | None:
        """Somebody was told the ids of all copies, in the order of the queues; what is wrong."""
        identities = [wire_identity(each) for each in ids]
        if len(ids) != len(self._sent) or len(set(identities)) != len(ids):
            return f"there are {len(self._sent)}, and ids: {ids}"
        for (host, queue, number), identity in zip(self._sent, identities, strict=True):
            if self.number_of(host, queue, identity) is None:
                return f"number {number} bears another id than {identity[1]}"
        return None

    def learned(self) -> int:
        """How much is known so far."""
        return len(self._known)

    def forget(self, learned: int) -> None:
        """What was seen since then."""
        for where, identity in reversed(list(self._known)[learned:]):
            self._left[where].insert(0, self._known.pop((where, identity)))
