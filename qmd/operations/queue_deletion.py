"""Deletion of queues, with their subqueues, their journals and their messages."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING

import structlog

from qmd.errors import Refusal
from qmd.message.shared_packet import express_removed
from qmd.operations.purge import Purged
from qmd.queues.local_queue import relatives
from storage.errors import StorageError
from storage.tables import directory_changes
from storage.tables import queues as queue_rows
from storage.tables.directory_changes import DirectoryChange

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable

    from qmd.directory.registration import Registration
    from qmd.operations.purge import Purger
    from qmd.queues.local_queue import LocalQueue
    from qmd.queues.named_dead_letter_queue import NamedDeadLetterQueues
    from qmd.queues.registry import LocalQueues
    from qmd.runtime.services import Services

log = structlog.get_logger()

RETRY_S = 0.5  # between two attempts to read the messages of a deleted queue


class QueueDeletion:
    """Deletion of queues, and the deletions in progress."""

    def __init__(
        self,
        services: Services,
        own_dead_letters: NamedDeadLetterQueues,
        purger: Purger,
        queues: LocalQueues,
        registration: Registration,
        check_deletable: Callable[[list[LocalQueue]], None],
        removed: Callable[[LocalQueue], None],
    ) -> None:
        """`check_deletable` refuses queues that pipelines read; `removed` is called when a queue
        cannot be found any more."""
        self._services = services
        self._own_dead_letters = own_dead_letters
        self._purger = purger
        self._queues = queues
        self._registration = registration
        self._check_deletable = check_deletable
        self._removed = removed
        self.under_way: dict[str, asyncio.Event] = {}  # by the key of the queue

    async def finished(self, key: str) -> None:
        """Wait until no queue with this key is being deleted."""
        while (deletion := self.under_way.get(key)) is not None:
            await deletion.wait()

    async def delete(self, queue: LocalQueue, *, dry_run: bool = False) -> Purged:
        """Delete a queue, its subqueues and its journal, and end their messages.  Raises Refusal.

        From the beginning, no client finds the queue.  Its messages end piece by piece, and the
        queue is deleted in one commit with the last of them.  Messages that readers have taken end
        with the queue.
        """
        await self._check(queue)
        family = relatives(queue)
        self._check_deletable(family)
        if dry_run:
            return Purged(
                sum(each.messages for each in family), sum(each.own_bytes for each in family), 0
            )
        change = None
        if queue.is_public and not await self._registration.unregister(queue):
            change = self._registration.change_of(queue, deleted=True)
        if queue.deleted:
            raise _deleted_elsewhere(queue)
        done = self.under_way[queue.key] = asyncio.Event()
        try:
            purged = await self._delete(queue, family, change)
        finally:
            del self.under_way[queue.key]
            done.set()
        log.info("queue_deleted", queue=queue.name, messages=purged.messages)
        if change is not None:
            self._registration.notify_later(change)
        return purged

    async def _check(self, queue: LocalQueue) -> None:
        """Raise Refusal for a queue that cannot be deleted."""
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
                "Purge it instead; it is deleted with its queue.",
            )
        if await self._own_dead_letters.are_kept_in(queue):
            raise Refusal(
                "dead_letters_expected",
                f"messages under way name {queue.name} for their dead letters",
                "Delete it when they are delivered or dead; until then it can be purged.",
            )
        if queue.deleted:
            raise _deleted_elsewhere(queue)

    async def _delete(
        self, queue: LocalQueue, family: list[LocalQueue], change: DirectoryChange | None
    ) -> Purged:
        """Delete the queues of `family`; `change` is sent to the directory later."""
        for each in family:
            del self._queues.by_key[each.key]
            del self._queues.by_id[each.id]
            self._queues.being_deleted.add(each.id)
            each.deleted = True
            waiters, each.waiters = each.waiters, type(each.waiters)()
            for waiter in waiters:
                self._services.timers.cancel(waiter)
                waiter.answer([])
        self._removed(queue)
        await self._services.storage.batch.barrier()  # until messages on their way are in it
        purged = await self._purge(queue, family)
        for each in family:
            self._purger.end_taken(each)
        await self._services.storage.batch.run(
            partial(_delete_rows, queue_id=queue.id, change=change)
        )
        self._queues.being_deleted.difference_update(each.id for each in family)
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

    async def _purge(self, queue: LocalQueue, family: list[LocalQueue]) -> Purged:
        """End the messages; after a failed read, try again until the disk answers.

        The streams to the queue are forgotten, so that it cannot come back before a restart.  The
        result counts the messages that ended since the last failed read.

        Raises StorageError if the storage has failed.
        """
        while True:
            try:
                return await self._purger.purge_deleted(family)
            except StorageError as error:
                if self._services.storage.failed.done() or self._services.lifecycle.stopping:
                    raise
                self._services.log_limited(
                    "queue_deletion_delayed", queue.key, queue=queue.name, reason=str(error)
                )
                await asyncio.sleep(RETRY_S)


def _delete_rows(db: sqlite3.Connection, *, queue_id: int, change: DirectoryChange | None) -> None:
    queue_rows.delete(db, queue_id=queue_id)
    if change is not None:
        directory_changes.note(db, change)


def _deleted_elsewhere(queue: LocalQueue) -> Refusal:
    return Refusal("no_such_queue", f"{queue.name} is being deleted by another request")
