"""Whose stages are: a query belongs to the queues that its rows are for.

Who stages, publishes or discards rows of a query needs the right to write to all queues of what is
staged for it, is on its way to be, or was published.  What queues these are is known of pieces that
came in this run, and read from the disk of others; a publication bears them, and its owner.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from qmd.access.rights import EVERYTHING, WRITE, Rights, Thing
from qmd.errors import Refusal
from storage.tables import stages

if TYPE_CHECKING:
    from qmd.access.things import ThingFinder
    from qmd.control_protocol.messages import NewMessage
    from qmd.runtime.services import Services
    from storage import Storage
    from storage.tables.stages import Publication, StageRow

THINGS_KEPT_MAX = 16  # of a piece; the queues of one that has more are read again
QUEUES_KEPT_MAX = 100  # of a publication; one that has more is for those who may write to all
MANY = "*"
NO_PIECE = -1  # no piece has it as its id

Things = frozenset[Thing]


class KnownEpoch(NamedTuple):
    """What is known of an epoch of a query."""

    is_published: bool
    before: Publication | None  # when that was, unless it is long ago
    publications: list[Publication]  # that one alone, or all that are known
    newest: int | None  # of the epochs that are published


async def known_epoch(storage: Storage, query: str, epoch: int) -> KnownEpoch:
    published = await storage.read(partial(stages.published, query=query))
    before = next((each for each in published if each.epoch == epoch), None)
    is_long_ago = len(published) >= stages.EPOCHS_KEPT and epoch < published[-1].epoch
    return KnownEpoch(
        before is not None or is_long_ago,
        before,
        published if before is None else [before],
        published[0].epoch if published else None,
    )


class StageOwners:
    """The queues of pieces, by the ids of these."""

    def __init__(
        self,
        services: Services,
        finder: ThingFinder,
        read: Callable[[StageRow], Awaitable[list[NewMessage]]],
    ) -> None:
        """`read` gives the rows of a piece, none of one that is gone."""
        self._services = services
        self._finder = finder
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
        self,
        rights: Rights,
        verb: str,
        query: str,
        pieces: Callable[[], list[StageRow]],
        checked: set[int],
    ) -> bool:
        """Raises Refusal where one of the pieces, of what arrives for the query, or of what was
        published, has a queue that the client may not write to.

        `checked`: the ids of pieces that were looked at for this request.  Returns in the very turn
        in which none of `pieces()` was left to be looked at; whether there were turns between.
        """
        if rights.are_all:
            return False
        has_waited = not checked
        if not checked:
            checked.add(NO_PIECE)
            await self._check_published(rights, verb, query)
        while unchecked := [piece for piece in pieces() if piece.id not in checked]:
            has_waited = True
            for piece in unchecked:
                rights.require(WRITE, await self.things(piece), verb)
                checked.add(piece.id)
        for arriving in self._arriving.get(query, ()):
            rights.require(WRITE, arriving, verb)
        return has_waited

    async def _check_published(self, rights: Rights, verb: str, query: str) -> None:
        published = await self._services.storage.read(partial(stages.published, query=query))
        for queues, owner in {(each.queues, each.owner) for each in published}:
            if queues == MANY or (not queues and owner != rights.owner):
                rights.require(WRITE, (EVERYTHING,), verb)
            things = [Thing(key, key) for key in queues.split("\n") if key]
            rights.require(WRITE, things, verb)

    async def check_repeated(
        self,
        rights: Rights,
        query: str,
        epoch: int,
        done: Sequence[Publication],
        pieces: Sequence[StageRow],
    ) -> None:
        """Raises Refusal where an epoch that is published already, as `done` says, was another
        client's, and not what is to be published now: that would be lost without a word."""
        published = "\n".join(each.queues for each in done).split("\n")
        if all(each.owner == rights.owner for each in done) or MANY in published:
            return
        for piece in pieces:
            missing = [each for each in await self.things(piece) if each.key not in published]
            if missing:
                raise Refusal(
                    "epoch_of_another",
                    f"epoch {epoch} of {query} was published by another client, and not to"
                    f" {missing[0].shown}",
                    "Nothing was published. Two pipelines need queries of different names; see"
                    " `qmd remote token list` for who it may have been.",
                )

    async def things(self, piece: StageRow) -> Things:
        """The queues of a piece."""
        things = self._known.get(piece.id)
        if things is None:
            things = self._things_of(await self._read(piece))
            self.keep(piece.id, things)
        return things

    async def queues_of(self, pieces: Iterable[StageRow]) -> str:
        """The queues of pieces as a publication bears them."""
        keys: set[str] = set()
        for piece in pieces:
            keys |= {thing.key or MANY for thing in await self.things(piece)}
            if len(keys) > QUEUES_KEPT_MAX or MANY in keys:
                return MANY
        return "\n".join(sorted(keys))

    def _things_of(self, rows: Iterable[NewMessage]) -> Things:
        examples = {
            (row.destination, row.dead_letter_queue, row.admin_queue, row.report_queue): row
            for row in rows
        }
        return frozenset(
            thing for row in examples.values() for thing in self._finder.of_message(row)
        )
