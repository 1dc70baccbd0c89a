"""Messages without a sequence that were here before.  [MS-MQQB] 3.1.1.3, 3.1.5.8.1

Their sources send again what they do not know to be acknowledged: its number says that it came.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from qmd.manager import QueueManager


class KnownMessages:
    """Source and number of each, and when it was seen last, in seconds of the loop's clock."""

    def __init__(self, manager: QueueManager) -> None:
        self._manager = manager
        delivery = manager.settings.delivery
        self._entries_max = delivery.message_id_history_entries
        self._age_max_s = delivery.message_id_history_age_s
        self._seen: OrderedDict[tuple[bytes, int], float] = OrderedDict()

    def restore(self, source: bytes, number: int, at_s: float) -> None:
        self._seen[source, number] = at_s

    def has(self, source: bytes, number: int) -> bool:
        return (source, number) in self._seen

    def is_duplicate(self, source: bytes, number: int, now: float) -> bool:
        """[MS-MQQB] 3.1.5.8.1; a duplicate keeps its entry young."""
        key = (source, number)
        if key not in self._seen:
            return False
        self._seen[key] = now
        self._seen.move_to_end(key)
        return True

    def add(self, source: bytes, number: int, now: float) -> None:
        """It was taken, or refused for good, with the open batch."""
        seen = self._seen
        seen[source, number] = now
        if len(seen) > self._entries_max:
            seen.popitem(last=False)
        manager = self._manager
        manager.storage.batch.remember_message_id(source, number, manager.clock.now_s)

    def forget_old(self, now: float) -> None:
        """[MS-MQQB] 3.1.6.7: entries that are old enough are dropped."""
        seen = self._seen
        while seen and next(iter(seen.values())) < now - self._age_max_s:
            seen.popitem(last=False)
