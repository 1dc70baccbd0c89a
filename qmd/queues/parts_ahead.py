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
        "piece_bytes",
    )

    def __init__(
        self, packet: bytes, until: int, piece_bytes: int, on_end: Callable[[], None]
    ) -> None:
        """The end of the packet is that up to the index `until`."""
        self._packet = packet
        self._until = until
        self.ids: list[int] = []  # of its pieces, the first one first
        self.is_used = False  # a row refers to it
        self.on_end = on_end
        self.piece_bytes = piece_bytes
        self._written = self._begin = split(packet)

    @property
    def is_complete(self) -> bool:
        return self._written >= self._until

    def id_for(self, packet: bytes) -> int | None:
        """Return the id of the part that ends this packet; None if it is of another packet.

        A packet whose head differs, such as a dead letter, has the same end.
        """
        if self.is_used or not self.is_complete:
            return None
        end = packet[split(packet) :]
        return self.ids[-1] if end == self._packet[self._begin : self._until] else None

    def use(self, batch: Batch) -> None:
        """Keep the pieces: a row of the open batch refers to the part."""
        self.is_used = True
        batch.pieces.use(self.ids)

    def take_piece(self) -> bytes:
        """Return the next piece."""
        at = self._written
        self._written = min(at + self.piece_bytes, self._until)
        return self._packet[at : self._written]


class PartsAhead:
    """Stores ends of packets ahead, one piece in a commit."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._waiting: dict[Hashable, deque[PartAhead]] = {}  # by owner, the next one first
        self._current: PartAhead | None = None

    def store(
        self, packet: bytes, until: int, owner: Hashable, on_end: Callable[[], None]
    ) -> PartAhead:
        """Store the end of a packet up to the index `until`; `on_end` is called when all of it is
        durable.

        Call `forget` afterwards, or before, which stops it.
        """
        ordinary_s = self._services.storage.ordinary_commit_s
        piece_bytes = int(PIECE_BYTES * max(1.0, ordinary_s / USUAL_COMMIT_S))
        part = PartAhead(packet, until, min(piece_bytes, PIECE_BYTES_MAX), on_end)
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
