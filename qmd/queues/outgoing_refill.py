"""Refill: reads further stored messages into the windows of outgoing queues."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from qmd.queues.outgoing_queue import OutgoingQueue
from storage.tables import outgoing as outgoing_rows
from storage.tables.keys import LOOKUP_MASK
from storage.tables.outgoing import OutgoingRow

if TYPE_CHECKING:
    from collections.abc import Callable

    from qmd.message.shared_packet import Parts
    from qmd.queues.quarantine import Damage
    from qmd.runtime.services import Services

REFILL_ROWS = 512
REFILL_BYTES = 4 * 1024 * 1024


class OutgoingRefill:
    """Reads on from the end of a queue's window."""

    def __init__(self, services: Services, damage: Damage, parts: Parts) -> None:
        self._services = services
        self._damage = damage
        self._parts = parts

    def connect(self, release: Callable[[], None]) -> None:
        """Set the function that adds pending releases to the open batch."""
        self._release = release

    def refill(self, queue: OutgoingQueue) -> None:
        """Read the next stored messages of a queue into its window, after the open batch."""
        self._release()  # otherwise the read would return acknowledged messages again
        start = queue.window.begin_refill()
        self._services.storage.batch.read_after(
            lambda db: outgoing_rows.page(db, queue.id, start, REFILL_ROWS, REFILL_BYTES),
            partial(self._refilled, queue),
        )

    def _refilled(self, queue: OutgoingQueue, rows: list[OutgoingRow]) -> None:
        entries = [
            (
                row.key & LOOKUP_MASK,
                (
                    row.packet
                    if row.part_id is None
                    else self._parts.shared(row.packet, row.part_id),
                    row.expires_at_s,
                ),
                len(row.packet),
            )
            for row in self._damage.whole_outgoing(queue, rows)
        ]
        size = sum(len(row.packet) for row in rows)
        queue.window.refill(entries, complete=len(rows) < REFILL_ROWS and size < REFILL_BYTES)
        queue.link.wake()
