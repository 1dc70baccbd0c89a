"""Changes of the pieces of large packets that are stored ahead: storage/tables/shared_parts.py."""

import sqlite3
from collections.abc import Sequence

from storage.engine.load import Load
from storage.tables import shared_parts


class PieceChanges:
    """The pieces that a batch stores ahead, and those that it uses or deletes."""

    def __init__(self, load: Load) -> None:
        self._load = load
        self._new: list[shared_parts.NewPart] = []
        self._used: list[int] = []
        self._unwanted: list[int] = []

    def insert(self, part_id: int, packet: bytes | memoryview, follows: int | None) -> None:
        """Insert a piece of a part to which a row of a later batch will refer.

        `follows` is the id of the piece before it.  The caller chooses an unused id.
        """
        self._new.append((part_id, packet, follows))
        self._load.bytes += len(packet)
        self._load.piece_bytes += len(packet)
        self._load.count(1)

    def use(self, ids: Sequence[int]) -> None:
        """Keep the pieces of a part to which a row of this batch refers."""
        self._used += ids
        self._load.count(1)

    def delete(self, ids: Sequence[int]) -> None:
        """Delete pieces to which no row will refer."""
        self._unwanted += ids
        self._load.count(len(ids))

    def write(self, db: sqlite3.Connection) -> None:
        if self._new:
            shared_parts.insert(db, self._new)
            shared_parts.list_ahead(db, [id_ for id_, _, _ in self._new])
        if self._used:
            shared_parts.take_from_list(db, self._used)
        if self._unwanted:
            shared_parts.delete_ahead(db, self._unwanted)
