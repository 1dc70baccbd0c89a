"""Scouts: searches of a queue that wait, and note where to look again.

A search looks through the queue once. After that it looks only at messages that have become ready
meanwhile, so that a search without a result does not read a long queue again for each arrival.
"""

from __future__ import annotations

from collections.abc import Iterable

NOTED_MAX = 1024  # lookup ids; more mean a search through the queue
SKIPPED_MAX = 1024  # groups; the end of another one means a search through the queue


class Scout:
    """The places where a waiting search has to look."""

    __slots__ = ("_noted", "_skipped", "_start")

    def __init__(self) -> None:
        self._noted: set[int] = set()
        self._skipped: dict[str, int] = {}  # groups that other readers own, with a first place
        self._start: int | None = 0  # search from here on; None: only the noted messages

    def note(self, lookup_ids: Iterable[int]) -> None:
        """Note messages that have become ready."""
        if self._start == 0:
            return
        self._noted.update(lookup_ids)
        if len(self._noted) > NOTED_MAX:
            self.search(0)

    def search(self, start: int) -> None:
        """Search the queue from a lookup id on."""
        self._start = start if self._start is None else min(self._start, start)
        if not start:
            self._noted.clear()

    def skip(self, group: str, lookup_id: int) -> None:
        """Note a message that was left out because another reader owns its group."""
        if group in self._skipped or len(self._skipped) < SKIPPED_MAX:
            self._skipped[group] = min(self._skipped.get(group, lookup_id), lookup_id)

    def freed(self, group: str) -> None:
        """Search again from the first message that was left out for this group."""
        if group in self._skipped:
            self.search(self._skipped.pop(group))
        elif len(self._skipped) >= SKIPPED_MAX:
            self.search(0)

    def pending_start(self) -> int | None:
        """Return where to search from, and forget it; None: nowhere."""
        start, self._start = self._start, None
        return start

    def places(self) -> tuple[int | None, list[int]]:
        """Return where to search from (None: nowhere) and the noted messages, which are forgotten.

        Messages that become ready from now on are noted.
        """
        start, noted = self._start, sorted(self._noted)
        self._start = None
        self._noted.clear()
        return start, noted
