"""The messages whose rows have vanished, by the log of events.

A difference of the tally shows how many rows are missing, and the sum of their keys.  The log shows
which messages arrived in the queue and did not leave it.  If those without a row are as many, and
their keys have that sum, they are the missing ones; otherwise the log does not go back far enough.
"""

import sqlite3
from collections.abc import Iterator
from typing import NamedTuple

from storage.tables import events
from storage.tables.events import ARRIVALS, Event
from storage.tables.keys import LOOKUP_BITS, queue_range
from storage.tables.tally import Difference

#: Kinds of events that do not end the stay of a message in a queue.
_STAYS = frozenset(
    ("sent", "accepted", "imported", "relayed", "stored", "transmitted", "retransmitted",
     "out_of_order", "duplicate", "aborted", "acknowledged", "reported", "unacknowledged",
     "journaled", "journal_full", "dead_lettered", "delayed")
)  # fmt: skip
_BLOCKS = 500  # read at a time
_MASK = (1 << 32) - 1
_NAMES = {
    "message": ("queue", "name"),
    "outgoing": ("outgoing_queue", "destination"),
    "awaiting": ("outgoing_queue", "destination"),
}
_WITH_PLACES = frozenset(("message", "outgoing"))  # their keys are the places of messages


class VanishedMessage(NamedTuple):
    source: bytes
    number: int
    place: int  # its lookup id


class Vanished(NamedTuple):
    """Rows that a table lacks, or has although nothing has inserted them."""

    queue: str  # as events name it; "" for a table that is counted as a whole
    difference: Difference
    messages: list[VanishedMessage]  # those that are missing; empty if the log does not show them


def explain(db: sqlite3.Connection, differences: list[Difference]) -> list[Vanished]:
    """Return each difference with the name of its queue, and the messages as far as known."""
    found = []
    for each in differences:
        queue = ""
        if each.table in _NAMES:
            table, name = _NAMES[each.table]
            row = db.execute(
                f"SELECT {name} FROM {table} WHERE id = ?", (each.queue_id,)
            ).fetchone()
            queue = row[0] if row else ""
        is_searched = queue and each.rows < 0 and each.table in _WITH_PLACES
        messages = _missing(db, queue, each) if is_searched else []
        found.append(Vanished(queue, each, messages))
    return found


def _missing(db: sqlite3.Connection, queue: str, difference: Difference) -> list[VanishedMessage]:
    stays: dict[tuple[bytes, int], int] = {}
    for event in _events(db):
        if event.kind in ARRIVALS and queue == (event.to_queue or event.queue):
            if event.delivery != "express":
                pairs = zip(event.numbers, event.places, strict=False)
                stays |= {(event.source, number): place for number, place in pairs}
        elif event.queue == queue and event.kind not in _STAYS:
            for number in event.numbers:
                stays.pop((event.source, number), None)
    base = difference.queue_id << LOOKUP_BITS
    present = {
        key
        for (key,) in db.execute(
            f"SELECT key FROM {difference.table} WHERE key BETWEEN ? AND ?",
            queue_range(difference.queue_id),
        )
    }
    missing = [
        VanishedMessage(*message, place)
        for message, place in stays.items()
        if base | place not in present
    ]
    lacks = sum(base | each.place for each in missing) & _MASK
    is_proved = len(missing) == -difference.rows and lacks == -difference.digest & _MASK
    return missing if is_proved else []


def _events(db: sqlite3.Connection) -> Iterator[Event]:
    after = 0
    while blocks := events.page(db, after, _BLOCKS):
        for block in blocks:
            yield from block.events
        after = blocks[-1].id
