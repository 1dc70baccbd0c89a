"""The publisher: the staged rows of an epoch become messages, all of them once or none.

The messages, the record of the epoch and the removal of the stages are in one commit, so a repeated
request finds that the epoch is published.  docs/decisions/0019
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
import structlog

from qmd.access.rights import ALL_RIGHTS, Rights
from qmd.bulk.message_shapes import NotUniform
from qmd.bulk.stage_owners import KnownEpoch, StageOwners, known_epoch
from qmd.bulk.stage_store import AttemptKey, StageStore
from qmd.control_protocol.messages import NewMessage
from qmd.errors import Refusal
from storage.tables import stages
from storage.tables.stages import Publication, StageRow

if TYPE_CHECKING:
    import sqlite3

    from qmd.bulk.directory_answers import DirectoryAnswers
    from qmd.bulk.prepared_publication import PreparedPublication
    from qmd.config.settings import PipelineSettings
    from qmd.control_protocol.bulk import Attempt
    from qmd.operations.send import MessageSender
    from qmd.operations.send_checks import Chosen, SendChecks
    from qmd.runtime.services import Services

log = structlog.get_logger()

Value = dict[str, Any]

NUMBERS_TRIES = 6  # each time for twice as many

_decoder = msgspec.msgpack.Decoder(list[NewMessage])
_row_decoder = msgspec.msgpack.Decoder(list[tuple[Any, ...]])


class Publisher:
    """The requests that publish stages."""

    def __init__(
        self,
        services: Services,
        store: StageStore,
        owners: StageOwners,
        checks: SendChecks,
        message_sender: MessageSender,
        new_answers: Callable[[], DirectoryAnswers],
        new_publication: Callable[[], PreparedPublication],
    ) -> None:
        self._services = services
        self._store = store
        self._owners = owners
        self._checks = checks
        self._message_sender = message_sender
        self._new_answers = new_answers
        self._new_publication = new_publication
        self._publishing: dict[str, asyncio.Lock] = {}  # by query

    async def publish(
        self, query: str, epoch: int, attempts: list[Attempt], rights: Rights = ALL_RIGHTS
    ) -> Value:
        """Publish one attempt of each partition; return the answer to the request `Publish`.

        The answer says whether this request has published the epoch (`published`), or an earlier
        one, the number of its messages, and the time.  Raises Refusal.
        """
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
        of_query = partial(self._store.of_query, query)
        check_owner = partial(self._owners.check, rights, "publish", query, of_query, set())
        await check_owner()
        known = await known_epoch(self._services.storage, query, epoch)
        if known.is_published:
            return await self._published_before(query, epoch, attempts, rights, known)
        if known.newest is not None and epoch < known.newest:
            raise Refusal(
                "epoch_out_of_order",
                f"epoch {epoch} of {query} cannot be published after epoch {known.newest}",
                "Publish the epochs of a query in ascending order, or give each its own name.",
            )
        pieces = self._store.select(query, epoch, attempts)
        queues = await self._owners.queues_of(pieces)
        row_count = sum(piece.row_count for piece in pieces)
        # The limit may have been lowered since the rows were staged.
        check_row_count(self._services.settings.pipeline, row_count)
        commit = partial(self._commit, query, epoch, row_count, queues, rights.owner)
        try:
            publication = self._new_publication()
            for piece in pieces:
                await publication.prepare(_row_decoder.decode(await self._store.data(piece)))
            await self._services.ids.ensure(row_count)
            while await check_owner():  # of pieces that arrived in the meantime
                await self._services.ids.ensure(row_count)
            done = commit(publication.take_over)
        except NotUniform:
            messages: list[NewMessage] = []
            for piece in pieces:  # one at a time, so that other work has its turn in between
                messages += _decoder.decode(await self._store.data(piece))
            await self._services.ids.ensure(row_count)
            routes = await self._routes(messages)
            while await check_owner():
                routes = await self._routes(messages)
            take_over = partial(self._message_sender.take_over, messages, routes, b"", _ignore)
            done = commit(take_over)
        at_ms = await asyncio.shield(done)
        log.info("published", query=query, epoch=epoch, messages=row_count)
        return {"published": True, "messages": row_count, "at_ms": at_ms}

    async def _published_before(
        self,
        query: str,
        epoch: int,
        attempts: list[Attempt],
        rights: Rights,
        known: KnownEpoch,
    ) -> Value:
        """Remove the stages of a published epoch; return the answer."""
        staged = [
            piece
            for each in attempts
            for piece in self._store.of_attempt(
                AttemptKey(query, epoch, each.partition, each.attempt)
            )
        ]
        await self._owners.check_repeated(rights, query, epoch, known.publications, staged)
        await self._store.remove(self._store.of_epochs(query, epoch))
        return {
            "published": False,
            "messages": 0 if known.before is None else known.before.messages,
            "at_ms": 0 if known.before is None else known.before.at_ms,
        }

    def _commit(
        self,
        query: str,
        epoch: int,
        row_count: int,
        queues: str,
        owner: str,
        take_over: Callable[[], None],
    ) -> asyncio.Future[int]:
        """Commit the messages, the epoch and the removal of its stages in one batch.

        `take_over` adds the messages to the open batch.  The result is the time of the publication
        in milliseconds since 1970, when it is durable.  Raises all that `take_over` raises, and has
        changed nothing then.
        """
        staged: list[StageRow] = self._store.of_epochs(query, epoch)
        at_ms = int(self._services.environment.time() * 1000)
        batch = self._services.storage.batch
        take_over()
        assert batch is self._services.storage.batch
        done = batch.run(
            partial(
                _record,
                query=query,
                publication=Publication(epoch, row_count, at_ms, queues, owner),
                ids=[piece.id for piece in staged],
            )
        )
        batch.when_durable(partial(self._store.forget, staged))
        return done

    async def _routes(self, messages: list[NewMessage]) -> list[Chosen]:
        """Return the routes of messages, and query the directory as often as needed.

        No other task runs between the last check and the return.  Raises Refusal.
        """
        answers = self._new_answers()
        tries = 0
        while True:
            try:
                return await answers.complete(partial(self._checks.check, messages))
            except Refusal as refusal:
                if refusal.code != "busy" or tries == NUMBERS_TRIES:
                    raise
                tries += 1  # a message to several queues needs several numbers
                await self._services.ids.ensure(len(messages) << tries)


def _record(
    db: sqlite3.Connection, query: str, publication: Publication, ids: Sequence[int]
) -> int:
    """Record that an epoch is published, and delete its stages; return the time in ms."""
    stages.publish(db, query=query, publication=publication, ids=ids)
    return publication.at_ms


def check_row_count(settings: PipelineSettings, rows: int) -> None:
    """Raise Refusal if one publication may not have so many rows."""
    limit = settings.published_rows_max
    if rows > limit:
        raise Refusal(
            "publication_too_large",
            f"{rows} messages or more are to be published at once; {limit} are allowed",
            "Write smaller batches (of a stream: maxMessagesPerTrigger; of a table: parts of"
            " it, each a job), or set published_rows_max in the section [pipeline] of the"
            " configuration higher: all of them are in memory and in one commit.",
        )


def _ignore(ids: list[object]) -> None:
    """Discard the ids of the messages, which the client does not get."""
