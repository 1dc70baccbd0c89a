"""Notes about reserved messages that were read: to consume them, they are not read again.

    read ──► note (source, numbers, sizes of the messages at some positions) ──► consume ──► gone

A message at a position does not change as long as it is reserved, and another one never gets that
position.  So its consumption needs only a few fields, which are noted while its packet is in memory
anyway.  Notes exist only of pages without exceptions: no message is missing, none may request an
acknowledgment, all are of one source, and all were intact.  All other messages are read again.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from operator import sub
from typing import NamedTuple

from qmd.core.number_set import Run
from qmd.core.packet_fields import sources_and_numbers
from storage.tables.ranges import QuickPage
from storage.tables.runs import runs_of

PIECE_MESSAGES = 8192  # consumed in one commit, for which all other changes wait
PIECE_BYTES = 16 * 1024 * 1024
#: Messages of one queue of a reader; 8 bytes for each, or a few for all.
NOTED_MAX = 1_000_000
_FEW = 1024


class Note(NamedTuple):
    """The fields of the messages at successive positions that their consumption needs."""

    after: int  # the position before the first one
    end: int
    runs: list[Run]  # of their lookup ids
    source: bytes
    numbers: Sequence[int]  # of the messages
    sizes: Sequence[int]  # of their packets
    size: int  # of all of them

    @property
    def messages(self) -> int:
        return self.end - self.after


class ReadNotes:
    """The notes about one queue of a reader, by the position before each."""

    def __init__(self) -> None:
        self._notes: dict[int, Note] = {}
        self._messages = 0

    def add(self, notes: Sequence[Note]) -> None:
        """Add notes; the oldest go if there are too many."""
        for note in notes:
            self._remove(note.after)
            self._notes[note.after] = note
            self._messages += note.messages
        while self._messages > NOTED_MAX:
            self._remove(next(iter(self._notes)))

    def take(self, after: int, until: int) -> list[Note]:
        """Remove and return notes about the messages behind position `after` up to `until`.

        Each begins where the one before it ends; together they fit into one piece.  There are none
        if the messages of these notes are so few that it is better to read others with them.
        """
        found: list[Note] = []
        messages = size = 0
        while (note := self._notes.get(after)) is not None and note.end <= until:
            messages, size = messages + note.messages, size + note.size
            if found and (messages > PIECE_MESSAGES or size > PIECE_BYTES):
                return found
            found.append(note)
            self._remove(after)
            after = note.end
        return found if after == until or messages >= _FEW else []

    def drop_until(self, position: int) -> None:
        """Remove the notes about messages up to a position: they were consumed."""
        for after in [after for after in self._notes if after < position]:
            self._remove(after)

    def clear(self) -> None:
        self._notes.clear()
        self._messages = 0

    def _remove(self, after: int) -> Note | None:
        note = self._notes.pop(after, None)
        if note is not None:
            self._messages -= note.messages
        return note


def notes_of(page: QuickPage, messages_max: int, bytes_max: int) -> list[Note]:
    """Return notes about the messages of a page; each has as many as fit into the limits.

    There are none if the page is an exception (see above).
    """
    positions, packets, offsets = page.positions, page.packets, page.offsets.tolist()
    count = len(positions)
    if positions[-1] - positions[0] + 1 != count:
        return []
    fields = sources_and_numbers(packets, offsets[:-1])
    if fields is None:
        return []
    sources, numbers = fields
    if sources.count(sources[0]) != count:
        return []
    sizes = array("I", map(sub, offsets[1:], offsets))
    found: list[Note] = []
    first = 0
    while first < count:
        end = min(first + messages_max, count)
        while end > first + 1 and offsets[end] - offsets[first] > bytes_max:
            end = first + (end - first) // 2
        found.append(
            Note(
                positions[first] - 1,
                positions[end - 1],
                [(run.first, run.last) for run in runs_of(page.lookup_ids[first:end])],
                sources[0],
                _short(numbers[first:end]),
                sizes[first:end],
                offsets[end] - offsets[first],
            )
        )
        first = end
    return found


def _short(numbers: Sequence[int]) -> Sequence[int]:
    """Return numbers in less memory."""
    successive = range(numbers[0], numbers[0] + len(numbers))
    return successive if numbers == tuple(successive) else array("I", numbers)
