"""Operations for data pipelines: fixed ranges of queues, and staged sends.

    run = await qm.pipeline.open_reader("archive", ["orders"])
    [q] = run.queues
    reserved = await qm.pipeline.reserve(run, q.queue, q.position, messages_max=20_000)
    async for rows in qm.pipeline.read(q.queue, q.position, reserved.end, reader="archive"):
        ...                                   # can be repeated: the same rows every time
    await qm.pipeline.consume(run, {q.queue: reserved.end})

    await qm.pipeline.stage("etl", 7, partition=0, attempt="a1", messages=[...])
    await qm.pipeline.publish("etl", 7, [Attempt(0, "a1", 1000)])     # all of it, once

A method that changes something returns after the change is on disk.  Every method is idempotent,
and a request is repeated automatically when its answer was lost.  See docs/readers.md.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from qmd.client.ambient import refuse_inside
from qmd.client.caller import Caller
from qmd.control_protocol import bulk as pipeline_frames
from qmd.control_protocol import operations as operator_frames
from qmd.control_protocol.bulk import EVERYTHING, ROWS_MAX, Attempt, Filter, Rows
from qmd.control_protocol.messages import NewMessage, StoredMessage

STAGE_BYTES = 4 * 1024 * 1024  # of bodies in one request
READ_BYTES = 8 * 1024 * 1024  # of packets in one answer
_ROW_BYTES = 400  # approximate size of a row in a frame without its body

Facts = dict[str, Any]


class ReadQueue(NamedTuple):
    """A queue of a reader, at the beginning of its run."""

    queue: str  # its id: the key for positions
    name: str  # its present name
    position: int  # consumed up to it
    reserved: int  # reserved up to it, by earlier runs
    shared: bool


class Run(NamedTuple):
    """A run of a reader; a later run shuts it out."""

    reader: str
    fence: int
    queues: tuple[ReadQueue, ...]


class Reserved(NamedTuple):
    end: int
    messages: int
    bytes: int
    more: bool  # more messages are ready after `end`


class Split(NamedTuple):
    """Ranges of a queue that were fixed at one moment."""

    queue: str  # its id
    until: int
    messages: int
    bytes: int
    ranges: tuple[tuple[int, int, int], ...]  # after, until, approximate number of messages


class Consumed(NamedTuple):
    messages: int
    bytes: int


class Staged(NamedTuple):
    rows: int  # of this attempt
    bytes: int


class Published(NamedTuple):
    published: bool  # False: it was published before, and nothing was done now
    messages: int
    at_ms: int  # when it was published


class Pipeline:
    """The pipeline operations, as `QueueManager.pipeline`."""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller

    # -- reading -----------------------------------------------------------------------------

    async def open_reader(
        self,
        reader: str,
        queues: Sequence[str],
        *,
        shared: bool = False,
        start: str = "oldest",
        starts: Mapping[str, str] | None = None,
        fence: int = 0,
    ) -> Run:
        """Begin a run of the reader; requests of its earlier runs are refused from now on.

        `queues`: names in any spelling, or ids.  `shared`, `start` and `starts`: see
        `qmd.control_protocol.bulk.OpenReader`.  With the `fence` of a current run, the queues are
        added to it.
        """
        refuse_inside(self._caller, "open_reader")
        answer = await self._caller.ask(
            pipeline_frames.OpenReader,
            reader,
            list(queues),
            shared,
            start,
            fence,
            dict(starts or {}),
        )
        return Run(
            answer["reader"],
            answer["fence"],
            tuple(
                ReadQueue(
                    each["queue"],
                    each["name"],
                    each["position"],
                    each["reserved"],
                    each["shared"],
                )
                for each in answer["queues"]
            ),
        )

    async def reserve(
        self,
        run: Run,
        queue: str,
        start: int,
        *,
        messages_max: int = ROWS_MAX,
        bytes_max: int = 0,
        one_always: bool = True,
        until: int = 0,
        until_ms: int | None = None,
    ) -> Reserved:
        """Reserve messages after position `start` for this reader; they no longer expire.

        `one_always`: reserve at least one message, if there is any, even if it is larger than
        `bytes_max`.  `until`, `until_ms`: the last arrival number (0: no limit), and the last time
        of arrival in milliseconds since 1970.
        """
        refuse_inside(self._caller, "reserve")
        answer = await self._caller.ask(
            pipeline_frames.Reserve,
            run.reader,
            run.fence,
            queue,
            start,
            messages_max,
            bytes_max,
            one_always,
            until,
            until_ms,
        )
        return Reserved(answer["end"], answer["messages"], answer["bytes"], answer["more"])

    async def read_range(
        self,
        queue: str,
        after: int = 0,
        until: int = 0,
        *,
        limit: int = ROWS_MAX,
        bytes_max: int = READ_BYTES,
        reader: str = "",
        wanted: Filter = EVERYTHING,
        bodies: bool = True,
    ) -> Rows:
        """Return one frame of a range, in columns.

        Continue with `after` = its `next` until that is None.  With a reader, positions are its
        own, and must be reserved; without one they are arrival numbers, and `until` = 0 means the
        end of the queue now.
        """
        answer = await self._caller.ask(
            pipeline_frames.ReadRange,
            queue,
            after,
            until,
            limit,
            bytes_max,
            reader,
            wanted,
            bodies,
        )
        return msgspec.convert(answer, Rows)

    async def read(
        self,
        queue: str,
        after: int = 0,
        until: int = 0,
        *,
        reader: str = "",
        wanted: Filter = EVERYTHING,
        bodies: bool = True,
        limit: int = ROWS_MAX,
        bytes_max: int = READ_BYTES,
    ) -> AsyncIterator[Rows]:
        """Iterate over all frames of a range; the next one is requested ahead."""

        def ask(after: int, until: int) -> asyncio.Task[Rows]:
            return asyncio.ensure_future(
                self.read_range(
                    queue,
                    after,
                    until,
                    limit=limit,
                    bytes_max=bytes_max,
                    reader=reader,
                    wanted=wanted,
                    bodies=bodies,
                )
            )

        ahead: asyncio.Task[Rows] | None = ask(after, until)
        try:
            while ahead is not None:
                rows = await ahead
                ahead = None if rows.next is None else ask(rows.next, rows.until)
                if rows.count:
                    yield rows
        finally:
            if ahead is not None:
                ahead.cancel()

    async def split_range(self, queue: str, parts: int, *, after: int = 0, until: int = 0) -> Split:
        """Split a queue into ranges of about equal size, by arrival number.

        Up to the end of the queue now, or up to `until`.
        """
        answer = await self._caller.ask(pipeline_frames.SplitRange, queue, parts, after, until)
        return Split(
            answer["queue"],
            answer["until"],
            answer["messages"],
            answer["bytes"],
            tuple((first, last, count) for first, last, count in answer["ranges"]),
        )

    async def consume(self, run: Run, ends: Mapping[str, int]) -> Consumed:
        """Mark everything up to these positions, by queue id, as processed by the reader."""
        refuse_inside(self._caller, "consume")
        answer = await self._caller.ask(pipeline_frames.Consume, run.reader, run.fence, dict(ends))
        return Consumed(answer["messages"], answer["bytes"])

    async def list_readers(self) -> list[Facts]:
        """Return the state of each reader for each of its queues."""
        readers: list[Facts] = await self._caller.ask(pipeline_frames.ListReaders)
        return readers

    async def release_reader(
        self, reader: str, queue: str = "", *, dry_run: bool = False, forget: bool = False
    ) -> Consumed:
        """Make reserved messages of a reader, in one queue or all, ready again; return how many.

        Requests of its runs are refused from now on.  `forget`: remove all state of the reader.
        """
        if not dry_run:
            refuse_inside(self._caller, "release_reader")
        answer = await self._caller.ask(
            pipeline_frames.ReleaseReader, reader, queue, dry_run, forget
        )
        return Consumed(answer["messages"], answer["bytes"])

    async def mark_shipped(self, block: int) -> int:
        """Record that events up to and including `block` are stored elsewhere (`qmd ship`)."""
        return int(await self._caller.ask(pipeline_frames.MarkShipped, block))

    async def inventory(self) -> dict[str, Any]:
        """Return the ids of all stored messages at one block of the log.

        {host, queue_manager, block, at_ms, queues: [{table, queue, source, numbers}]}; `numbers`
        has four bytes for each message, the lowest first.
        """
        return dict(await self._caller.ask(operator_frames.Inventory))

    # -- writing -----------------------------------------------------------------------------

    async def stage(
        self,
        query: str,
        epoch: int,
        *,
        partition: int,
        attempt: str,
        messages: Sequence[NewMessage],
        first_row: int = 0,
    ) -> Staged:
        """Store rows of one attempt (see `new_message`), in pieces of some MB.

        Receivers do not see them until they are published.`first_row` is the number of the first of
        these rows within the attempt: the number of rows that were staged before.
        """
        refuse_inside(self._caller, "stage")
        staged = Staged(0, 0)
        for start, piece in _pieces(messages):
            answer = await self._caller.ask(
                pipeline_frames.Stage, query, epoch, partition, attempt, first_row + start, piece
            )
            staged = Staged(answer["rows"], answer["bytes"])
        return staged

    async def publish(self, query: str, epoch: int, attempts: Sequence[Attempt]) -> Published:
        """Send all rows of exactly these attempts in one transaction, by partition, then row.

        An epoch that was published before is not published again.
        """
        refuse_inside(self._caller, "publish")
        answer = await self._caller.ask(pipeline_frames.Publish, query, epoch, list(attempts))
        return Published(answer["published"], answer["messages"], answer["at_ms"])

    async def discard_stages(
        self,
        query: str = "",
        epoch: int | None = None,
        *,
        partition: int | None = None,
        attempt: str = "",
        older_than_s: int = 0,
    ) -> Facts:
        """Remove rows that were staged and not published; return {stages, rows, bytes}."""
        refuse_inside(self._caller, "discard_stages")
        facts: Facts = await self._caller.ask(
            pipeline_frames.DiscardStages, query, epoch, partition, attempt, older_than_s
        )
        return facts

    async def list_stages(self) -> list[Facts]:
        """Return the staged rows, one entry for each attempt."""
        stages: list[Facts] = await self._caller.ask(pipeline_frames.ListStages)
        return stages


def each_message(rows: Rows) -> Iterator[tuple[int, StoredMessage]]:
    """Iterate over the messages of a frame, each with its position; see `Message(stored)`.

    Suitable for few messages; for many, use the columns directly.
    """
    count = rows.count
    longs, ints = struct.Struct(f"<{count}q"), struct.Struct(f"<{count}i")
    positions, lookup_ids = longs.unpack(rows.positions), longs.unpack(rows.lookup_ids)
    arrived, expires = longs.unpack(rows.arrived_at_ms), longs.unpack(rows.expires_at_s)
    aborts, moves = ints.unpack(rows.abort_counts), ints.unpack(rows.move_counts)
    offsets = struct.unpack(f"<{count + 1}i", rows.offsets)
    reasons = rows.reasons or [None] * count
    for at in range(count):
        yield (
            positions[at],
            StoredMessage(
                lookup_ids[at],
                arrived[at],
                rows.packets[offsets[at] : offsets[at + 1]],
                reasons[at],
                aborts[at],
                moves[at],
                None,
                None if expires[at] < 0 else expires[at],
            ),
        )


def _pieces(messages: Sequence[NewMessage]) -> Iterator[tuple[int, list[NewMessage]]]:
    start, piece, size = 0, list[NewMessage](), 0
    for at, message in enumerate(messages):
        size += len(message.body) + len(message.extension) + _ROW_BYTES
        if piece and (size > STAGE_BYTES or len(piece) == ROWS_MAX):
            yield start, piece
            start, piece, size = at, [], len(message.body) + _ROW_BYTES
        piece.append(message)
    if piece:
        yield start, piece
