"""Queues come and go, and are emptied."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import structlog

from protocol.message_class import MessageClass
from qmd.control_protocol.messages import EVERY_MESSAGE, UNLIMITED, Choice, Piece
from qmd.directory import registration as registration
from qmd.errors import Refusal
from qmd.message.build import LABEL_CHARACTERS_MAX
from qmd.message.shared_packet import express_removed
from qmd.operations.selection import PIECE_BYTES, PIECE_MESSAGES
from qmd.queues.local_queue import LocalQueue
from storage.errors import QueueExists, StoredError, TooManyQueues
from storage.tables import directory_changes
from storage.tables import messages as message_rows
from storage.tables import queues as queue_rows
from storage.tables import sequences as sequence_rows
from storage.tables.directory_changes import DirectoryChange
from storage.tables.keys import ARRIVAL_MAX, LOOKUP_MASK, TRANSACTIONAL_LEVEL
from storage.tables.sequences import IncomingSequenceRow

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable

    from qmd.directory.interface import Directory
    from qmd.directory.registration import Registration
    from qmd.naming.destinations import Destinations
    from qmd.operations.selection import Selection
    from qmd.outcomes.dead_letter import DeadLetters
    from qmd.queues.incoming_sequences import IncomingStreams
    from qmd.queues.named_dead_letter_queue import NamedDeadLetterQueues
    from qmd.queues.registry import LocalQueues
    from qmd.runtime.services import Services

log = structlog.get_logger()

QUOTA_BYTES_MAX = (1 << 63) - 1  # what SQLite can keep


class QueueAdministration:
    """What operators do with queues."""

    def __init__(
        self,
        services: Services,
        selection: Selection,
        directory: Directory,
        dead_letters: DeadLetters,
        incoming_streams: IncomingStreams,
        own_dead_letters: NamedDeadLetterQueues,
        registration: Registration,
        queues: LocalQueues,
        destinations: Destinations,
        *,
        queues_max: int,
    ) -> None:
        self._services = services
        self._selection = selection
        self._directory = directory
        self._dead_letters = dead_letters
        self._incoming_streams = incoming_streams
        self._own_dead_letters = own_dead_letters
        self._registration = registration
        self._queues = queues
        self._destinations = destinations
        self._queues_max = queues_max
        self._being_created = 0
        self._deletions: dict[str, asyncio.Event] = {}  # under way, by the queue's key

    def connect(self, check_deletable: Callable[[list[LocalQueue]], None]) -> None:
        """Name what refuses to delete queues that are read by pipelines."""
        self._check_deletable = check_deletable

    async def create(
        self,
        name: str,
        *,
        transactional: bool,
        label: str,
        journal: bool,
        quota_bytes: int | None,
        journal_quota_bytes: int | None = None,
        public: bool = False,
    ) -> LocalQueue:
        """A new queue of ours; quotas that are None are the configuration's.  Raises Refusal.

        A `public` one is registered in the directory first, and gets its GUID from there.
        """
        path = self._destinations.own_path(name, public=public)
        quotas = self._services.settings.quotas
        quota = _quota(quota_bytes, quotas.queue_bytes)
        journal_quota = _quota(journal_quota_bytes, quotas.journal_bytes)
        _check_label(label)
        while (deletion := self._deletions.get(path.lower())) is not None:
            await deletion.wait()  # of a queue of that name
        make = partial(
            self._create,
            path,
            transactional=transactional,
            label=label,
            journal=journal,
            quota=quota,
            journal_quota=journal_quota,
        )
        if path.lower() in self._queues.by_key:
            raise _exists(path)
        with self.places(2 if journal else 1):
            if not public:
                return await make()
            new = registration.new_queue(
                self._services,
                path,
                label=label,
                transactional=transactional,
                journal=journal,
                quota_bytes=quota,
                journal_quota_bytes=journal_quota,
            )
            directory = self._registration
            async with directory.turn:
                guid = await directory.register(new)
                queue = await make(guid=guid)
                directory.created(guid)
            return queue

    @contextlib.contextmanager
    def places(self, count: int) -> Iterator[None]:
        """While so many queues are being created, their places are taken.

        Raises Refusal where there are none left, without a look at the disk: whoever asks for
        more and more queues then keeps nobody waiting.
        """
        queues = self._queues.by_id
        system = sum(queue_id in queues for queue_id in range(queue_rows.FIRST_USER_QUEUE_ID))
        if len(queues) - system + self._being_created + count > self._queues_max:
            raise _too_many(self._queues_max)
        self._being_created += count
        try:
            yield
        finally:
            self._being_created -= count

    async def _create(
        self,
        path: str,
        *,
        transactional: bool,
        label: str,
        journal: bool,
        quota: int | None,
        journal_quota: int | None,
        guid: bytes | None = None,
    ) -> LocalQueue:
        """With properties that were looked at, and what the directory calls it."""
        now_s = int(self._services.environment.time())
        streams: list[IncomingSequenceRow] = []

        def create(db: sqlite3.Connection) -> list[queue_rows.QueueRow]:
            row = queue_rows.create(
                db,
                name=path,
                transactional=transactional,
                now_s=now_s,
                label=label,
                journal=journal,
                quota_bytes=quota,
                journal_quota_bytes=journal_quota,
                directory_guid=guid,
            )
            if guid is not None:
                directory_changes.forget(db, guid)  # that one of its name was deleted
            streams[:] = sequence_rows.of_queue(db, row.id)
            return [row, queue_rows.create_journal(db, row, now_s)] if journal else [row]

        try:
            rows = await self._services.storage.batch.run(create)
        except QueueExists as error:
            raise _exists(path) from error
        except TooManyQueues as error:  # of those that are being deleted the ids are not free yet
            if guid is not None:
                await registration.in_time(
                    self._services, self._directory, self._directory.changes.unregister_queue(guid)
                )
            raise _too_many(self._queues_max) from error
        log.info("queue_created", queue=path, transactional=transactional)
        queue, *_ = [self._queues.adopt(row, 0, 0) for row in rows]
        for stream in streams:  # a queue of that name was deleted: what came to it does not again
            self._incoming_streams.restore(stream, queue)
        return queue

    async def change(
        self,
        queue: LocalQueue,
        *,
        quota_bytes: int | None = None,
        journal_quota_bytes: int | None = None,
        journal: bool | None = None,
        label: str | None = None,
    ) -> LocalQueue:
        """Other properties for a queue; what is None stays, a quota of UNLIMITED is none.

        Messages that a smaller quota has no room for stay.  Raises Refusal.
        """
        if queue.is_system and (
            queue.id != queue_rows.JOURNAL_ID
            or (journal_quota_bytes, journal, label) != (None, None, None)
        ):
            raise Refusal(
                "system_queue_unchanged",
                f"{queue.name} belongs to the queue manager; only the quota of the journal can be"
                " changed",
                "What ends in a dead-letter queue must be kept; purge it to make room.",
            )
        if queue.parent is not None:
            raise Refusal(
                "subqueue_unchanged",
                f"{queue.name} has no properties of its own",
                f"Change those of its queue: qmd queue set '{queue.parent.name}'",
            )
        if label is not None:
            _check_label(label)
        # What a change leaves out is that of the disk, and not of another change under way.
        quota = _quota(quota_bytes, 0)
        journal_quota = _quota(journal_quota_bytes, 0)
        now_s = int(self._services.environment.time())
        told = self._registration.change_of(queue, deleted=False)

        def change(
            db: sqlite3.Connection,
        ) -> tuple[queue_rows.QueueRow, queue_rows.QueueRow | None]:
            row = queue_rows.get(db, queue.id)
            row = queue_rows.change(
                db,
                queue.id,
                label=row.label if label is None else label,
                journal=row.journal if journal is None else journal,
                quota_bytes=row.quota_bytes if quota_bytes is None else quota,
                journal_quota_bytes=(
                    row.journal_quota_bytes if journal_quota_bytes is None else journal_quota
                ),
                now_s=now_s,
            )
            if told is not None:
                directory_changes.note(db, told)
            return row, queue_rows.create_journal(db, row, now_s) if row.journal else None

        needs_journal = journal is True and queue.own_journal is None
        try:
            with self.places(1) if needs_journal else contextlib.nullcontext():
                row, journal_row = await self._services.storage.batch.run(change)
        except TooManyQueues as error:
            raise _too_many(self._queues_max) from error
        except StoredError as error:  # it was deleted meanwhile
            raise Refusal("no_such_queue", str(error)) from error
        queue.label, queue.journal = row.label, row.journal
        queue.journal_quota_bytes = row.journal_quota_bytes
        queue.set_quota(self._queues.quota_of(row))
        if journal_row is not None and queue.own_journal is None and not queue.deleted:
            self._queues.adopt(journal_row, 0, 0)
        if queue.own_journal is not None:
            queue.own_journal.set_quota(row.journal_quota_bytes)
        log.info(
            "queue_changed",
            queue=queue.name,
            quota_bytes=queue.quota_bytes,
            journal_quota_bytes=queue.journal_quota_bytes,
            journal=queue.journal,
        )
        if told is not None:
            await self._registration.notify(told)
        return queue

    async def delete(self, queue: LocalQueue, *, dry_run: bool = False) -> Purged:
        """The queue, its subqueues and its journal, and what is in them.  Raises Refusal.

        Nobody finds the queue from the beginning on; then its messages end, piece by piece, and the
        queue itself goes with the last of them.  Those that somebody has taken end with it.
        """
        if queue.is_system:
            raise Refusal(
                "system_queue_kept",
                f"{queue.name} belongs to the queue manager and cannot be deleted",
                "Purge it instead.",
            )
        if queue.is_journal:
            raise Refusal(
                "system_queue_kept",
                f"{queue.name} is the journal of a queue and cannot be deleted",
                "Purge it instead; it goes with its queue.",
            )
        if await self._own_dead_letters.are_kept_in(queue):
            raise Refusal(
                "dead_letters_expected",
                f"messages that are on their way name {queue.name} for their dead letters",
                "Delete it when they have arrived or died; until then it can be purged.",
            )
        if queue.deleted:
            raise Refusal("no_such_queue", f"{queue.name} is being deleted by another request")
        family = queue.relatives
        self._check_deletable(family)
        if dry_run:
            return Purged(
                sum(each.messages for each in family), sum(each.own_bytes for each in family), 0
            )
        told = None
        if queue.is_public and not await self._registration.unregister(queue):
            told = self._registration.change_of(queue, deleted=True)
        if queue.deleted:
            raise Refusal("no_such_queue", f"{queue.name} is being deleted by another request")
        done = self._deletions[queue.key] = asyncio.Event()
        try:
            purged = await self._delete(queue, family, told)
        finally:
            del self._deletions[queue.key]
            done.set()
        log.info("queue_deleted", queue=queue.name, messages=purged.messages)
        if told is not None:
            self._registration.notify_later(told)
        return purged

    async def _delete(
        self, queue: LocalQueue, family: list[LocalQueue], told: DirectoryChange | None
    ) -> Purged:
        """`told`: what the directory has yet to hear of it."""
        for each in family:
            del self._queues.by_key[each.key]
            del self._queues.by_id[each.id]
            each.deleted = True
            waiters, each.waiters = each.waiters, type(each.waiters)()
            for waiter in waiters:
                self._services.timers.cancel(waiter)
                waiter.answer([])
        self._destinations.forget()
        self._incoming_streams.forget_queue(queue)
        await self._services.storage.batch.barrier()  # what is on its way into it
        purged = NOTHING_PURGED
        left = -1
        while True:
            ended = NOTHING_PURGED
            for each in family:
                ended += await self.purge(each, message_class=MessageClass.NACK_QUEUE_DELETED)
            purged += ended
            while any(each.is_settling for each in family) or not self._services.ids.suffice(
                3 * sum(len(each.taken) for each in family)
            ):
                await self._services.storage.batch.barrier()
            # What a reader has given back meanwhile is there, and was not.
            before, left = left, sum(each.messages - len(each.taken) for each in family)
            if not left or (left == before and not ended.messages):
                break
        for each in family:
            taken = [(message.lookup_id, message.packet) for message in each.taken.values()]
            if taken:
                self._dead_letters.end(each, taken, MessageClass.NACK_QUEUE_DELETED)

        def delete(db: sqlite3.Connection) -> None:
            queue_rows.delete(db, queue_id=queue.id)
            if told is not None:
                directory_changes.note(db, told)

        await self._services.storage.batch.run(delete)
        for each in reversed(family):  # subqueues count with their queue
            purged += Purged(each.messages, each.own_bytes, 0)
            each.shrink(each.own_bytes)
            for message in each.express.values():
                each.usage.express_bytes -= express_removed(message.packet)
            each.express.clear()
            each.wake_readers()
        if queue.parent is not None:
            queue.parent.subqueues.remove(queue)
        return purged

    async def purge(
        self,
        queue: LocalQueue,
        choice: Choice = EVERY_MESSAGE,
        *,
        message_class: MessageClass = MessageClass.NACK_QUEUE_PURGED,
        dry_run: bool = False,
    ) -> Purged:
        """End the messages that are there now and not taken, or those of them that are chosen.

        Their senders are told, if they asked for it; nobody is told of what is in a journal or a
        dead-letter queue, because that has ended before.  Raises Refusal.
        """
        purged = NOTHING_PURGED
        piece = Piece(PIECE_MESSAGES)
        while True:
            chosen = await self._chosen(queue, choice, piece)
            if dry_run:
                found = Purged(len(chosen.places), chosen.bytes, chosen.taken)
            else:
                await self._numbers_for(len(chosen.places))
                ended = await self._dead_letters.end_unreceived(queue, chosen.places, message_class)
                found = Purged(ended.messages, ended.bytes, chosen.taken)
            purged += found
            if chosen.next is None:
                return purged
            piece = Piece(PIECE_MESSAGES, chosen.next, chosen.until)

    async def _chosen(self, queue: LocalQueue, choice: Choice, piece: Piece) -> _Chosen:
        """Where the next messages are.  For all of them no packet has to be read."""
        if choice != EVERY_MESSAGE:
            chosen = await self._selection.choose(queue, choice, piece)
            places = [message.lookup_id for message in chosen.messages]
            return _Chosen(places, chosen.bytes, chosen.taken, chosen.next, chosen.until)
        until = piece.until or self._services.ids.next_lookup_id(TRANSACTIONAL_LEVEL) & ARRIVAL_MAX
        found = await self._services.storage.read(
            partial(
                message_rows.sizes,
                queue_id=queue.id,
                from_lookup=piece.start,
                rows_max=piece.limit,
            )
        )
        rows: list[tuple[int, int]] = []
        total = 0
        for key, size in found:
            if rows and total + size > PIECE_BYTES:
                break
            rows.append((key & LOOKUP_MASK, size))
            total += size
        is_last = len(rows) < piece.limit and len(rows) == len(found)
        following = None if is_last else rows[-1][0] + 1
        beyond = LOOKUP_MASK + 1 if following is None else following
        rows += [
            (lookup_id, len(message.packet))
            for lookup_id, message in queue.express.items()
            if piece.start <= lookup_id < beyond
        ]
        rows = [row for row in rows if row[0] & ARRIVAL_MAX < until]
        free = [row for row in rows if row[0] not in queue.taken]
        size = sum(size for _, size in free)
        return _Chosen(
            [lookup_id for lookup_id, _ in free], size, len(rows) - len(free), following, until
        )

    async def _numbers_for(self, messages: int) -> None:
        """Wait until what follows from the end of so many messages can be numbered."""
        while not self._services.ids.suffice(3 * messages):
            await self._services.storage.batch.barrier()


class Purged(NamedTuple):
    """What went, or in a dry run would go; `taken`: what stays, because somebody has it."""

    messages: int
    bytes: int  # of their packets
    taken: int

    def __add__(self, other: object) -> Purged:
        """Both together."""
        assert isinstance(other, Purged)
        return Purged(
            self.messages + other.messages, self.bytes + other.bytes, self.taken + other.taken
        )


NOTHING_PURGED = Purged(0, 0, 0)


class _Chosen(NamedTuple):
    """Lookup ids, and the rest as `choosing.Chosen` has it."""

    places: list[int]
    bytes: int
    taken: int
    next: int | None
    until: int


def _exists(path: str) -> Refusal:
    return Refusal(
        "queue_exists",
        f"there is a queue {path} already",
        "Choose another name, or delete it first.",
    )


def _too_many(queues_max: int) -> Refusal:
    return Refusal(
        "too_many_queues",
        f"there are {queues_max} queues, with subqueues and journals: there can be no more",
        "Delete queues that nobody needs.",
    )


def _quota(asked: int | None, default: int | None) -> int | None:
    """The quota that was asked for: None is the default, UNLIMITED none.  Raises Refusal."""
    quota = default if asked is None else asked
    if quota is None or quota == UNLIMITED:
        return None
    if not 0 <= quota <= QUOTA_BYTES_MAX:
        raise Refusal(
            "bad_quota", f"a quota of {quota} bytes is none", f"Give 0 to {QUOTA_BYTES_MAX}."
        )
    return quota


def _check_label(label: str) -> None:
    if len(label) > LABEL_CHARACTERS_MAX:
        raise Refusal(
            "queue_label_too_long",
            f"the label has {len(label)} characters; {LABEL_CHARACTERS_MAX} are allowed",
        )
