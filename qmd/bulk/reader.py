"""What is kept in memory of the readers of data pipelines: positions, by reader and queue.

docs/decisions/0019 says what a position is.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from protocol.identifiers import guid_text
from qmd.queues.local_queue import LocalQueue
from storage.tables import reservations
from storage.tables.reservations import ReaderQueueRow, ReaderRow

if TYPE_CHECKING:
    import sqlite3


@dataclass(slots=True, eq=False)
class ReaderQueue:
    """What a reader has to do with one queue."""

    id: int
    reader: Reader
    queue: LocalQueue
    shared: bool
    position: int  # consumed up to it
    next: int  # the position that is given next
    arrival: int  # what arrived up to it is not chosen
    reserved_at_s: int
    consumed_messages: int
    consumed_bytes: int

    @property
    def reserved(self) -> int:
        """How many positions are."""
        return self.next - 1 - self.position


@dataclass(slots=True, eq=False)
class Reader:
    id: int
    name: str
    fence: int
    opened_at_s: int
    heard_at: float  # by the loop's clock
    queues: dict[str, ReaderQueue] = field(default_factory=dict)  # by the id of the queue
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    was_warned_about: bool = False


class State(NamedTuple):
    """What a start reads from the disk."""

    readers: list[ReaderRow]
    queues: list[ReaderQueueRow]
    keys: list[tuple[int, int]]


def read_state(db: sqlite3.Connection) -> State:
    return State(reservations.list_readers(db), reservations.list_queues(db), reservations.keys(db))


def id_text(queue: LocalQueue) -> str:
    """By which a pipeline remembers a queue."""
    return guid_text(queue.guid)


def describe(held: ReaderQueue, queue_id: str, *, now: float) -> dict[str, Any]:
    """A queue of a reader as `ListReaders` shows it; `now` by the loop's clock."""
    reader, queue = held.reader, held.queue
    return {
        "reader": reader.name,
        "fence": reader.fence,
        "queue": queue_id,
        "name": queue.name,
        "shared": held.shared,
        "position": held.position,
        "reserved": held.next - 1,
        "messages": held.reserved,
        "ready": max(queue.messages - len(queue.taken), 0),
        "opened_at_s": reader.opened_at_s,
        "quiet_s": round(now - reader.heard_at, 1),
        "reserved_at_s": held.reserved_at_s or None,
        "consumed_messages": held.consumed_messages,
        "consumed_bytes": held.consumed_bytes,
    }
