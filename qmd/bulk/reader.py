"""The state of a data pipeline's reader in memory: its positions, for each of its queues.

docs/decisions/0019 defines a position.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from protocol.identifiers import guid_text
from qmd.bulk.read_notes import ReadNotes
from qmd.queues.local_queue import LocalQueue
from storage.tables import reservations
from storage.tables.reservations import ReaderQueueRow, ReaderRow
from storage.tables.runs import Run

if TYPE_CHECKING:
    import sqlite3


@dataclass(slots=True, eq=False)
class ReaderQueue:
    """The positions of one reader in one queue."""

    id: int
    reader: Reader
    queue: LocalQueue
    shared: bool
    position: int  # the last consumed position
    next: int  # the position that is assigned next
    arrival: int  # messages up to this arrival number are not chosen
    reserved_at_s: int
    consumed_messages: int
    consumed_bytes: int
    notes: ReadNotes = field(default_factory=ReadNotes)

    @property
    def reserved(self) -> int:
        """The number of reserved positions."""
        return self.next - 1 - self.position


@dataclass(slots=True, eq=False)
class Reader:
    """A reader of a data pipeline, with the queues that it has opened."""

    id: int
    name: str
    fence: int
    opened_at_s: int
    active_at: float  # the time of its last request, by the loop's clock
    queues: dict[str, ReaderQueue] = field(default_factory=dict)  # by the id of the queue
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    was_warned_about: bool = False
    was_used: bool = False  # a request came since the start of this process


class StoredReaders(NamedTuple):
    """All readers as the storage has them at a start."""

    readers: list[ReaderRow]
    queues: list[ReaderQueueRow]
    runs: list[tuple[int, Run]]  # id of the reader's queue, keys of messages


def read_stored(db: sqlite3.Connection) -> StoredReaders:
    """Return all readers with their queues and reservations."""
    return StoredReaders(
        reservations.list_readers(db), reservations.list_queues(db), reservations.runs(db)
    )


def id_text(queue: LocalQueue) -> str:
    """Return the id by which a pipeline refers to a queue; a recreated queue has another id."""
    return guid_text(queue.guid)


def describe(held: ReaderQueue, queue_id: str, *, now: float) -> dict[str, Any]:
    """Return a reader's queue as `ListReaders` shows it; `now` is by the loop's clock."""
    reader, queue = held.reader, held.queue
    return {
        "reader": reader.name,
        "fence": reader.fence,
        "queue": queue_id,
        "name": queue.name,
        "shared": held.shared,
        "position": held.position,
        "reserved": held.next - 1,
        "arrival": held.arrival,
        "messages": held.reserved,
        "ready": max(queue.messages - queue.reserved.unready, 0),
        "opened_at_s": reader.opened_at_s,
        "quiet_s": round(now - reader.active_at, 1),
        "reserved_at_s": held.reserved_at_s or None,
        "consumed_messages": held.consumed_messages,
        "consumed_bytes": held.consumed_bytes,
    }
