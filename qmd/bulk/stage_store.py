"""The staged pieces of this queue manager: an index in memory, the rows on disk.

A piece has consecutive rows of one attempt, which writes one partition of an epoch of a query.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from qmd.control_protocol.messages import NewMessage
from qmd.errors import Refusal
from storage.tables import stages
from storage.tables.stages import StageRow

if TYPE_CHECKING:
    from qmd.control_protocol.bulk import Attempt
    from qmd.queues.usage import Usage
    from qmd.runtime.services import Services

Value = dict[str, Any]

_decoder = msgspec.msgpack.Decoder(list[NewMessage])


class AttemptKey(NamedTuple):
    """The attempt to which a piece belongs."""

    query: str
    epoch: int
    part: int
    attempt: str


class StageStore:
    """All staged pieces, by attempt and by the index of their first row."""

    def __init__(self, services: Services, usage: Usage) -> None:
        self._services = services
        self._usage = usage
        self._pieces: dict[AttemptKey, dict[int, StageRow]] = {}
        self.bytes = 0  # of all pieces, also of those that are being written
        #: Called with the id of each piece that is removed.
        self.on_removed: Callable[[int], None] = lambda piece_id: None

    def restore(self, rows: Iterable[StageRow]) -> None:
        """Restore the index from the rows of the storage."""
        for row in rows:
            self._add(row)

    # Writing.

    async def store(
        self, attempt: AttemptKey, first_row: int, row_count: int, data: bytes
    ) -> StageRow:
        """Write the encoded rows of a piece to disk; return the piece, which `replace` adds."""
        at_s = int(self._services.environment.time())
        # As with messages, the size counts before the disk has it.
        self.bytes += len(data)
        self._usage.grow(len(data))
        try:
            add = partial(
                stages.add,
                **attempt._asdict(),
                first_row=first_row,
                row_count=row_count,
                at_s=at_s,
                data=data,
            )
            id_ = await asyncio.shield(self._services.storage.batch.run(add))
        finally:
            self.bytes -= len(data)
            self._usage.shrink(len(data))
        return StageRow(id_, *attempt, first_row, row_count, at_s, len(data))

    def replace(self, piece: StageRow) -> None:
        """Add a stored piece to the index, in place of an earlier one with the same first row."""
        self._forget_piece(_attempt_of(piece), piece.first_row)
        self._add(piece)

    async def remove(self, pieces: list[StageRow], *, can_wait: bool = False) -> None:
        """Delete pieces from the disk and from the index.

        With `can_wait` this fails while the disk is short of room (`Batch.run`).
        """
        if pieces:
            delete = partial(stages.delete, ids=[piece.id for piece in pieces])
            await asyncio.shield(self._services.storage.batch.run(delete, can_wait=can_wait))
            self.forget(pieces)

    def forget(self, pieces: Iterable[StageRow]) -> None:
        """Remove pieces from the index that the disk does not have any more."""
        for piece in pieces:
            attempt = _attempt_of(piece)
            if self._pieces.get(attempt, {}).get(piece.first_row) == piece:
                self._forget_piece(attempt, piece.first_row)

    # Reading.

    async def data(self, piece: StageRow) -> bytes:
        """Return the encoded rows of a piece.  Raises Refusal if it was discarded."""
        found = await self._services.storage.read(partial(stages.data, ids=[piece.id]))
        if not found:
            raise Refusal(
                "stage_incomplete",
                f"attempt {piece.attempt} of partition {piece.part} of {piece.query}, epoch"
                f" {piece.epoch}, was discarded during its publication",
                "Nothing was published: write the batch again.",
            )
        return found[0]

    async def rows(self, piece: StageRow) -> list[NewMessage]:
        """Return the rows of a piece; of a discarded one, an empty list."""
        found = await self._services.storage.read(partial(stages.data, ids=[piece.id]))
        return [row for data in found for row in _decoder.decode(data)]

    # Selecting.

    def __iter__(self) -> Iterator[StageRow]:
        for pieces in self._pieces.values():
            yield from pieces.values()

    def of_query(self, query: str) -> list[StageRow]:
        """Return all pieces of a query."""
        return [piece for piece in self if piece.query == query]

    def of_epochs(self, query: str, epoch: int) -> list[StageRow]:
        """Return the pieces of a query for this epoch and for earlier ones."""
        return [piece for piece in self if piece.query == query and piece.epoch <= epoch]

    def of_attempt(self, attempt: AttemptKey) -> list[StageRow]:
        """Return the pieces of an attempt, in the order in which they were staged."""
        return list(self._pieces.get(attempt, {}).values())

    def row_counts(self, query: str, epoch: int) -> Iterator[tuple[int, int]]:
        """Yield partition and number of rows of each attempt of an epoch."""
        for attempt, pieces in self._pieces.items():
            if (attempt.query, attempt.epoch) == (query, epoch):
                yield attempt.part, sum(piece.row_count for piece in pieces.values())

    def select(self, query: str, epoch: int, attempts: list[Attempt]) -> list[StageRow]:
        """Return the pieces of these attempts by partition and row.

        Raises Refusal if any row is missing, or if a partition has two attempts.
        """
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
            key = AttemptKey(query, epoch, each.partition, each.attempt)
            following = 0
            for first_row, piece in sorted(self._pieces.get(key, {}).items()):
                if first_row != following:
                    break
                chosen.append(piece)
                following += piece.row_count
            total = sum(piece.row_count for piece in self._pieces.get(key, {}).values())
            if not following == total == each.rows:
                raise Refusal(
                    "stage_incomplete",
                    f"attempt {each.attempt} of partition {each.partition} of {query}, epoch"
                    f" {epoch}, has {following} of {each.rows} rows",
                    "Nothing was published. Its stage was removed (stage_age in the section"
                    " [pipeline] of the configuration), or never written: write the batch again.",
                )
        return chosen

    def overview(self) -> list[Value]:
        """Return the answer to the request `ListStages`: one entry for each attempt."""
        return [
            {
                "query": attempt.query,
                "epoch": attempt.epoch,
                "partition": attempt.part,
                "attempt": attempt.attempt,
                "rows": sum(piece.row_count for piece in pieces.values()),
                "bytes": sum(piece.bytes for piece in pieces.values()),
                "at_s": max(piece.at_s for piece in pieces.values()),
            }
            for attempt, pieces in self._pieces.items()
        ]

    def _add(self, piece: StageRow) -> None:
        self._pieces.setdefault(_attempt_of(piece), {})[piece.first_row] = piece
        self.bytes += piece.bytes
        self._usage.grow(piece.bytes)

    def _forget_piece(self, attempt: AttemptKey, first_row: int) -> None:
        pieces = self._pieces.get(attempt, {})
        piece = pieces.pop(first_row, None)
        if piece is not None:
            self.on_removed(piece.id)
            self.bytes -= piece.bytes
            self._usage.shrink(piece.bytes)
        if not pieces:
            self._pieces.pop(attempt, None)


def _attempt_of(piece: StageRow) -> AttemptKey:
    return AttemptKey(piece.query, piece.epoch, piece.part, piece.attempt)
