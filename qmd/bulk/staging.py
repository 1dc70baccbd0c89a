"""Rows that are staged, and published as one: all of them once, or none.

    stage ──► (commit: a piece) ──► answer                     executors, any number of attempts
    publish ──► check all ──► (commit: messages, the epoch, no stages) ──► answer         the driver

docs/decisions/0019 says why it takes two steps.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import structlog

from qmd.access.rights import ALL_RIGHTS, EVERYTHING, WRITE, Rights
from qmd.bulk.publish import NotAlike, Prepared
from qmd.bulk.stage_owners import StageOwners, known_epoch
from qmd.bulk.stage_rows import check_row, of_row
from qmd.config.units import format_size
from qmd.control_protocol.messages import NewMessage
from qmd.directory.resolver import MustAsk, Resolution
from qmd.errors import Refusal
from storage.tables import stages
from storage.tables.stages import StageRow

if TYPE_CHECKING:
    import sqlite3

    from qmd.access.things import ThingFinder
    from qmd.control_protocol.bulk import Attempt
    from qmd.directory.resolver import Resolver
    from qmd.naming.destinations import Destinations
    from qmd.operations.send import MessageSender
    from qmd.operations.send_checks import Chosen
    from qmd.queues.quotas import Admission
    from qmd.queues.usage import Usage
    from qmd.runtime.services import Services

log = structlog.get_logger()

Value = dict[str, Any]

NUMBERS_TRIES = 6  # each time for twice as many

_decoder = msgspec.msgpack.Decoder(list[NewMessage])
_row_decoder = msgspec.msgpack.Decoder(list[tuple[Any, ...]])
_encoder = msgspec.msgpack.Encoder()


class _Place(NamedTuple):
    """Which attempt rows belong to."""

    query: str
    epoch: int
    part: int
    attempt: str


class Staging:
    """All stages of this queue manager."""

    def __init__(
        self,
        services: Services,
        admission: Admission,
        resolver: Resolver,
        destinations: Destinations,
        message_sender: MessageSender,
        things: ThingFinder,
        usage: Usage,
        prepare: Callable[[], Prepared],
    ) -> None:
        self._services = services
        self._admission = admission
        self._resolver = resolver
        self._destinations = destinations
        self._message_sender = message_sender
        self._prepare = prepare
        self._usage = usage
        self._pieces: dict[_Place, dict[int, StageRow]] = {}  # by the number of their first row
        self._publishing: dict[str, asyncio.Lock] = {}
        self._owners = StageOwners(services, things, self._rows)
        self.bytes = 0

    def restore(self, rows: Iterable[StageRow]) -> None:
        for row in rows:
            self._add(row)

    # Staging.

    async def stage(
        self,
        query: str,
        epoch: int,
        part: int,
        attempt: str,
        first_row: int,
        rows: list[NewMessage],
        rights: Rights = ALL_RIGHTS,
    ) -> Value:
        """What the request `Stage` is answered with."""
        if self._services.lifecycle.stopping:
            raise Refusal("stopping", "this queue manager is stopping", "Try again in a moment.")
        ways: dict[tuple[str, int], int] = {}  # and the first row that goes this way
        for at, row in enumerate(rows, first_row):
            ways.setdefault((row.destination, row.delivery), at)
            try:
                check_row(row)
            except Refusal as refusal:
                raise of_row(at, refusal) from refusal
        await self._check_ways(query, epoch, [(at, rows[at - first_row]) for at in ways.values()])
        await self._owners.check(rights, "stage", query, partial(self._of_query, query), set())
        place = _Place(query, epoch, part, attempt)
        self._check_count(place, first_row + len(rows))
        data = _encoder.encode(rows)
        limit = self._services.settings.pipeline.staged_bytes_max
        if self.bytes + len(data) > limit:
            raise Refusal(
                "stages_full",
                f"{self.bytes} of {limit} bytes are staged, and {len(data)} more are needed",
                "Write smaller batches, remove old stages (qmd stage discard), or set"
                " staged_bytes_max in the section [pipeline] of the configuration higher.",
            )
        full = self._admission.is_full(len(data), messages=0)
        if full is not None:
            raise full
        if rows:
            with self._owners.arriving(query, rows) as things:
                piece = await self._store(place, first_row, len(rows), data)
            self._forget_piece(place, first_row)
            self._owners.keep(piece.id, things)
            self._add(piece)
        pieces = self._pieces.get(place, {}).values()
        return {
            "rows": sum(piece.row_count for piece in pieces),
            "bytes": sum(piece.bytes for piece in pieces),
        }

    async def _store(self, place: _Place, first_row: int, row_count: int, data: bytes) -> StageRow:
        at_s = int(self._services.environment.time())
        # As with messages, the books are right before the disk has it.
        self.bytes += len(data)
        self._usage.grow(len(data))
        try:
            add = partial(
                stages.add,
                **place._asdict(),
                first_row=first_row,
                row_count=row_count,
                at_s=at_s,
                data=data,
            )
            id_ = await asyncio.shield(self._services.storage.batch.run(add))
        finally:
            self.bytes -= len(data)
            self._usage.shrink(len(data))
        return StageRow(id_, *place, first_row, row_count, at_s, len(data))

    async def _check_ways(self, query: str, epoch: int, rows: list[tuple[int, NewMessage]]) -> None:
        """Raises Refusal for what could not be published now: told while there is little work to
        be done again.  An epoch that was published is not, whatever became of its queues since."""
        for at, row in rows:
            try:
                self._message_sender.checks.check_here(row)
            except Refusal as refusal:
                if (await known_epoch(self._services.storage, query, epoch)).is_published:
                    return
                raise of_row(at, refusal) from refusal

    def _check_count(self, place: _Place, rows: int) -> None:
        """Raises Refusal as soon as a batch has more rows than can be published: now, and not
        when all of its work is done.  Of attempts of one partition only one is published."""
        largest = {place.part: rows}
        for other, pieces in self._pieces.items():
            if (other.query, other.epoch) == (place.query, place.epoch):
                count = sum(piece.row_count for piece in pieces.values())
                largest[other.part] = max(largest.get(other.part, 0), count)
        self._check_limit(sum(largest.values()))

    def _check_limit(self, rows: int) -> None:
        limit = self._services.settings.pipeline.published_rows_max
        if rows > limit:
            raise Refusal(
                "publication_too_large",
                f"{rows} messages or more are to be published at once; {limit} are allowed",
                "Write smaller batches (of a stream: maxMessagesPerTrigger; of a table: parts of"
                " it, each a job), or set published_rows_max in the section [pipeline] of the"
                " configuration higher: all of them are in memory and in one commit.",
            )

    # Publishing.

    async def publish(
        self, query: str, epoch: int, attempts: list[Attempt], rights: Rights = ALL_RIGHTS
    ) -> Value:
        """What the request `Publish` is answered with."""
        lock = self._publishing.setdefault(query, asyncio.Lock())
        try:
            async with lock:
                return await self._publish(query, epoch, attempts, rights)
        finally:
            if not lock.locked() and self._publishing.get(query) is lock:
                del self._publishing[query]

    async def _publish(
        self, query: str, epoch: int, attempts: list[Attempt], rights: Rights
    ) -> Value:
        of_query = partial(self._of_query, query)
        check_owner = partial(self._owners.check, rights, "publish", query, of_query, set())
        await check_owner()
        known = await known_epoch(self._services.storage, query, epoch)
        if known.is_published:
            staged = [piece for each in attempts for piece in self._of_attempt(query, epoch, each)]
            await self._owners.check_repeated(rights, query, epoch, known.publications, staged)
            await self._remove(self._of_epochs(query, epoch))
            return {
                "published": False,
                "messages": 0 if known.before is None else known.before.messages,
                "at_ms": 0 if known.before is None else known.before.at_ms,
            }
        if known.newest is not None and epoch < known.newest:
            raise Refusal(
                "epoch_out_of_order",
                f"epoch {known.newest} of {query} is published, and {epoch} comes after it",
                "Publish the epochs of a query in ascending order, or give each its own name.",
            )
        pieces = self._chosen(query, epoch, attempts)
        queues = await self._owners.queues_of(pieces)
        row_count = sum(piece.row_count for piece in pieces)
        self._check_limit(row_count)  # it may have been set lower since
        try:
            prepared = self._prepare()
            for piece in pieces:
                await prepared.prepare(_row_decoder.decode(await self._data(piece)))
            await self._services.ids.ensure(row_count)
            while await check_owner():  # of what has come meanwhile
                await self._services.ids.ensure(row_count)
            done = self._commit(query, epoch, row_count, prepared.take_over, queues, rights.owner)
        except NotAlike:
            messages: list[NewMessage] = []
            for piece in pieces:  # one after the other, because others want to be served meanwhile
                messages += _decoder.decode(await self._data(piece))
            await self._services.ids.ensure(row_count)
            ways = await self._ways(messages)
            while await check_owner():
                ways = await self._ways(messages)
            take_over = partial(self._message_sender.take_over, messages, ways, b"", _ignore)
            done = self._commit(query, epoch, row_count, take_over, queues, rights.owner)
        at_ms = await asyncio.shield(done)
        log.info("published", query=query, epoch=epoch, messages=row_count)
        return {"published": True, "messages": row_count, "at_ms": at_ms}

    async def _data(self, piece: StageRow) -> bytes:
        """Raises Refusal for a piece that was discarded meanwhile."""
        found = await self._services.storage.read(partial(stages.data, ids=[piece.id]))
        if not found:
            raise Refusal(
                "stage_incomplete",
                f"attempt {piece.attempt} of partition {piece.part} of {piece.query}, epoch"
                f" {piece.epoch}, was discarded while it was to be published",
                "Nothing was published: write the batch again.",
            )
        return found[0]

    async def _rows(self, piece: StageRow) -> list[NewMessage]:
        """The rows of a piece; none of one that is gone."""
        found = await self._services.storage.read(partial(stages.data, ids=[piece.id]))
        return [row for data in found for row in _decoder.decode(data)]

    def _commit(
        self,
        query: str,
        epoch: int,
        row_count: int,
        take_over: Callable[[], None],
        queues: str,
        owner: str,
    ) -> asyncio.Future[int]:
        """Messages, the epoch and no stages, in one batch; when that was, once it is durable.

        Whatever `take_over` raises is raised, and nothing was done then.
        """
        staged = self._of_epochs(query, epoch)
        at_ms = int(self._services.environment.time() * 1000)
        batch = self._services.storage.batch
        take_over()
        assert batch is self._services.storage.batch

        def publish(db: sqlite3.Connection) -> int:
            stages.publish(
                db,
                query=query,
                publication=stages.Publication(epoch, row_count, at_ms, queues, owner),
                ids=[piece.id for piece in staged],
            )
            return at_ms

        done = batch.run(publish)
        batch.when_durable(partial(self._forget, staged))
        return done

    async def _ways(self, messages: list[NewMessage]) -> list[Chosen]:
        """Where they go; the directory is asked as often as it takes.  Raises Refusal.

        Nothing else happens between the answer and the next act of the caller.
        """
        answers = dict[str, Resolution | Refusal]()
        tries = 0
        while True:
            self._destinations.answers = answers
            try:
                return self._message_sender.checks.check(messages)
            except MustAsk as ask:
                name = ask.name
            except Refusal as refusal:
                if refusal.code != "busy" or tries == NUMBERS_TRIES:
                    raise
                tries += 1  # a message to several queues needs several numbers
                await self._services.ids.ensure(len(messages) << tries)
                continue
            finally:
                self._destinations.answers = {}
            try:
                answers[name] = await self._resolver.resolve_text(name)
            except Refusal as refusal:
                answers[name] = refusal

    def _chosen(self, query: str, epoch: int, attempts: list[Attempt]) -> list[StageRow]:
        """The pieces of these attempts in the order of their rows.  Raises Refusal when any is
        missing."""
        chosen: list[StageRow] = []
        seen: set[int] = set()
        for each in sorted(attempts, key=lambda each: each.partition):
            if each.partition in seen:
                raise Refusal(
                    "attempt_twice",
                    f"two attempts of partition {each.partition} of {query}, epoch {epoch}, are to"
                    " be published",
                    "Name one attempt of each partition.",
                )
            seen.add(each.partition)
            place = _Place(query, epoch, each.partition, each.attempt)
            following = 0
            for first_row, piece in sorted(self._pieces.get(place, {}).items()):
                if first_row != following:
                    break
                chosen.append(piece)
                following += piece.row_count
            total = sum(piece.row_count for piece in self._pieces.get(place, {}).values())
            if not following == total == each.rows:
                raise Refusal(
                    "stage_incomplete",
                    f"attempt {each.attempt} of partition {each.partition} of {query}, epoch"
                    f" {epoch}, has {following} of {each.rows} rows",
                    "Nothing was published. Its stage was removed (stage_age in the section"
                    " [pipeline] of the configuration), or never written: write the batch again.",
                )
        return chosen

    # Removing.

    async def discard(
        self,
        query: str,
        epoch: int | None,
        part: int | None,
        attempt: str,
        older_than_s: int,
        rights: Rights = ALL_RIGHTS,
    ) -> Value:
        """What the request `DiscardStages` is answered with."""
        if not query:
            rights.require(WRITE, (EVERYTHING,), "discard_stages")
        if not query and not older_than_s:
            raise Refusal(
                "no_stage_named",
                "neither a query nor an age of stages is given",
                "Give one of them, or all stages would go.",
            )
        of_query = partial(self._of_query, query)
        await self._owners.check(rights, "discard_stages", query, of_query, set())
        now_s = int(self._services.environment.time())
        chosen = [
            piece
            for place, pieces in self._pieces.items()
            for piece in pieces.values()
            if (not query or place.query == query)
            and (epoch is None or place.epoch == epoch)
            and (part is None or place.part == part)
            and (not attempt or place.attempt == attempt)
            and now_s - piece.at_s >= older_than_s
        ]
        await self._remove(chosen)
        return {
            "stages": len({(each.query, each.epoch, each.part, each.attempt) for each in chosen}),
            "rows": sum(piece.row_count for piece in chosen),
            "bytes": sum(piece.bytes for piece in chosen),
        }

    async def forget_old(self) -> None:
        """What was staged and never published, and what is known of queries that are no more."""
        settings = self._services.settings.pipeline
        age_s = int(settings.stage_age_s)
        now_s = int(self._services.environment.time())
        youngest: dict[tuple[str, int], int] = {}  # a long batch is not torn
        for place, pieces in self._pieces.items():
            for piece in pieces.values():
                of = place.query, place.epoch
                youngest[of] = max(youngest.get(of, 0), piece.at_s)
        over = {of for of, at_s in youngest.items() if now_s - at_s > age_s}
        if over:
            chosen = [
                piece
                for place, pieces in self._pieces.items()
                for piece in pieces.values()
                if (place.query, place.epoch) in over
            ]
            await self._remove(chosen, can_wait=True)
            log.warning(
                "stages_removed",
                queries=sorted({query for query, _ in over})[:10],
                rows=sum(piece.row_count for piece in chosen),
                size=format_size(sum(piece.bytes for piece in chosen)),
                remedy="They were staged and not published for longer than stage_age in the section"
                " [pipeline] of the configuration.",
            )
        before_ms = (now_s - int(settings.publication_age_s)) * 1000
        forget = partial(stages.forget_queries, before_ms=before_ms)
        await self._services.storage.batch.run(forget, can_wait=True)

    def overview(self) -> list[Value]:
        """What the request `ListStages` is answered with."""
        return [
            {
                "query": place.query,
                "epoch": place.epoch,
                "partition": place.part,
                "attempt": place.attempt,
                "rows": sum(piece.row_count for piece in pieces.values()),
                "bytes": sum(piece.bytes for piece in pieces.values()),
                "at_s": max(piece.at_s for piece in pieces.values()),
            }
            for place, pieces in self._pieces.items()
        ]

    async def _remove(self, pieces: list[StageRow], *, can_wait: bool = False) -> None:
        if pieces:
            ids = [piece.id for piece in pieces]

            def unit(db: sqlite3.Connection) -> None:
                stages.delete(db, ids)

            await asyncio.shield(self._services.storage.batch.run(unit, can_wait=can_wait))
            self._forget(pieces)

    # Within.

    def _of_epochs(self, query: str, epoch: int) -> list[StageRow]:
        """What is staged of a query for this epoch, or an earlier one."""
        return [
            piece
            for place, pieces in self._pieces.items()
            if place.query == query and place.epoch <= epoch
            for piece in pieces.values()
        ]

    def _of_attempt(self, query: str, epoch: int, attempt: Attempt) -> list[StageRow]:
        place = _Place(query, epoch, attempt.partition, attempt.attempt)
        return list(self._pieces.get(place, {}).values())

    def _of_query(self, query: str) -> list[StageRow]:
        return [
            piece
            for place, pieces in self._pieces.items()
            if place.query == query
            for piece in pieces.values()
        ]

    def _add(self, row: StageRow) -> None:
        place = _Place(row.query, row.epoch, row.part, row.attempt)
        self._pieces.setdefault(place, {})[row.first_row] = row
        self.bytes += row.bytes
        self._usage.grow(row.bytes)

    def _forget(self, pieces: Iterable[StageRow]) -> None:
        for piece in pieces:
            place = _Place(piece.query, piece.epoch, piece.part, piece.attempt)
            if self._pieces.get(place, {}).get(piece.first_row) == piece:
                self._forget_piece(place, piece.first_row)

    def _forget_piece(self, place: _Place, first_row: int) -> None:
        pieces = self._pieces.get(place, {})
        piece = pieces.pop(first_row, None)
        if piece is not None:
            self._owners.forget(piece.id)
            self.bytes -= piece.bytes
            self._usage.shrink(piece.bytes)
        if not pieces:
            self._pieces.pop(place, None)


def _ignore(ids: list[object]) -> None:
    """Nobody asks for the ids of what is published."""
