"""Reservations: messages that are kept for the readers of data pipelines until they are consumed.

    open_reader ──► a fence; earlier runs are refused
    reserve ──► choose by arrival ──► take ──► (commit: positions with their reader) ──► answer
    consume ──► read ──► (commit: removal, as if received; the position) ──► answer
    release ──► (commit) ──► ready again

A reserved message is *taken* in memory and has its position on disk before any other client can
receive it: docs/decisions/0019.  Requests of one reader are processed one after the other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import structlog

from qmd.access.demands import TO_RECEIVE, TO_RELEASE
from qmd.access.rights import ALL_RIGHTS, Rights
from qmd.access.things import thing_of
from qmd.bulk.consume import Consumer
from qmd.bulk.reader import Reader, ReaderQueue, id_text
from qmd.bulk.reader_start import check_start
from qmd.bulk.reserve_next import UNBOUNDED, Bounds, Reserver
from qmd.errors import Refusal
from qmd.queues.local_queue import LocalQueue
from storage.tables import reservations
from storage.tables.runs import held_runs

if TYPE_CHECKING:
    import sqlite3

    from qmd.bulk.range_read import Ranges
    from qmd.bulk.reader_start import ReaderStarts
    from qmd.bulk.readers import Readers
    from qmd.control_protocol.bulk import Filter, Rows
    from qmd.operations.receive_selected import SelectiveReceiver
    from qmd.runtime.services import Services

log = structlog.get_logger()

#: Messages of one queue that one request reserves.
MESSAGES_MAX = 1_000_000
NO_LIMIT_BYTES = 1 << 62
OF_READER = "all queues of the reader"

NO_STARTS: Mapping[str, str] = MappingProxyType({})

Value = dict[str, Any]


class _Range(NamedTuple):
    """Reserved messages behind a start position."""

    end: int  # the last position
    messages: int
    bytes: int
    is_cut: bool  # a limit was reached before the end of the reservations


class Reservations:
    """The requests of readers: open, reserve, read, consume, release."""

    def __init__(
        self,
        services: Services,
        readers: Readers,
        reserver: Reserver,
        ranges: Ranges,
        consumer: Consumer,
        selective_receiver: SelectiveReceiver,
        starts: ReaderStarts,
    ) -> None:
        self._services = services
        self._readers = readers
        self._reserver = reserver
        self._ranges = ranges
        self._consumer = consumer
        self._selective_receiver = selective_receiver
        self._starts = starts
        self._opening = asyncio.Lock()

    # Opening.

    async def open(
        self,
        name: str,
        texts: Sequence[str],
        *,
        shared: bool,
        start: str,
        starts: Mapping[str, str] = NO_STARTS,
        fence: int = 0,
        rights: Rights = ALL_RIGHTS,
    ) -> Value:
        """Begin a run of a reader; return the answer to the request `OpenReader`.

        `texts` name its queues; `start` and `starts` are as in `OpenReader`.  The answer has the
        fence of the run, which invalidates earlier runs.  With the `fence` of the current run, its
        queues are added to that run instead.  Raises Refusal.
        """
        check_start((start, *starts.values()))
        queues = [self._readers.find_queue(text) for text in texts]
        now_s = int(self._services.environment.time())
        open_reader = partial(reservations.open_reader, name=name, now_s=now_s)
        async with self._opening:
            reader = self._readers.find(name, fence) if fence else self._readers.get(name)
            is_new = reader is None
            for text, queue in zip(texts, queues, strict=True):
                if reader is None or id_text(queue) not in reader.queues:
                    # Before anything is added: a refusal must leave nothing.
                    await self._starts.arrival_before(queue, starts.get(text, start))
            if reader is None:
                reader = self._readers.add(await self._services.storage.batch.run(open_reader))
            async with reader.lock:
                things = map(thing_of, self._readers.queues_of(name))
                rights.require_unnamed(TO_RECEIVE, things, "open_reader", OF_READER)
                _check_sharing(reader, queues, shared=shared)
                if fence:
                    self._readers.find(name, fence)
                elif not is_new:
                    row = await self._services.storage.batch.run(open_reader)
                    reader.fence, reader.opened_at_s = row.fence, row.opened_at_s
                for text, queue in zip(texts, queues, strict=True):
                    if id_text(queue) not in reader.queues:
                        arrival = await self._starts.arrival_before(queue, starts.get(text, start))
                        await self._add_queue(reader, queue, shared=shared, arrival=arrival)
                self._readers.note_request(reader)
                log.info("reader_opened", reader=name, fence=reader.fence)
                return _opened(reader, queues)

    async def _add_queue(
        self, reader: Reader, queue: LocalQueue, *, shared: bool, arrival: int
    ) -> None:
        row = await self._services.storage.batch.run(
            partial(
                reservations.add_queue,
                reader_id=reader.id,
                queue_id=queue.id,
                queue=queue.guid,
                shared=shared,
                arrival=arrival,
            )
        )
        self._readers.add_queue(reader, queue, row)

    # Reserving.

    async def reserve(
        self,
        name: str,
        fence: int,
        text: str,
        start: int,
        messages_max: int,
        bytes_max: int,
        *,
        one_always: bool = True,
        bounds: Bounds = UNBOUNDED,
    ) -> Value:
        """Reserve messages behind position `start`; return the answer to the request `Reserve`.

        Messages that are reserved already are counted first; further ones are reserved up to the
        limits.  With `bytes_max` 0 the size is not limited; with `one_always` the first message may
        be larger than that.  New ones are reserved within `bounds`.  Raises Refusal.
        """
        reader = self._readers.find(name, fence)
        async with reader.lock:
            self._readers.find(name, fence)
            held = self._readers.held_queue(reader, text)
            if start >= held.next:
                raise Refusal(
                    "position_unknown",
                    f"position {start} of {held.queue.name} was never assigned to reader"
                    f" {name}: the last one was {held.next - 1}",
                    "The reader was forgotten, or the queue manager's data are older than this"
                    " checkpoint: begin with a new checkpoint, and another reader.",
                )
            _check_not_consumed(held, start)
            self._selective_receiver.check_share(held.queue, self)
            limit = min(max(messages_max, 1), MESSAGES_MAX)
            end, messages, size, is_cut = await self._reserved(
                held, start, limit, bytes_max, one_always=one_always
            )
            arrival = held.arrival
            while not is_cut and messages < limit and (not bytes_max or size < bytes_max):
                piece = await self._reserver.reserve(
                    held,
                    arrival,
                    limit - messages,
                    bytes_max - size if bytes_max else NO_LIMIT_BYTES,
                    one_always=one_always and messages == 0,
                    bounds=bounds,
                )
                if not piece.messages:
                    break
                arrival = piece.arrival
                self._readers.find(name, fence)
                messages, size = messages + piece.messages, size + piece.bytes
                end = held.next - 1
            queue = held.queue
            return {
                "end": end,
                "messages": messages,
                "bytes": size,
                "more": end < held.next - 1 or queue.messages > queue.reserved.unready,
            }

    async def _reserved(
        self, held: ReaderQueue, start: int, rows_max: int, bytes_max: int, *, one_always: bool
    ) -> _Range:
        """Measure the messages behind `start` that are reserved already, up to the limits."""
        if held.next - 1 <= start:
            return _Range(start, 0, 0, is_cut=False)
        end, messages, size, is_cut = await self._services.storage.read(
            partial(
                reservations.measure,
                reader_queue_id=held.id,
                after=start,
                rows_max=rows_max,
                bytes_max=bytes_max,
                one_always=one_always,
            )
        )
        if not is_cut:
            end = held.next - 1  # also if the last messages were found damaged
        return _Range(end, messages, size, is_cut)

    async def read(
        self,
        name: str,
        text: str,
        after: int,
        until: int,
        *,
        limit: int,
        bytes_max: int,
        wanted: Filter,
        bodies: bool,
    ) -> Rows:
        """Return reserved messages at the positions behind `after` up to `until` (0: the last).

        The same range can be read any number of times until it is consumed.  Raises Refusal.
        """
        reader = self._readers.find(name)
        held = self._readers.held_queue(reader, text)
        _check_not_consumed(held, after)
        until = until or held.next - 1
        if until >= held.next:
            raise Refusal(
                "position_unknown",
                f"position {until} of {held.queue.name} is not reserved for reader {name}: the last"
                f" one is {held.next - 1}",
                "Reserve it first.",
            )
        rows = await self._ranges.read_reserved(
            held,
            after,
            until,
            limit=limit,
            bytes_max=bytes_max,
            wanted=wanted,
            bodies=bodies,
        )
        _check_not_consumed(held, after)  # during the read: some of the messages may be missing
        return rows

    # Consuming.

    async def consume(self, name: str, fence: int, ends: dict[str, int]) -> Value:
        """Remove reserved messages up to a position of each queue, as if they were received.

        `ends` are positions by queue.  Return the answer to the request `Consume`: the numbers of
        messages and bytes.  Raises Refusal before any message is consumed.
        """
        reader = self._readers.find(name, fence)
        messages = size = 0
        async with reader.lock:
            self._readers.find(name, fence)
            queues = [(self._readers.held_queue(reader, text), end) for text, end in ends.items()]
            for held, end in queues:
                if end >= held.next:
                    raise Refusal(
                        "position_unknown",
                        f"position {end} of {held.queue.name} is not reserved for reader {name}:"
                        f" the last one is {held.next - 1}",
                        "Nothing was consumed. Reserve it first; or the checkpoint is another"
                        " reader's.",
                    )
            for held, end in queues:
                while held.position < end:
                    count, added = await self._consumer.consume(held, end)
                    messages, size = messages + count, size + added
        return {"messages": messages, "bytes": size}

    # Releasing.

    async def release(
        self,
        name: str,
        text: str,
        *,
        dry_run: bool,
        forget: bool,
        rights: Rights = ALL_RIGHTS,
    ) -> Value:
        """Make reserved messages ready again; return the answer to the request `ReleaseReader`.

        `text` names one queue of the reader; "" means all.  With `forget` the positions are dropped
        as well, and the reader itself if none of its queues is left.  With `dry_run` nothing
        changes.  Raises Refusal.
        """
        reader = self._readers.find(name)
        async with reader.lock:
            things = map(thing_of, self._readers.queues_of(name))
            rights.require_unnamed(TO_RELEASE, things, "release_reader", OF_READER)
            chosen = (
                [self._readers.held_queue(reader, text)] if text else list(reader.queues.values())
            )
            answer = {"messages": sum(held.reserved for held in chosen), "bytes": 0}
            if dry_run:
                return answer
            rows = [
                (
                    held,
                    await self._services.storage.read(
                        partial(
                            held_runs,
                            reader_queue_id=held.id,
                            after=held.position,
                            until=held.next,
                        )
                    ),
                )
                for held in chosen
            ]
            reader.fence = await self._services.storage.batch.run(
                partial(
                    _release,
                    reader_id=reader.id,
                    queue_ids=[held.id for held in chosen],
                    forget=forget,
                    forget_reader=forget and len(chosen) == len(reader.queues),
                )
            )
            for held, runs in rows:
                held.queue.reserved.release([run.places for run in runs], are_there=True)
                held.position = held.next - 1
                held.notes.clear()
                if forget:
                    del reader.queues[id_text(held.queue)]
                held.queue.wake_readers()
            if forget and not reader.queues:
                self._readers.forget(reader)
            log.info("reader_released", reader=name, messages=answer["messages"])
            return answer


def _release(
    db: sqlite3.Connection,
    reader_id: int,
    queue_ids: Sequence[int],
    *,
    forget: bool,
    forget_reader: bool,
) -> int:
    """Delete the reservations of a reader in some of its queues; return its new fence."""
    for queue_id in queue_ids:
        if forget:
            reservations.forget_queue(db, queue_id)
        else:
            reservations.release(db, queue_id)
    if forget_reader:
        reservations.forget_reader(db, reader_id)
    return reservations.raise_fence(db, reader_id)


def _check_sharing(reader: Reader, queues: Sequence[LocalQueue], *, shared: bool) -> None:
    """Raise Refusal if the reader has opened any of these queues in the other mode."""
    for queue in queues:
        known = reader.queues.get(id_text(queue))
        if known is not None and known.shared != shared:
            raise Refusal(
                "reader_of_other_kind",
                f"reader {reader.name} reads {queue.name} "
                + ("with others" if known.shared else "alone"),
                "Open it as before, or choose another name for the reader.",
            )


def _opened(reader: Reader, queues: Sequence[LocalQueue]) -> Value:
    """Return the answer to the request `OpenReader`."""
    return {
        "reader": reader.name,
        "fence": reader.fence,
        "queues": [
            {
                "queue": id_text(queue),
                "name": queue.name,
                "position": (held := reader.queues[id_text(queue)]).position,
                "reserved": held.next - 1,
                "shared": held.shared,
            }
            for queue in queues
        ],
    }


def _check_not_consumed(held: ReaderQueue, after: int) -> None:
    """Raise Refusal if messages behind position `after` were consumed or released."""
    if after < held.position:
        raise Refusal(
            "range_consumed",
            f"reader {held.reader.name} has finished {held.queue.name} up to position"
            f" {held.position}, and messages after position {after} were requested",
            "The checkpoint is older than the consumed or released position; received messages"
            " are in the queue's journal, if it has one.",
        )
