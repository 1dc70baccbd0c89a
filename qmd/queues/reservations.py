"""Reservations of one queue: the messages that readers of data pipelines have reserved.

A reserved message is in `taken`, with `RESERVED` in the place of its content, so that no other
reader gets it. Several shared readers may reserve the same message; it is counted here how many
have. The positions of the readers are in the database (`storage/tables/reservations.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from qmd.control_protocol.messages import StoredMessage

if TYPE_CHECKING:
    from qmd.queues.local_queue import LocalQueue

#: The entry in `LocalQueue.taken` of a reserved message; its packet is on disk.
RESERVED = StoredMessage(0, 0, b"reserved")


class QueueReservations(dict[int, int]):
    """The reserved messages of a queue: lookup id -> number of readers that have reserved it."""

    __slots__ = ("_queue",)

    def __init__(self, queue: LocalQueue) -> None:
        super().__init__()
        self._queue = queue

    def add(self, lookup_id: int, *, shared: bool) -> bool:
        """Reserve a message for one reader, in memory or on disk.

        Returns False if another reader has the message; a reserved message may be reserved again
        if `shared`.
        """
        queue = self._queue
        holders = self.get(lookup_id, 0)
        if holders and shared:
            self[lookup_id] = holders + 1
            return True
        if lookup_id in queue.taken:
            return False
        if lookup_id in queue.express:
            queue.window.take(lookup_id)
        else:
            queue.window.hold(lookup_id)
        queue.taken[lookup_id] = RESERVED
        self[lookup_id] = 1
        return True

    def add_stored(self, lookup_ids: Sequence[int]) -> list[int]:
        """Reserve messages that are on disk, for a reader that does not share them.

        Returns the reserved ones; a message that another reader has is left out.
        """
        taken = self._queue.taken
        free = [each for each in lookup_ids if each not in taken]
        self._queue.window.hold_all(free)
        taken.update(dict.fromkeys(free, RESERVED))
        self.update(dict.fromkeys(free, 1))
        return free

    def now_stored(self, lookup_id: int) -> None:
        """Change a reserved express message to a stored one, after the commit of its row."""
        queue = self._queue
        message = queue.express[lookup_id]
        queue.express.drop(lookup_id, message.packet, message.expires_at_s)
        queue.window.remove(lookup_id)
        queue.window.hold(lookup_id)

    def release(self, lookup_ids: Sequence[int], *, are_there: bool) -> None:
        """End one reservation of each of these messages.

        A message without further reservations is ready again if `are_there`; otherwise its row
        was already gone.
        """
        queue = self._queue
        alone = [each for each in lookup_ids if self[each] == 1]
        if len(alone) < len(lookup_ids):
            for lookup_id in lookup_ids:
                self[lookup_id] -= 1
        for lookup_id in alone:
            del self[lookup_id]
            del queue.taken[lookup_id]
        queue.returns += len(alone)
        if not are_there:
            queue.window.remove_all(alone)
        elif alone:
            queue.window.leave_on_disk(min(alone), returned=alone)

    def begin_removal(self, lookup_ids: Sequence[int]) -> None:
        """Mark reserved messages as leaving: the open batch deletes them."""
        for lookup_id in lookup_ids:
            del self[lookup_id]
        self._queue.leaving.update(lookup_ids)

    def end_removal(self, lookup_ids: Sequence[int], size: int) -> None:
        """Forget removed messages after the commit; `size` is the bytes of their packets."""
        queue = self._queue
        queue.leaving.difference_update(lookup_ids)
        for lookup_id in lookup_ids:
            del queue.taken[lookup_id]
        queue.window.remove_all(lookup_ids)
        queue.count_out(len(lookup_ids), size)
