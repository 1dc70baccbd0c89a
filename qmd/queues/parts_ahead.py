"""Ends of large packets, stored ahead in pieces, before the message is accepted.

    packet ──► its end, a piece in each commit ──► decided about ──► row with its head
                   (others' rows in the same commits)         └────► else: pieces deleted

A commit of a row of 4 MB takes some 15 ms, and others wait for it.  A commit with a piece takes
about a millisecond.  The pieces of the next owner (a host, an account) follow when all those of one
packet are stored.  Nothing refers to pieces before the row of the message: until then they mean
nothing, and a start deletes those that are left (storage/tables/shared_parts.py).
"""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import TYPE_CHECKING

from qmd.message.shared_packet import split

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from qmd.runtime.fair_scheduler import FairScheduler
    from qmd.runtime.services import Services
    from storage.engine.batch import Batch

#: Larger packets are stored ahead.
LARGE_BYTES = 384 * 1024
#: A piece is as large as a commit of ordinary time writes on a disk that syncs in a millisecond;
#: while nothing else happens it has the greatest size: fewer syncs, and the loop reads meanwhile.
PIECE_BYTES, PIECE_BYTES_MAX = 256 * 1024, 1024 * 1024
USUAL_COMMIT_S = 0.001


class PartAhead:
    """A packet whose end is stored, or is being stored, in pieces.

    It keeps the packet as it was received, with its SessionHeader, because a copy would take its
    memory again.
    """

    __slots__ = (
        "_begin",
        "_packet",
        "_until",
        "_written",
        "ids",
        "is_used",
        "on_end",
    )

    def __init__(self, packet: bytes, until: int, on_end: Callable[[], None]) -> None:
        """The end of the packet is that up to the index `until`."""
        self._packet = packet
        self._until = until
        self.ids: list[int] = []  # of its pieces, the first one first
        self.is_used = False  # a row refers to it
        self.on_end = on_end
        self._written = self._begin = split(packet)

    @property
    def is_complete(self) -> bool:
        return self._written >= self._until

    def id_for(self, packet: bytes) -> int | None:
        """Return the id of the part that ends this packet; None if it is of another packet.

        A packet whose head differs, such as a dead letter, has the same end.
        """
        begin = split(packet)
        if self.is_used or not self.is_complete or len(packet) - begin != self._until - self._begin:
            return None
        # Views: the ends have megabytes, and are compared in place.
        end, own = memoryview(packet)[begin:], self._packet
        return self.ids[-1] if own.startswith(end, self._begin, self._until) else None

    def use(self, batch: Batch) -> None:
        """Keep the pieces: a row of the open batch refers to the part."""
        self.is_used = True
        batch.pieces.use(self.ids)

    def take_piece(self, size: int) -> memoryview:
        """Return the next piece, of up to `size` bytes, without a copy of them."""
        at = self._written
        self._written = min(at + size, self._until)
        return memoryview(self._packet)[at : self._written]


class PartsAhead:
    """Stores ends of packets ahead, one piece in a commit."""

    def __init__(self, services: Services, turns: FairScheduler) -> None:
        self._services = services
        self._turns = turns
        self._waiting: dict[Hashable, deque[PartAhead]] = {}  # by owner, the next one first
        self._current: PartAhead | None = None

    def store(
        self, packet: bytes, until: int, owner: Hashable, on_end: Callable[[], None]
    ) -> PartAhead:
        """Store the end of a packet up to the index `until`; `on_end` is called when all of it is
        durable.

        Call `forget` afterwards, or before, which stops it.
        """
        part = PartAhead(packet, until, on_end)
        self._waiting.setdefault(owner, deque()).append(part)
        if self._current is None:
            self._go_on()
        return part

    def forget(self, part: PartAhead) -> None:
        """Delete the pieces of a packet for which no row was made, or will be."""
        part.on_end = _ignore
        if not part.is_used and part.ids:
            self._services.storage.batch.pieces.delete(part.ids)
        part.is_used = True  # nothing is left to delete
        if part is not self._current:
            for owner, parts in list(self._waiting.items()):
                if part in parts:
                    parts.remove(part)
                    if not parts:
                        del self._waiting[owner]

    def _go_on(self) -> None:
        """Begin the next packet, of the next owner."""
        self._current = None
        if self._waiting:
            owner, parts = next(iter(self._waiting.items()))
            del self._waiting[owner]
            self._current = parts.popleft()
            if parts:
                self._waiting[owner] = parts  # the owner is the last one from now on
            self._store_piece(self._current)

    def _store_piece(self, part: PartAhead) -> None:
        services = self._services
        batch, follows = services.storage.batch, part.ids[-1] if part.ids else None
        part.ids.append(services.ids.next_lookup_id(0))
        batch.pieces.insert(part.ids[-1], part.take_piece(self._piece_bytes()), follows)
        batch.when_durable(partial(self._durable, part))

    def _piece_bytes(self) -> int:
        if not self._turns.is_shared:
            return PIECE_BYTES_MAX
        ordinary_s = self._services.storage.ordinary_commit_s
        return min(int(PIECE_BYTES * max(1.0, ordinary_s / USUAL_COMMIT_S)), PIECE_BYTES_MAX)

    def _durable(self, part: PartAhead) -> None:
        if part.is_used:  # it was forgotten meanwhile, and with it the pieces so far
            self._go_on()
        elif part.is_complete:
            part.on_end()
            self._go_on()
        else:
            self._store_piece(part)


def _ignore() -> None:
    """Do nothing at the end of a packet that was forgotten."""
