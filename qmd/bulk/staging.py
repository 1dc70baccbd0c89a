"""Staging: rows are stored without being sent, until they are published together or discarded.

    stage ──► (commit: a piece) ──► answer                     executors, any number of attempts
    publish ──► check all ──► (commit: messages, the epoch, no stages) ──► answer         the driver

`qmd/bulk/publisher.py` publishes.  docs/decisions/0019 explains the two steps.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
import structlog

from qmd.access.demands import EVERYTHING, TO_SEND
from qmd.access.rights import ALL_RIGHTS, Rights
from qmd.bulk.publisher import check_row_count
from qmd.bulk.stage_owners import StageOwners, known_epoch
from qmd.bulk.stage_rows import check_row, of_row
from qmd.bulk.stage_store import AttemptKey, StageStore
from qmd.config.units import format_size
from qmd.control_protocol.messages import NewMessage
from qmd.errors import Refusal
from storage.tables import stages

if TYPE_CHECKING:
    from qmd.operations.send_checks import SendChecks
    from qmd.queues.quotas import Admission
    from qmd.runtime.services import Services

log = structlog.get_logger()

Value = dict[str, Any]

_encoder = msgspec.msgpack.Encoder()


class Staging:
    """The requests that stage and discard rows."""

    def __init__(
        self,
        services: Services,
        admission: Admission,
        checks: SendChecks,
        store: StageStore,
        owners: StageOwners,
    ) -> None:
        self._services = services
        self._admission = admission
        self._checks = checks
        self._store = store
        self._owners = owners

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
        """Store rows of an attempt; return the answer to the request `Stage`.

        `first_row` is the index of the first row within the attempt.  The answer has the numbers of
        rows and bytes of the attempt.  Raises Refusal.
        """
        if self._services.lifecycle.stopping:
            raise Refusal("stopping", "this queue manager is stopping", "Try again in a moment.")
        routes: dict[tuple[str, int], int] = {}  # with the first row of each
        for at, row in enumerate(rows, first_row):
            routes.setdefault((row.destination, row.delivery), at)
            try:
                check_row(row)
            except Refusal as refusal:
                raise of_row(at, refusal) from refusal
        await self._check_routes(
            query, epoch, [(at, rows[at - first_row]) for at in routes.values()]
        )
        of_query = partial(self._store.of_query, query)
        await self._owners.check(rights, "stage", query, of_query, set())
        key = AttemptKey(query, epoch, part, attempt)
        self._check_count(key, first_row + len(rows))
        data = _encoder.encode(rows)
        self._check_room(len(data))
        if rows:
            with self._owners.arriving(query, rows) as things:
                piece = await self._store.store(key, first_row, len(rows), data)
            self._store.replace(piece)
            self._owners.keep(piece.id, things)
        pieces = self._store.of_attempt(key)
        return {
            "rows": sum(piece.row_count for piece in pieces),
            "bytes": sum(piece.bytes for piece in pieces),
        }

    async def _check_routes(
        self, query: str, epoch: int, rows: list[tuple[int, NewMessage]]
    ) -> None:
        """Raise Refusal if any of the rows, given with their indexes, cannot be published now.

        An early refusal saves the client work.  Rows of a published epoch are not refused, because
        their queues may have changed since.
        """
        for at, row in rows:
            try:
                self._checks.check_here(row)
            except Refusal as refusal:
                if (await known_epoch(self._services.storage, query, epoch)).is_published:
                    return
                raise of_row(at, refusal) from refusal

    def _check_count(self, key: AttemptKey, rows: int) -> None:
        """Raise Refusal as soon as an epoch has more rows than one publication may have.

        `rows` is the number of rows of the attempt `key`.  Only one attempt of each partition is
        published, so the largest one counts.
        """
        largest = {key.part: rows}
        for part, count in self._store.row_counts(key.query, key.epoch):
            largest[part] = max(largest.get(part, 0), count)
        check_row_count(self._services.settings.pipeline, sum(largest.values()))

    def _check_room(self, size: int) -> None:
        """Raise Refusal if there is no room for another `size` bytes."""
        limit = self._services.settings.pipeline.staged_bytes_max
        if self._store.bytes + size > limit:
            raise Refusal(
                "stages_full",
                f"{self._store.bytes} of {limit} bytes are staged, and {size} more are needed",
                "Write smaller batches, remove old stages (qmd stage discard), or set"
                " staged_bytes_max in the section [pipeline] of the configuration higher.",
            )
        full = self._admission.is_full(size, messages=0)
        if full is not None:
            raise full

    async def discard(
        self,
        query: str,
        epoch: int | None,
        part: int | None,
        attempt: str,
        older_than_s: int,
        rights: Rights = ALL_RIGHTS,
    ) -> Value:
        """Remove staged rows; return the answer to the request `DiscardStages`.

        All given properties must match; "" and None match everything.  The answer has the numbers
        of attempts, rows and bytes.  Raises Refusal.
        """
        if not query:
            rights.require(TO_SEND, (EVERYTHING,), "discard_stages")
        if not query and not older_than_s:
            raise Refusal(
                "no_stage_named",
                "neither a query nor an age of stages is given",
                "Give one of them; without them all stages would be removed.",
            )
        of_query = partial(self._store.of_query, query)
        await self._owners.check(rights, "discard_stages", query, of_query, set())
        now_s = int(self._services.environment.time())
        chosen = [
            piece
            for piece in self._store
            if (not query or piece.query == query)
            and (epoch is None or piece.epoch == epoch)
            and (part is None or piece.part == part)
            and (not attempt or piece.attempt == attempt)
            and now_s - piece.at_s >= older_than_s
        ]
        await self._store.remove(chosen)
        return {
            "stages": len({(each.query, each.epoch, each.part, each.attempt) for each in chosen}),
            "rows": sum(piece.row_count for piece in chosen),
            "bytes": sum(piece.bytes for piece in chosen),
        }

    async def forget_old(self) -> None:
        """Remove stages that were not published in time, and old publications of ended queries.

        An epoch is removed when its youngest piece is too old, so a slow batch keeps all pieces.
        """
        settings = self._services.settings.pipeline
        age_s = int(settings.stage_age_s)
        now_s = int(self._services.environment.time())
        youngest: dict[tuple[str, int], int] = {}
        for piece in self._store:
            of = piece.query, piece.epoch
            youngest[of] = max(youngest.get(of, 0), piece.at_s)
        over = {of for of, at_s in youngest.items() if now_s - at_s > age_s}
        if over:
            chosen = [piece for piece in self._store if (piece.query, piece.epoch) in over]
            await self._store.remove(chosen, can_wait=True)
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
