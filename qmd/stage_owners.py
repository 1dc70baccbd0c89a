"""Whose stages are: a query belongs to the queues that its rows are for.

Who stages, publishes or discards rows of a query needs the right to write to all queues of what is
staged for it, or is on its way to be.  What queues these are is known of pieces that came in this
run, and read from the disk of others, when somebody asks who has not all rights.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from qmd.rights import WRITE, Rights, things_of_message

if TYPE_CHECKING:
    from qmd.frames import NewMessage
    from qmd.manager import QueueManager
    from qmd.rights import Thing
    from storage.stages import StageRow

THINGS_KEPT_MAX = 16  # of a piece; the queues of one that has more are read again

Things = frozenset["Thing"]


class StageOwners:
    """The queues of pieces, by the ids of these."""

    def __init__(
        self,
        manager: QueueManager,
        read: Callable[[StageRow], Awaitable[list[NewMessage]]],
    ) -> None:
        """`read` gives the rows of a piece, none of one that is gone."""
        self._manager = manager
        self._read = read
        self._known: dict[int, Things] = {}
        self._arriving: dict[str, list[Things]] = {}  # by query: on their way to the disk

    @contextlib.contextmanager
    def arriving(self, query: str, rows: Iterable[NewMessage]) -> Iterator[Things]:
        """Rows on their way to the disk count from now on; their queues."""
        things = self._things_of(rows)
        arriving = self._arriving.setdefault(query, [])
        arriving.append(things)
        try:
            yield things
        finally:
            arriving.remove(things)
            if not arriving:
                self._arriving.pop(query, None)

    def keep(self, piece_id: int, things: Things) -> None:
        if len(things) <= THINGS_KEPT_MAX:
            self._known[piece_id] = things

    def forget(self, piece_id: int) -> None:
        self._known.pop(piece_id, None)

    async def check(
        self, rights: Rights, verb: str, query: str, pieces: Callable[[], list[StageRow]]
    ) -> None:
        """Raises Refusal where one of the pieces, or of what arrives for the query, has a queue
        that the client may not write to.

        Returns in the very turn in which none of `pieces()` was left to be looked at.
        """
        if rights.are_all:
            return
        checked: set[int] = set()
        while unchecked := [piece for piece in pieces() if piece.id not in checked]:
            for piece in unchecked:
                things = self._known.get(piece.id)
                if things is None:
                    things = self._things_of(await self._read(piece))
                    self.keep(piece.id, things)
                rights.require(WRITE, things, verb)
                checked.add(piece.id)
        for arriving in self._arriving.get(query, ()):
            rights.require(WRITE, arriving, verb)

    def _things_of(self, rows: Iterable[NewMessage]) -> Things:
        examples = {
            (row.destination, row.dead_letter_queue, row.admin_queue, row.report_queue): row
            for row in rows
        }
        return frozenset(
            thing for row in examples.values() for thing in things_of_message(self._manager, row)
        )
