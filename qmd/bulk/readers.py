"""All readers of data pipelines in memory: found by name and queue, listed, forgotten."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import structlog

from protocol.errors import InvalidName
from protocol.identifiers import guid_bytes
from qmd.bulk.reader import Reader, ReaderQueue, StoredReaders, describe, id_text
from qmd.bulk.reserve_next import queue_deleted
from qmd.errors import Refusal
from qmd.queues.local_queue import LocalQueue
from storage.tables import reservations
from storage.tables.keys import LOOKUP_MASK
from storage.tables.reservations import ReaderQueueRow, ReaderRow

if TYPE_CHECKING:
    from qmd.naming.destinations import Destinations
    from qmd.queues.registry import LocalQueues
    from qmd.runtime.services import Services

log = structlog.get_logger()

Value = dict[str, Any]


class Readers:
    """The readers of this queue manager, by name."""

    def __init__(self, services: Services, queues: LocalQueues, destinations: Destinations) -> None:
        self._services = services
        self._queues = queues
        self._destinations = destinations
        self._by_name: dict[str, Reader] = {}
        self._stale: list[int] = []  # ids of reader's queues that were deleted

    def restore(self, stored: StoredReaders) -> None:
        """Restore all readers and their reservations, before any client can receive."""
        by_id = {row.id: self.add(row) for row in stored.readers}
        queues: dict[int, ReaderQueue] = {}
        for each in stored.queues:
            queue = self._queues.by_id.get(each.queue_id)
            if queue is None or queue.guid != each.queue or each.reader_id not in by_id:
                self._stale.append(each.id)
                continue
            queues[each.id] = self.add_queue(by_id[each.reader_id], queue, each)
        for queue_id, runs in groupby(stored.runs, itemgetter(0)):
            held = queues.get(queue_id)
            if held is not None:
                held.queue.reserved.restore(
                    [(first & LOOKUP_MASK, last & LOOKUP_MASK) for _, (first, last) in runs]
                )

    def add(self, row: ReaderRow) -> Reader:
        """Add a reader that the storage has, without queues."""
        reader = Reader(row.id, row.name, row.fence, row.opened_at_s, self._services.loop.time())
        self._by_name[row.name] = reader
        return reader

    def add_queue(self, reader: Reader, queue: LocalQueue, row: ReaderQueueRow) -> ReaderQueue:
        """Add a queue to a reader, with the positions that the storage has."""
        added = reader.queues[id_text(queue)] = ReaderQueue(
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
        return added

    # Finding.

    def all(self) -> list[Reader]:
        """Return all readers."""
        return list(self._by_name.values())

    def get(self, name: str) -> Reader | None:
        """Return the reader of this name, or None."""
        return self._by_name.get(name)

    def find(self, name: str, fence: int | None = None) -> Reader:
        """Return the reader of this name, and note a request of its present run.

        Raises Refusal if there is no such reader, or if `fence` is not its present one.
        """
        reader = self._by_name.get(name)
        if reader is None:
            raise Refusal(
                "no_such_reader",
                f"there is no reader {name!r}",
                "Open it first; `qmd reader list`.",
            )
        if fence is not None and fence != reader.fence:
            raise Refusal(
                "reader_fenced",
                f"another run of reader {name} has begun since, or the reader was released:"
                f" this run has fence {fence}, and the current fence is {reader.fence}",
                "End this run. Two pipelines need readers of different names.",
            )
        if fence is not None:
            self.note_request(reader)
        return reader

    def note_request(self, reader: Reader) -> None:
        """Note that a request of the reader's run came just now."""
        reader.active_at = self._services.loop.time()
        reader.was_warned_about = False
        reader.was_used = True

    def find_queue(self, text: str) -> LocalQueue:
        """Return a local queue by its id or by any spelling of its name.  Raises Refusal."""
        try:
            guid = guid_bytes(text)
        except InvalidName:
            return self._destinations.find_queue(text)
        queue = self._destinations.queue_by_guid(guid)
        if queue is None:
            raise Refusal(
                "no_such_queue",
                f"this queue manager has no queue with the id {text}",
                "It was deleted; a queue that was created again with its name has another id.",
            )
        return queue

    def held_queue(self, reader: Reader, text: str) -> ReaderQueue:
        """Return the positions of a reader in a queue that it has opened.  Raises Refusal."""
        held = reader.queues.get(text)
        if held is None:
            queue = self.find_queue(text)
            held = reader.queues.get(id_text(queue))
            if held is None:
                raise Refusal(
                    "queue_not_open",
                    f"reader {reader.name} has not opened {queue.name}",
                    "Name all of its queues when it is opened.",
                )
        if held.queue.deleted:
            raise queue_deleted(reader.name, held.queue.name)
        return held

    def queues_of(self, name: str) -> list[LocalQueue]:
        """Return the queues of a reader; of an unknown reader, an empty list."""
        reader = self._by_name.get(name)
        held = () if reader is None else reader.queues.values()
        return [each.queue for each in held if not each.queue.deleted]

    # Listing.

    def overview(self) -> list[Value]:
        """Return the answer to the request `ListReaders`: one entry for each reader's queue."""
        now = self._services.loop.time()
        return [
            describe(held, queue_id, now=now)
            for reader in self._by_name.values()
            for queue_id, held in reader.queues.items()
        ]

    def check_deletable(self, family: Iterable[LocalQueue]) -> None:
        """Raise Refusal if any message of these queues is reserved."""
        for queue in family:
            if queue.reserved:
                raise Refusal(
                    "messages_reserved",
                    f"{len(queue.reserved)} messages of {queue.name} are reserved for"
                    f" {self._holders(queue)}",
                    "Let its pipeline finish (`qmd pipeline finish`), or release them:"
                    " qmd reader release",
                )

    def _holders(self, queue: LocalQueue) -> str:
        """Return the names of the readers with reservations in a queue, for a message text."""
        names = sorted(
            reader.name
            for reader in self._by_name.values()
            for held in reader.queues.values()
            if held.queue is queue and held.reserved
        )
        return f"the reader {names[0]}" if len(names) == 1 else f"the readers {', '.join(names)}"

    async def warn(self) -> None:
        """Log each reader that holds messages and has sent no request for long, once."""
        limit_s = self._services.settings.pipeline.quiet_warning_s
        now = self._services.loop.time()
        for reader in self._by_name.values():
            reserved = sum(held.reserved for held in reader.queues.values())
            if reserved and now - reader.active_at > limit_s and not reader.was_warned_about:
                reader.was_warned_about = True
                log.warning(
                    "reader_quiet",
                    reader=reader.name,
                    messages=reserved,
                    quiet_s=int(now - reader.active_at),
                    remedy="Start its pipeline, or give the messages back:"
                    f" qmd reader release '{reader.name}'",
                )

    # Forgetting.

    def forget(self, reader: Reader) -> None:
        """Remove a reader from memory."""
        self._by_name.pop(reader.name, None)

    async def forget_gone(self) -> None:
        """Drop the positions of readers in queues that were deleted."""
        for reader in self._by_name.values():
            for queue_id, held in list(reader.queues.items()):
                if held.queue.deleted and not reader.lock.locked():
                    del reader.queues[queue_id]
                    self._stale.append(held.id)
        while self._stale:
            forget = partial(reservations.forget_queue, reader_queue_id=self._stale[-1])
            await self._services.storage.batch.run(forget, can_wait=True)
            self._stale.pop()
