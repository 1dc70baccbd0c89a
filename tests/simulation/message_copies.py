"""The copies of a message to several queues, told apart by their packets.

All copies have one body, and so one mark in it.  A copy is known by its queue, and by the number
that its queue manager gave it.  Where a queue was named twice, the first number that is seen
belongs to the first of its copies.  This file knows nothing of qmd's code.
[MS-MQMQ] 2.2.19.2, 2.2.20.2
"""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

#: The identity of a packet: the GUID of its source, and its number there.
Identity = tuple[bytes, int]
_Queue = tuple[str, str]  # host, and queue there
_DIRECT = 7  # the type of the destination's name, in bits 10 to 12 of UserHeader.Flags


class Received(Protocol):
    """A message as an application receives it."""

    @property
    def id(self) -> str: ...
    @property
    def body(self) -> bytes: ...


def wire_identity(text: str) -> Identity:
    """Parse the id of a message as applications get it: a GUID, a backslash, a number."""
    guid, _, number = text.partition("\\")
    return uuid.UUID(guid).bytes_le, int(number)


class CopyFound(NamedTuple):
    """A copy that a host's database holds."""

    mark: int
    identity: Identity
    target: str
    queue: str
    place: tuple[str, str, str]

    @classmethod
    def of(
        cls, mark: int, packet: bytes, place: tuple[str, str, str], hosts: Mapping[str, str]
    ) -> CopyFound:
        """Read a copy from its packet; `hosts`: host part of a direct name -> host."""
        identity = packet[16:32], int.from_bytes(packet[56:60], "little")
        flags = int.from_bytes(packet[60:64], "little")
        assert flags >> 10 & 7 == _DIRECT, "its destination has no direct name"
        size = int.from_bytes(packet[64:66], "little")
        name = packet[66 : 66 + size].decode("utf-16-le").rstrip("\0").casefold()
        host, _, queue = name.partition(":")[2].partition("\\")
        return cls(mark, identity, hosts[host], queue, place)

    @classmethod
    def delayed(
        cls, mark: int, identity: Identity, name: str, host: str, hosts: Mapping[str, str]
    ) -> CopyFound:
        """Return a copy that waits on `host` for its time; `name` is the name of its queue."""
        where, _, queue = name.casefold().partition(":")[2].partition("\\")
        target = host if where == "." else hosts[where]
        return cls(mark, identity, target, queue, (host, "delayed", name))


class Copies:
    """The copies of one message."""

    def __init__(self, copies: Iterable[tuple[str, str, int]]) -> None:
        """`copies`: host, queue and number of each, in the order of the queues."""
        self._sent = list(copies)
        self._left: dict[_Queue, list[int]] = defaultdict(list)
        for host, queue, number in self._sent:
            self._left[host, queue].append(number)
        self._known: dict[tuple[_Queue, Identity], int] = {}

    def number_of(self, host: str, queue: str, identity: Identity) -> int | None:
        """Return the number of the copy with this identity; None if there are too many copies."""
        where = host, queue
        known = self._known.get((where, identity))
        if known is None and self._left.get(where):
            known = self._known[where, identity] = self._left[where].pop(0)
        return known

    def assign_ids(self, ids: Sequence[str]) -> str | None:
        """Assign the ids that the sender got, in the order of the queues; return an error text."""
        identities = [wire_identity(each) for each in ids]
        if len(ids) != len(self._sent) or len(set(identities)) != len(ids):
            return f"there are {len(self._sent)}, and ids: {ids}"
        for (host, queue, number), identity in zip(self._sent, identities, strict=True):
            if self.number_of(host, queue, identity) is None:
                return f"number {number} has another id than {identity[1]}"
        return None

    def learned(self) -> int:
        """Return the number of identities that are known so far."""
        return len(self._known)

    def forget(self, learned: int) -> None:
        """Forget all identities after the first `learned`."""
        for where, identity in reversed(list(self._known)[learned:]):
            self._left[where].insert(0, self._known.pop((where, identity)))
