"""The walk of a trigger through its queue: each message once, also those that arrive in front.

The lookup ids of one level of priority grow with time, so one position for each level is
sufficient: a page begins with the first message of the queue that is behind the position of its
level.  So a message of a higher priority comes next, wherever the walk is, as with MSMQ's triggers.
"""

from __future__ import annotations

from itertools import takewhile

from qmd.client import QueueManager
from qmd.client.message import Message
from storage.tables.keys import ARRIVAL_BITS, LEVEL_MAX

PAGE_MESSAGES = 16


class Scanner:
    """The messages of a queue that the walk has not passed."""

    def __init__(self, qm: QueueManager, queue: str) -> None:
        self._qm = qm
        self._queue = queue
        self._seen: dict[int, int] = {}  # level -> the last lookup id

    async def page(self, limit: int = PAGE_MESSAGES) -> list[Message]:
        """Return the next messages, those of the highest priority first.  Raises ClientError."""
        start = 0
        for _ in range(LEVEL_MAX + 1):
            found = await self._qm.peek(self._queue, start, 1)
            if not found or self._is_new(found[0]):
                break
            start = self._seen[_level(found[0].lookup_id)] + 1
        if found and limit > 1:
            found = await self._qm.peek(self._queue, found[0].lookup_id, limit)
        return list(takewhile(self._is_new, found))

    def passed(self, message: Message) -> None:
        """Let the walk go on behind a message of the page."""
        self._seen[_level(message.lookup_id)] = message.lookup_id

    async def wait(self, wait_s: float) -> None:
        """Return after a time, or as soon as a message arrives behind all others."""
        await self._qm.peek(
            self._queue, max(self._seen.values(), default=-1) + 1, 1, timeout_s=wait_s
        )

    def begin_again(self) -> None:
        """Let the next page be the first one of the queue."""
        self._seen.clear()

    def _is_new(self, message: Message) -> bool:
        return message.lookup_id > self._seen.get(_level(message.lookup_id), -1)


def _level(lookup_id: int) -> int:
    return lookup_id >> ARRIVAL_BITS
