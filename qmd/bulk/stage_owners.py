"""The owners of stages: a query belongs to the queues to which its rows are addressed.

A client that stages, publishes or discards rows of a query needs the right to write to all queues
of its staged pieces, of pieces that are being stored, and of its publications.  The queues of a
piece that arrived in this run are kept in memory; those of others are read from the disk.  A
publication is stored with its queues and its owner.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from qmd.access.demands import EVERYTHING, TO_SEND, Thing
from qmd.access.rights import Rights
from qmd.errors import Refusal
from storage.tables import stages

if TYPE_CHECKING:
    from qmd.access.things import ThingFinder
    from qmd.control_protocol.messages import NewMessage
    from qmd.runtime.services import Services
    from storage import Storage
    from storage.tables.stages import Publication, StageRow

THINGS_KEPT_MAX = 16  # of a piece; if it has more queues, they are read again
#: Queues of a publication.  If it has more, clients need the right to write to all queues.
QUEUES_KEPT_MAX = 100
MANY = "*"
NO_PIECE = -1  # not the id of any piece
OF_QUERY = "all queues of the messages of the query"

Things = frozenset[Thing]


class KnownEpoch(NamedTuple):
    """The known publications of a query, with regard to one epoch."""

    is_published: bool
    before: Publication | None  # the publication of the epoch, unless it was long ago
    publications: list[Publication]  # that one alone, or all known ones
    newest: int | None  # the newest published epoch


async def known_epoch(storage: Storage, query: str, epoch: int) -> KnownEpoch:
    """Return whether an epoch of a query is published, with its publication."""
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
    """The queues of staged pieces, by the id of the piece."""

    def __init__(
        self,
        services: Services,
        finder: ThingFinder,
        read: Callable[[StageRow], Awaitable[list[NewMessage]]],
    ) -> None:
        """`read` returns the rows of a piece; of a deleted piece, an empty list."""
        self._services = services
        self._finder = finder
        self._read = read
        self._known: dict[int, Things] = {}
        self._arriving: dict[str, list[Things]] = {}  # by query: of pieces that are being stored

    @contextlib.contextmanager
    def arriving(self, query: str, rows: Iterable[NewMessage]) -> Iterator[Things]:
        """Count the queues of rows while these are being stored; yield these queues."""
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
        """Keep the queues of a piece in memory, unless they are too many."""
        if len(things) <= THINGS_KEPT_MAX:
            self._known[piece_id] = things

    def forget(self, piece_id: int) -> None:
        """Drop the queues of a piece that was removed."""
        self._known.pop(piece_id, None)

    async def check(
        self,
        rights: Rights,
        verb: str,
        query: str,
        pieces: Callable[[], list[StageRow]],
        checked: set[int],
    ) -> bool:
        """Raise Refusal if the client may not write to all queues of the query.

        These are the queues of `pieces()`, of pieces that are being stored, and of publications.
        `checked` has the ids of the pieces that were checked for this request.  Return whether
        other tasks may have run before the last check; none runs between that check and the return.
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
                rights.require_unnamed(TO_SEND, await self.things(piece), verb, OF_QUERY)
                checked.add(piece.id)
        for arriving in self._arriving.get(query, ()):
            rights.require_unnamed(TO_SEND, arriving, verb, OF_QUERY)
        return has_waited

    async def _check_published(self, rights: Rights, verb: str, query: str) -> None:
        published = await self._services.storage.read(partial(stages.published, query=query))
        for queues, owner in {(each.queues, each.owner) for each in published}:
            if queues == MANY or (not queues and owner != rights.owner):
                rights.require_unnamed(TO_SEND, (EVERYTHING,), verb, OF_QUERY)
            things = [Thing(key, key) for key in queues.split("\n") if key]
            rights.require_unnamed(TO_SEND, things, verb, OF_QUERY)

    async def check_repeated(
        self,
        rights: Rights,
        query: str,
        epoch: int,
        done: Sequence[Publication],
        pieces: Sequence[StageRow],
    ) -> None:
        """Raise Refusal if another client has published the epoch, and to other queues.

        `done` are the known publications, `pieces` the rows that are to be published now.  Without
        the refusal these rows would be lost without a notice.
        """
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
                    "Nothing was published. Two pipelines need queries of different names; `qmd"
                    " remote token list` lists the possible clients.",
                )

    async def things(self, piece: StageRow) -> Things:
        """Return the queues of a piece."""
        things = self._known.get(piece.id)
        if things is None:
            things = self._things_of(await self._read(piece))
            self.keep(piece.id, things)
        return things

    async def queues_of(self, pieces: Iterable[StageRow]) -> str:
        """Return the queues of pieces in the form in which a publication is stored."""
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
