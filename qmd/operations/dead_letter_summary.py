"""Summary of dead-letter queues: their messages grouped by class, destination and reason."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from protocol import parse_user_message
from protocol.message_class import MessageClass
from qmd.operations.selection import PAGE_ROWS, destination_of
from qmd.queues.local_queue import LocalQueue
from storage.tables import messages as message_rows
from storage.tables.keys import LOOKUP_MASK

if TYPE_CHECKING:
    import sqlite3

    from qmd.runtime.services import Services

GROUPS_MAX = 10_000  # further groups are counted together


class _Why(NamedTuple):
    """The reason why a message is a dead letter."""

    message_class: int
    destination: str
    reason: str


class _Letter(NamedTuple):
    why: _Why
    lookup_id: int
    bytes: int
    arrived_at_ms: int


class _Group:
    """Messages with the same class, destination and reason."""

    def __init__(self) -> None:
        self.messages = 0
        self.bytes = 0
        self.oldest_at_ms = 1 << 62
        self.newest_at_ms = 0
        self.first_lookup_id = 0

    def add(self, letter: _Letter) -> None:
        """Count a message."""
        self.first_lookup_id = self.first_lookup_id or letter.lookup_id
        self.messages += 1
        self.bytes += letter.bytes
        self.oldest_at_ms = min(self.oldest_at_ms, letter.arrived_at_ms)
        self.newest_at_ms = max(self.newest_at_ms, letter.arrived_at_ms)


async def dead_letter_groups(services: Services, queue: LocalQueue) -> list[dict[str, Any]]:
    """Return the groups of the messages in a queue, the largest first.

    Each is a dictionary with the name and the format name of the queue, the class, destination
    and reason, the number of messages and their bytes, the first and the last arrival in
    milliseconds since 1970, and the first lookup id.
    """
    groups: dict[_Why, _Group] = {}
    others = _Why(0, "", f"of more than {GROUPS_MAX} kinds")
    start: int | None = 0
    while start is not None:
        letters, start = await services.storage.read(partial(_page, queue_id=queue.id, start=start))
        for letter in letters:
            is_new = letter.why not in groups and len(groups) >= GROUPS_MAX
            groups.setdefault(others if is_new else letter.why, _Group()).add(letter)
    return [
        {
            "queue": queue.name,
            "format_name": queue.format_name,
            "class": MessageClass.name_of(why.message_class),
            "destination": why.destination,
            "reason": why.reason,
            "messages": group.messages,
            "bytes": group.bytes,
            "oldest_at_ms": group.oldest_at_ms,
            "newest_at_ms": group.newest_at_ms,
            "first_lookup_id": group.first_lookup_id,
        }
        for why, group in sorted(groups.items(), key=lambda each: -each[1].messages)
    ]


def _page(db: sqlite3.Connection, *, queue_id: int, start: int) -> tuple[list[_Letter], int | None]:
    """Return the messages of one page, and where the next page starts; None: there is no more."""
    rows = message_rows.page(db, queue_id, start, PAGE_ROWS)
    letters: list[_Letter] = []
    for row in rows:
        if not row.is_whole:
            continue
        packet = parse_user_message(row.packet)
        why = _Why(packet.properties.message_class, destination_of(packet), row.reason or "")
        letters.append(_Letter(why, row.key & LOOKUP_MASK, len(row.packet), row.arrived_at_ms))
    return letters, (rows[-1].key & LOOKUP_MASK) + 1 if rows else None
