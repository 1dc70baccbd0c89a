"""Queues come and go, and are emptied."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import structlog

from qmd.compose import LABEL_CHARACTERS_MAX
from qmd.frames import UNLIMITED, StoredMessage
from qmd.local_queue import LocalQueue, Reader
from qmd.recorder import Kind, Told
from qmd.refusal import Refusal
from storage import events as event_rows
from storage import messages as message_rows
from storage import queues as queue_rows
from storage.errors import QueueExists, StoredError, TooManyQueues
from storage.keys import (
    ARRIVAL_MAX,
    LOOKUP_BITS,
    LOOKUP_MASK,
    TRANSACTIONAL_LEVEL,
)
from storage.pages import Head, Totals

if TYPE_CHECKING:
    import sqlite3

    from qmd.manager import QueueManager

log = structlog.get_logger()

PURGE_ROWS = 4096  # deleted in one commit
QUOTA_BYTES_MAX = (1 << 63) - 1  # what SQLite can keep


class Administration:
    """What operators do with queues."""

    def __init__(self, manager: QueueManager) -> None:
        self._manager = manager

    async def create(
        self,
        name: str,
        *,
        transactional: bool,
        label: str,
        journal: bool,
        quota_bytes: int | None,
        journal_quota_bytes: int | None = None,
    ) -> LocalQueue:
        """A new queue of ours; quotas that are None are the configuration's.  Raises Refusal."""
        path = self._manager.routes.own_path(name)
        quotas = self._manager.settings.quotas
        quota = _quota(quota_bytes, quotas.queue_bytes)
        journal_quota = _quota(journal_quota_bytes, quotas.journal_bytes)
        _check_label(label)
        now_s = int(self._manager.environment.time())

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
            )
            return [row, queue_rows.create_journal(db, row, now_s)] if journal else [row]

        try:
            rows = await self._manager.storage.batch.run(create)
        except QueueExists as error:
            raise Refusal(
                "queue_exists", str(error), "Choose another name, or delete it first."
            ) from error
        except TooManyQueues as error:
            raise Refusal(
                "too_many_queues", str(error), "Delete queues that nobody needs."
            ) from error
        log.info("queue_created", queue=path, transactional=transactional)
        queue, *_ = [self._manager.adopt(row, 0, 0) for row in rows]
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
        now_s = int(self._manager.environment.time())

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
            return row, queue_rows.create_journal(db, row, now_s) if row.journal else None

        try:
            row, journal_row = await self._manager.storage.batch.run(change)
        except StoredError as error:  # it was deleted meanwhile
            raise Refusal("no_such_queue", str(error)) from error
        queue.label, queue.journal = row.label, row.journal
        queue.journal_quota_bytes = row.journal_quota_bytes
        queue.set_quota(self._manager.quota_of(row))
        if journal_row is not None and queue.own_journal is None and not queue.deleted:
            self._manager.adopt(journal_row, 0, 0)
        if queue.own_journal is not None:
            queue.own_journal.set_quota(row.journal_quota_bytes)
        log.info(
            "queue_changed",
            queue=queue.name,
            quota_bytes=queue.quota_bytes,
            journal_quota_bytes=queue.journal_quota_bytes,
            journal=queue.journal,
        )
        return queue

    async def delete(self, queue: LocalQueue) -> int:
        """The queue and what is in it; how many messages that were.  Raises Refusal."""
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
        if await self._manager.own_dead_letters.are_kept_in(queue):
            raise Refusal(
                "dead_letters_expected",
                f"messages that are on their way name {queue.name} for their dead letters",
                "Delete it when they have arrived or died; until then it can be purged.",
            )
        count = 0
        for each in queue.relatives:
            count += await self.purge(each, Kind.QUEUE_DELETED)
        if queue.deleted:
            return count  # by another request, meanwhile
        family = queue.relatives
        for each in family:
            del self._manager.queues[each.key]
            del self._manager.queues_by_id[each.id]
            each.deleted = True
        if queue.parent is not None:
            queue.parent.subqueues.remove(queue)
        self._manager.routes.forget()
        self._manager.incoming.forget_queue(queue)
        recorder = self._manager.recorder
        for each in family:  # what somebody has taken goes as well
            recorder.record(
                Kind.QUEUE_DELETED,
                [message.packet for message in each.express.values()],
                queue=each.name,
                places=list(each.express),
            )

        def delete(db: sqlite3.Connection) -> Totals:
            for each in family:
                rest = message_rows.identities(db, each.id)
                told = recorder.told(Kind.QUEUE_DELETED, map(_told, rest), queue=each.name)
                event_rows.insert(db, told)
            return queue_rows.delete(db, queue.id)

        rest = await self._manager.storage.batch.run(delete)
        for each in reversed(family):  # subqueues count with their queue
            each.shrink(each.bytes)
            for message in each.express.values():  # what somebody has taken
                each.usage.express_bytes -= len(message.packet)
            waiters, each.waiters = each.waiters, type(each.waiters)()
            for waiter in waiters:
                self._manager.timers.cancel(waiter)
                waiter.answer([])
            self._manager.reading.serve(each)
        log.info("queue_deleted", queue=queue.name, messages=count + rest.messages)
        return count + rest.messages

    async def purge(self, queue: LocalQueue, kind: Kind = Kind.PURGED) -> int:
        """Delete every message that is there now and not taken; how many those were."""
        last = self._manager.next_lookup_id(TRANSACTIONAL_LEVEL)
        express = list(queue.express)
        start = count = 0
        while True:
            keys = await self._manager.storage.read(
                partial(
                    message_rows.keys, queue_id=queue.id, from_lookup=start, rows_max=PURGE_ROWS
                )
            )
            stored = [key & LOOKUP_MASK for key in keys if key & ARRIVAL_MAX < last & ARRIVAL_MAX]
            doomed, express = stored + express[:PURGE_ROWS], express[PURGE_ROWS:]
            purger = Reader()
            held = [lookup_id for lookup_id in doomed if queue.hold(purger, lookup_id)]
            keys_held = [queue.id << LOOKUP_BITS | lookup_id for lookup_id in held]
            gone = [queue.express[lookup_id] for lookup_id in held if lookup_id in queue.express]
            purged = await self._manager.storage.batch.run(
                partial(self._purge, queue=queue, keys=keys_held, express=gone, kind=kind)
            )
            count += purged.messages + len(gone)
            queue.forget(held)
            queue.count_out(*purged)
            if len(keys) < PURGE_ROWS and not express:
                return count
            start = (keys[-1] & LOOKUP_MASK) + 1 if keys else start

    def _purge(
        self,
        db: sqlite3.Connection,
        queue: LocalQueue,
        keys: list[int],
        express: list[StoredMessage],
        kind: Kind,
    ) -> Totals:
        """Take stored messages away, and tell of them and of express ones that go with them."""
        recorder = self._manager.recorder
        removed = message_rows.remove(db, keys)
        told = recorder.told(kind, map(_told, removed), queue=queue.name)
        told += recorder.events(
            kind,
            [message.packet for message in express],
            queue=queue.name,
            places=[message.lookup_id for message in express],
        )
        event_rows.insert(db, told)
        return Totals(len(removed), sum(each.size for each in removed))


def _told(row: Head) -> Told:
    return row.source, row.number, row.key & LOOKUP_MASK, row.size


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
