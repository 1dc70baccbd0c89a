"""What is in dead-letter queues, grouped by why: class, destination and reason."""

from __future__ import annotations

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

GROUPS_MAX = 10_000  # the rest is counted together


class _Why(NamedTuple):
    message_class: int
    destination: str
    reason: str


class _Group:
    """Messages that ended in one way."""

    def __init__(self) -> None:
        self.messages = 0
        self.bytes = 0
        self.oldest_at_ms = 1 << 62
        self.newest_at_ms = 0
        self.first_lookup_id = 0


class DeadLetterSummary:
    """Looks through queues; page by page, and on the reader's thread."""

    def __init__(self, services: Services) -> None:
        self._services = services

    async def groups(self, queue: LocalQueue) -> list[dict[str, Any]]:
        """The largest first."""
        groups: dict[_Why, _Group] = {}
        others = _Why(0, "", f"of more than {GROUPS_MAX} kinds")
        start = 0

        def look(db: sqlite3.Connection) -> int | None:
            rows = message_rows.page(db, queue.id, start, PAGE_ROWS)
            for row in rows:
                if not row.is_whole:
                    continue
                packet = parse_user_message(row.packet)
                why = _Why(
                    packet.properties.message_class, destination_of(packet), row.reason or ""
                )
                if why not in groups and len(groups) >= GROUPS_MAX:
                    why = others
                group = groups.setdefault(why, _Group())
                group.first_lookup_id = group.first_lookup_id or row.key & LOOKUP_MASK
                group.messages += 1
                group.bytes += len(row.packet)
                group.oldest_at_ms = min(group.oldest_at_ms, row.arrived_at_ms)
                group.newest_at_ms = max(group.newest_at_ms, row.arrived_at_ms)
            return (rows[-1].key & LOOKUP_MASK) + 1 if rows else None

        while (following := await self._services.storage.read(look)) is not None:
            start = following
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
