"""Named dead-letter queues: applications name a queue for the dead letters of their messages.

[MS-MQDMPR] 3.1.1.12 ApplicationDeadLetterQueueFormatName. The name is not on the wire; only the
queue manager of the application stores it. A periodic task forgets the entries of messages that
are gone, so their number is bounded by that of the stored messages.

A start does not wait for the stored entries: they are loaded in pieces, and those that are needed
earlier are looked up one by one, which takes some ten microseconds.
"""

from __future__ import annotations

import asyncio
from functools import lru_cache, partial
from typing import TYPE_CHECKING

from protocol.errors import InvalidName
from protocol.names.format_name import parse_destination
from qmd.control_protocol.messages import TRANSACTIONAL
from qmd.core.packet_fields import message_number, source_of
from qmd.errors import Refusal
from qmd.message.shared_packet import head_of
from qmd.queues.local_queue import LocalQueue
from storage.errors import StorageError
from storage.tables import own_dead_letters as rows
from storage.tables.own_dead_letters import OwnDeadLetter

if TYPE_CHECKING:
    from collections.abc import Callable

    from protocol.names.format_name import FormatName
    from qmd.queues.outgoing_queues import OutgoingQueues
    from qmd.queues.registry import LocalQueues
    from qmd.runtime.services import Services
    from storage.engine.batch import Batch
    from storage.reader import Reader

ROWS_AT_ONCE = 4096
PAUSE_S = 0.005  # between two pieces of a start
RETRY_S = 1.0


class NamedDeadLetterQueues:
    """The dead-letter queues that applications have named, by message number."""

    def __init__(self, services: Services, outgoing: OutgoingQueues, queues: LocalQueues) -> None:
        self._services = services
        self._outgoing = outgoing
        self._queues = queues
        self._by_number: dict[int, int] = {}  # message number to queue id
        self._express: set[int] = set()  # the express messages among them, which are not on disk
        self._gone: set[int] = set()  # gone at the last check; a commit may still be reported
        self._unwritten: list[OwnDeadLetter] = []  # entries that go to disk with the open batch
        self._batch_number = 0
        self._reader: Reader | None = None  # while stored entries are not loaded yet
        self._is_loaded = asyncio.Event()
        self._is_loaded.set()
        self._loading: asyncio.Task[None] | None = None

    def connect(self, find_here: Callable[[FormatName], LocalQueue | None]) -> None:
        """Set the function that finds a queue of this queue manager by its name."""
        self._find_here = find_here

    @property
    def has_any(self) -> bool:
        """Whether any message has a dead-letter queue of its application."""
        return bool(self._by_number) or self.is_loading

    @property
    def is_loading(self) -> bool:
        """Whether stored entries are not loaded yet."""
        return self._reader is not None

    async def restore(self) -> None:
        """Find the stored entries from now on, and begin to load them.  Raises StorageError."""
        self._reader = await self._services.storage.open_reader()
        self._is_loaded.clear()
        self._loading = self._services.loop.create_task(self._load(self._reader))
        self._loading.add_done_callback(self._ended)

    def stop(self) -> None:
        """Stop loading; the storage closes the reader."""
        if self._loading is not None:
            self._loading.cancel()

    async def _load(self, reader: Reader) -> None:
        """Load the stored entries, a piece at a time: other work has its turn between them."""
        loaded: dict[int, int] = {}
        after = -1
        while True:
            try:
                piece = await reader.read(partial(rows.page, after=after, rows_max=ROWS_AT_ONCE))
            except StorageError as error:  # they are still found one by one
                self._services.log_limited("own_dead_letters_not_loaded", "", reason=str(error))
                await asyncio.sleep(RETRY_S)
                continue
            if not piece:
                break
            loaded |= piece
            after = next(reversed(piece))
            await asyncio.sleep(PAUSE_S)
        loaded |= self._by_number  # entries of this run replace older ones of the same number
        self._by_number = loaded
        self._reader = None
        self._is_loaded.set()
        await reader.close()

    def _ended(self, loading: asyncio.Task[None]) -> None:
        if not loading.cancelled() and (error := loading.exception()) is not None:
            self._services.lifecycle.fail(error)

    def check(self, text: str, delivery: int) -> LocalQueue:
        """Return the queue that an application names for its dead letters. Raises Refusal.

        `delivery` is that of the message; the queue must be of the same kind.
        """
        try:
            name = _parse(text)
        except InvalidName as error:
            raise Refusal(
                "name_not_understood", f"'{text}' is not the name of a queue: {error}"
            ) from error
        queue = self._find_here(name)
        if queue is None or queue.is_read_only:
            raise Refusal(
                "bad_dead_letter_queue",
                f"{name} cannot keep dead letters: only a queue that was created on this computer"
                " can",
                f"Create it: qmd queue create NAME{_flag(delivery == TRANSACTIONAL)}",
            )
        if queue.transactional != (delivery == TRANSACTIONAL):
            kinds = (
                ("transactional", "is not") if queue.transactional else ("not transactional", "is")
            )
            raise Refusal(
                "bad_dead_letter_queue",
                f"queue {queue.name} is {kinds[0]} and the message {kinds[1]}, so that it could not"
                " keep it",
                f"Name another one: qmd queue create NAME{_flag(delivery == TRANSACTIONAL)}",
            )
        return queue

    def add(
        self, number: int, queue: LocalQueue, place: str, key: int, batch: Batch, *, express: bool
    ) -> None:
        """Remember the queue of a message, with the open batch unless it is an express message.

        `place` is the table that stores the message, `key` its key there.
        """
        self._by_number[number] = queue.id
        if express:
            self._express.add(number)
        else:
            if batch.number != self._batch_number:  # the unit of the last batch has its own rows
                self._batch_number, self._unwritten = batch.number, []
                batch.run(partial(rows.insert, rows=self._unwritten))
            self._unwritten.append(OwnDeadLetter(number, queue.id, place, key))

    def add_all(
        self,
        columns: tuple[list[int], list[int], list[int]],
        place: str,
        batch: Batch,
        *,
        express: bool,
    ) -> None:
        """Remember the queues of many messages in one table, as `add` does.

        `columns` are their numbers, the ids of their queues, and their keys.
        """
        numbers, queue_ids, _ = columns
        self._by_number.update(zip(numbers, queue_ids, strict=True))
        if express:
            self._express.update(numbers)
        elif numbers:
            batch.run(partial(rows.insert_all, columns=columns, place=place))

    def queue_of(self, packet: bytes) -> LocalQueue | None:
        """Return the queue that keeps this dead letter; None: one of the system's queues."""
        if not self.has_any or source_of(packet) != self._services.id:
            return None
        number = message_number(packet)
        queue_id = self._by_number.get(number)
        if queue_id is None and self._reader is not None:
            queue_id = self._reader.read_at_once(partial(rows.queue_of, number=number))
        return None if queue_id is None else self._queues.by_id.get(queue_id)

    async def are_kept_in(self, queue: LocalQueue) -> bool:
        """Return whether any stored message names this queue for its dead letter."""
        await self._is_loaded.wait()
        if queue.id not in self._by_number.values():
            return False
        await self.forget_gone()
        await self.forget_gone()
        return queue.id in self._by_number.values()

    async def forget_gone(self) -> None:
        """Forget messages that were gone at the last check already."""
        await self._is_loaded.wait()
        if not self._by_number:
            return
        after, found = -1, set[int]()
        next_after: int | None = after
        while next_after is not None:
            numbers, next_after = await self._services.storage.read(
                partial(rows.gone, after=next_after, rows_max=ROWS_AT_ONCE)
            )
            found.update(numbers)
        found |= self._express - self._express_in_memory()
        over = [number for number in found if number in self._gone]
        self._gone = found
        for start in range(0, len(over), ROWS_AT_ONCE):
            part = over[start : start + ROWS_AT_ONCE]
            delete = partial(rows.delete, numbers=part)
            await self._services.storage.batch.run(delete, can_wait=True)
            for number in part:
                self._by_number.pop(number, None)
                self._express.discard(number)

    def _express_in_memory(self) -> set[int]:
        """Return the numbers of all express messages in memory."""
        there: set[int] = set()
        for queue in self._queues.by_key.values():
            there.update(message_number(head_of(each.packet)) for each in queue.express.values())
        for outgoing in self._outgoing.queues:
            there.update(message_number(head_of(packet)) for packet, _ in outgoing.express.values())
        return there


def _flag(transactional: bool) -> str:
    return " --transactional" if transactional else ""


@lru_cache(maxsize=256)
def _parse(text: str) -> FormatName:
    """Return the name of a queue; a request may have it in each of its messages."""
    return parse_destination(text, local_host=".")
