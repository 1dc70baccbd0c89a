"""Readers of data pipelines: what is reserved for them, and what becomes of it.

    open_reader ──► a fence; older runs are refused
    reserve ──► choose by arrival ──► hold ──► (commit: positions, and who has them) ──► answer
    consume ──► read ──► (commit: off the queue, as if received; the position) ──► answer
    release ──► (commit) ──► ready again

A reserved message is *taken* in memory and bears its position on disk, and both are there before
anybody else can get it: docs/decisions/0019.  All that one reader asks is done one after the other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import structlog

from protocol.errors import InvalidName
from protocol.identifiers import guid_bytes
from qmd.access.rights import ADMIN, ALL_RIGHTS, READ, Rights
from qmd.access.things import thing_of
from qmd.bulk.consume import PIECE_BYTES, PIECE_MESSAGES, Consumer
from qmd.bulk.reader import Reader, ReaderQueue, State, describe, id_text
from qmd.bulk.reserve_next import gone, reserve_piece
from qmd.errors import Refusal
from qmd.events.recorder import Recorder
from qmd.queues.local_queue import LocalQueue
from storage.tables import reservations
from storage.tables.keys import LOOKUP_MASK
from storage.tables.reservations import ReaderQueueRow

if TYPE_CHECKING:
    import sqlite3

    from qmd.bulk.range_read import Ranges
    from qmd.control_protocol.bulk import Filter, Rows
    from qmd.naming.destinations import Destinations
    from qmd.operations.receive_selected import SelectiveReceiver
    from qmd.queues.registry import LocalQueues
    from qmd.runtime.services import Services

log = structlog.get_logger()

MESSAGES_MAX = 1_000_000  # reserved for one reader of one queue: memory holds a note of each
NO_LIMIT_BYTES = 1 << 62
STARTS = ("oldest", "newest")

Value = dict[str, Any]


class Reservations:
    """All readers of this queue manager."""

    def __init__(
        self,
        services: Services,
        consumer: Consumer,
        recorder: Recorder,
        selective_receiver: SelectiveReceiver,
        queues: LocalQueues,
        ranges: Ranges,
        destinations: Destinations,
    ) -> None:
        self._services = services
        self._consumer = consumer
        self._recorder = recorder
        self._selective_receiver = selective_receiver
        self._queues = queues
        self._ranges = ranges
        self._destinations = destinations
        self._readers: dict[str, Reader] = {}
        self._opening = asyncio.Lock()
        self._stale: list[int] = []  # of queues that are deleted, and are to be forgotten

    def restore(self, state: State) -> None:
        """Before anybody can receive: what was reserved is."""
        by_id: dict[int, Reader] = {}
        for row in state.readers:
            reader = Reader(
                row.id, row.name, row.fence, row.opened_at_s, self._services.loop.time()
            )
            self._readers[row.name] = by_id[row.id] = reader
        queues: dict[int, ReaderQueue] = {}
        for each in state.queues:
            queue = self._queues.by_id.get(each.queue_id)
            if queue is None or queue.guid != each.queue or each.reader_id not in by_id:
                self._stale.append(each.id)
                continue
            adopted = self._adopt(by_id[each.reader_id], queue, each)
            queues[each.id] = adopted
        for queue_id, key in state.keys:
            held = queues.get(queue_id)
            if held is not None:
                held.queue.reserved.add(key & LOOKUP_MASK, shared=held.shared)

    def _adopt(self, reader: Reader, queue: LocalQueue, row: ReaderQueueRow) -> ReaderQueue:
        adopted = reader.queues[id_text(queue)] = ReaderQueue(
            row.id,
            reader,
            queue,
            row.shared,
            row.position,
            row.next_number,
            row.arrival,
            row.reserved_at_s,
            row.consumed_messages,
            row.consumed_bytes,
        )
        return adopted

    # Opening.

    async def open(
        self,
        name: str,
        texts: Sequence[str],
        *,
        shared: bool,
        start: str,
        rights: Rights = ALL_RIGHTS,
    ) -> Value:
        """Begin a run of a reader; what the request `OpenReader` is answered with."""
        if start not in STARTS:
            raise Refusal(
                "bad_reader_start",
                f"a reader cannot start with {start!r}",
                f"Give one of {', '.join(STARTS)}.",
            )
        queues = [self._find(text) for text in texts]
        now_s = int(self._services.environment.time())
        frontier = await self._ranges.frontier() if start == "newest" else 0
        async with self._opening:
            reader = self._readers.get(name)
            if reader is None:
                row = await self._services.storage.batch.run(
                    partial(reservations.open_reader, name=name, now_s=now_s)
                )
                reader = Reader(row.id, name, row.fence, now_s, self._services.loop.time())
                self._readers[name] = reader
                is_new = True
            else:
                is_new = False
            async with reader.lock:
                rights.require(READ, map(thing_of, self.queues_of(name)), "open_reader")
                for queue in queues:
                    known = reader.queues.get(id_text(queue))
                    if known is not None and known.shared != shared:
                        raise Refusal(
                            "reader_of_other_kind",
                            f"reader {name} reads {queue.name} "
                            + ("with others" if known.shared else "alone"),
                            "Open it as before, or choose another name for the reader.",
                        )
                if not is_new:
                    row = await self._services.storage.batch.run(
                        partial(reservations.open_reader, name=name, now_s=now_s)
                    )
                    reader.fence, reader.opened_at_s = row.fence, row.opened_at_s
                for queue in queues:
                    if id_text(queue) not in reader.queues:
                        added = await self._services.storage.batch.run(
                            partial(
                                reservations.add_queue,
                                reader_id=reader.id,
                                queue_id=queue.id,
                                queue=queue.guid,
                                shared=shared,
                                arrival=frontier,
                            )
                        )
                        self._adopt(reader, queue, added)
                self._heard(reader)
                log.info("reader_opened", reader=name, fence=reader.fence)
                return {
                    "reader": name,
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

    # Reservations.

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
    ) -> Value:
        """What the request `Reserve` is answered with."""
        reader = self._reader(name, fence)
        async with reader.lock:
            self._reader(name, fence)
            held = self._held(reader, text)
            if start >= held.next:
                raise Refusal(
                    "position_unknown",
                    f"reader {name} has never been given position {start} of {held.queue.name}: the"
                    f" last one was {held.next - 1}",
                    "The reader was forgotten, or the queue manager's data are older than this"
                    " checkpoint: begin with a new checkpoint, and another reader.",
                )
            self._check_not_consumed(held, start)
            self._selective_receiver.check_share(held.queue, self)
            limit = min(max(messages_max, 1), MESSAGES_MAX)
            end, messages, size, is_cut = start, 0, 0, False
            if held.next - 1 > start:
                end, messages, size, is_cut = await self._services.storage.read(
                    partial(
                        reservations.measure,
                        reader_queue_id=held.id,
                        after=start,
                        rows_max=limit,
                        bytes_max=bytes_max,
                        one_always=one_always,
                    )
                )
                if not is_cut:
                    end = held.next - 1  # also where the last ones turned out to be damaged
            looked_up_to = held.arrival
            while not is_cut and messages < limit and (not bytes_max or size < bytes_max):
                left_bytes = bytes_max - size if bytes_max else NO_LIMIT_BYTES
                count, added, looked_up_to = await reserve_piece(
                    self._services,
                    self._ranges,
                    self._recorder,
                    held,
                    looked_up_to,
                    limit - messages,
                    left_bytes,
                    one_always=one_always and messages == 0,
                )
                if not count:
                    break
                self._reader(name, fence)
                messages, size, end = messages + count, size + added, held.next - 1
            queue = held.queue
            return {
                "end": end,
                "messages": messages,
                "bytes": size,
                "more": end < held.next - 1 or queue.messages > len(queue.taken),
            }

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
        """Reserved messages, as often as anybody asks."""
        reader = self._reader(name)
        held = self._held(reader, text)
        self._check_not_consumed(held, after)
        until = until or held.next - 1
        if until >= held.next:
            raise Refusal(
                "position_unknown",
                f"position {until} of {held.queue.name} is not reserved for reader {name}: the last"
                f" one is {held.next - 1}",
                "Reserve it first.",
            )
        rows = await self._ranges.read_reserved(
            held.queue,
            held.id,
            after,
            until,
            limit=limit,
            bytes_max=bytes_max,
            wanted=wanted,
            bodies=bodies,
        )
        self._check_not_consumed(held, after)  # meanwhile: some of it may be missing
        return rows

    # Consuming.

    async def consume(self, name: str, fence: int, ends: dict[str, int]) -> Value:
        """What the request `Consume` is answered with."""
        reader = self._reader(name, fence)
        messages = size = 0
        async with reader.lock:
            self._reader(name, fence)
            queues = [(self._held(reader, text), end) for text, end in ends.items()]
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
        """What the request `ReleaseReader` is answered with."""
        reader = self._reader(name)
        async with reader.lock:
            rights.require(ADMIN, map(thing_of, self.queues_of(name)), "release_reader")
            chosen = [self._held(reader, text)] if text else list(reader.queues.values())
            answer = {"messages": sum(held.reserved for held in chosen), "bytes": 0}
            if dry_run:
                return answer

            def unit(db: sqlite3.Connection) -> int:
                for held in chosen:
                    if forget:
                        reservations.forget_queue(db, held.id)
                    else:
                        reservations.release(db, held.id)
                if forget and len(chosen) == len(reader.queues):
                    reservations.forget_reader(db, reader.id)
                return reservations.raise_fence(db, reader.id)

            rows = [
                (
                    held,
                    await self._services.storage.read(
                        partial(
                            reservations.held_page,
                            reader_queue_id=held.id,
                            after=held.position,
                            until=held.next,
                            rows_max=MESSAGES_MAX + PIECE_MESSAGES,
                            bytes_max=PIECE_BYTES,
                            with_packets=False,
                        )
                    ),
                )
                for held in chosen
            ]
            fence = await self._services.storage.batch.run(unit)
            reader.fence = fence
            for held, reserved in rows:
                held.queue.reserved.release(
                    (row.key & LOOKUP_MASK for row in reserved), are_there=True
                )
                held.position = held.next - 1
                if forget:
                    del reader.queues[id_text(held.queue)]
                held.queue.wake_readers()
            if forget and not reader.queues:
                self._readers.pop(name, None)
            log.info("reader_released", reader=name, messages=answer["messages"])
            return answer

    # What others ask.

    def queues_of(self, name: str) -> list[LocalQueue]:
        """The queues of a reader; none of one that is not known."""
        reader = self._readers.get(name)
        held = () if reader is None else reader.queues.values()
        return [each.queue for each in held if not each.queue.deleted]

    def overview(self) -> list[Value]:
        """What the request `ListReaders` is answered with."""
        now = self._services.loop.time()
        return [
            describe(held, queue_id, now=now)
            for reader in self._readers.values()
            for queue_id, held in reader.queues.items()
        ]

    def check_deletable(self, family: Iterable[LocalQueue]) -> None:
        """Raises Refusal when something of these queues is reserved."""
        for queue in family:
            if queue.reserved:
                raise Refusal(
                    "messages_reserved",
                    f"{len(queue.reserved)} messages of {queue.name} are reserved for"
                    f" {self.holders(queue)}",
                    "Let its pipeline finish (`qmd pipeline finish`), or release them:"
                    " qmd reader release",
                )

    def holders(self, queue: LocalQueue) -> str:
        """The readers that have reserved something of a queue, for people."""
        names = sorted(
            reader.name
            for reader in self._readers.values()
            for held in reader.queues.values()
            if held.queue is queue and held.reserved
        )
        return f"the reader {names[0]}" if len(names) == 1 else f"the readers {', '.join(names)}"

    async def forget_gone(self) -> None:
        """Drop what readers had to do with queues that are deleted."""
        for reader in self._readers.values():
            for queue_id, held in list(reader.queues.items()):
                if held.queue.deleted and not reader.lock.locked():
                    del reader.queues[queue_id]
                    self._stale.append(held.id)
        while self._stale:
            forget = partial(reservations.forget_queue, reader_queue_id=self._stale[-1])
            await self._services.storage.batch.run(forget, can_wait=True)
            self._stale.pop()

    def warn(self) -> None:
        """Of readers that hold messages and have not been heard of for long, once."""
        limit_s = self._services.settings.pipeline.quiet_warning_s
        now = self._services.loop.time()
        for reader in self._readers.values():
            reserved = sum(held.reserved for held in reader.queues.values())
            if reserved and now - reader.heard_at > limit_s and not reader.was_warned_about:
                reader.was_warned_about = True
                log.warning(
                    "reader_quiet",
                    reader=reader.name,
                    messages=reserved,
                    quiet_s=int(now - reader.heard_at),
                    remedy="Start its pipeline, or give the messages back:"
                    f" qmd reader release '{reader.name}'",
                )

    # Within.

    def _find(self, text: str) -> LocalQueue:
        """A queue of ours by id, or by any spelling."""
        try:
            guid = guid_bytes(text)
        except InvalidName:
            return self._destinations.find_queue(text)
        queue = self._destinations.queue_by_guid(guid)
        if queue is None:
            raise Refusal(
                "no_such_queue",
                f"this queue manager has no queue with the id {text}",
                "It was deleted; one that was made anew under its name has another id.",
            )
        return queue

    find = _find

    def _reader(self, name: str, fence: int | None = None) -> Reader:
        reader = self._readers.get(name)
        if reader is None:
            raise Refusal(
                "no_such_reader",
                f"there is no reader {name!r}",
                "Open it first; `qmd reader list`.",
            )
        if fence is not None and fence != reader.fence:
            raise Refusal(
                "reader_fenced",
                f"another run of reader {name} has begun since, or it was released: this one"
                f" has fence {fence}, and {reader.fence} is the present one",
                "End this run. Two pipelines need readers of different names.",
            )
        if fence is not None:
            self._heard(reader)
        return reader

    def _heard(self, reader: Reader) -> None:
        reader.heard_at = self._services.loop.time()
        reader.was_warned_about = False

    def _held(self, reader: Reader, text: str) -> ReaderQueue:
        held = reader.queues.get(text)
        if held is None:
            queue = self._find(text)
            held = reader.queues.get(id_text(queue))
            if held is None:
                raise Refusal(
                    "queue_not_open",
                    f"reader {reader.name} has not opened {queue.name}",
                    "Name all of its queues when it is opened.",
                )
        if held.queue.deleted:
            raise gone(reader.name, held.queue.name)
        return held

    def _check_not_consumed(self, held: ReaderQueue, after: int) -> None:
        if after < held.position:
            raise Refusal(
                "range_consumed",
                f"reader {held.reader.name} is done with {held.queue.name} up to position"
                f" {held.position}, and what is behind {after} is asked for",
                "The checkpoint is older than what was consumed or released; what was received is"
                " in the queue's journal, if it has one.",
            )
