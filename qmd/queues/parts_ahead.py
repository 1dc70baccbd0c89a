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

    from qmd.runtime.services import Services
    from storage.engine.batch import Batch

#: Larger packets are stored ahead.
LARGE_BYTES = 384 * 1024
#: A piece is as large as a commit of ordinary time writes on a disk that syncs in a millisecond.
PIECE_BYTES, PIECE_BYTES_MAX = 256 * 1024, 1024 * 1024
USUAL_COMMIT_S = 0.001


class PartAhead:
    """A packet whose end is stored, or is being stored, in pieces."""

    __slots__ = ("_written", "ids", "is_used", "on_end", "packet", "piece_bytes")

    def __init__(self, packet: bytes, piece_bytes: int, on_end: Callable[[], None]) -> None:
        self.packet = packet
        self.ids: list[int] = []  # of its pieces, the first one first
        self.is_used = False  # a row refers to it
        self.on_end = on_end
        self.piece_bytes = piece_bytes
        self._written = split(packet)

    @property
    def is_complete(self) -> bool:
        return self._written >= len(self.packet)

    def id_for(self, packet: bytes) -> int | None:
        """Return the id of the part that ends this packet; None if it is of another packet.

        A packet whose head differs, such as a dead letter, has the same end.
        """
        if self.is_used or not self.is_complete or len(packet) != len(self.packet):
            return None
        end = split(packet)
        if packet is not self.packet and packet[end:] != self.packet[split(self.packet) :]:
            return None
        return self.ids[-1]

    def use(self, batch: Batch) -> None:
        """Keep the pieces: a row of the open batch refers to the part."""
        self.is_used = True
        batch.pieces.use(self.ids)

    def take_piece(self) -> bytes:
        """Return the next piece."""
        at = self._written
        self._written = min(at + self.piece_bytes, len(self.packet))
        return self.packet[at : self._written]


class PartsAhead:
    """Stores ends of packets ahead, one piece in a commit."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._waiting: dict[Hashable, deque[PartAhead]] = {}  # by owner, the next one first
        self._current: PartAhead | None = None

    def store(self, packet: bytes, owner: Hashable, on_end: Callable[[], None]) -> PartAhead:
        """Store the end of a packet; `on_end` is called when all of it is durable.

        Call `forget` afterwards, or before, which stops it.
        """
        ordinary_s = self._services.storage.ordinary_commit_s
        piece_bytes = int(PIECE_BYTES * max(1.0, ordinary_s / USUAL_COMMIT_S))
        part = PartAhead(packet, min(piece_bytes, PIECE_BYTES_MAX), on_end)
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
        batch.pieces.insert(part.ids[-1], part.take_piece(), follows)
        batch.when_durable(partial(self._durable, part))

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
