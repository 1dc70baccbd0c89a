r"""Registration of our public queues in the directory.

[MS-MQDMPR] 3.1.7.1.3, 3.1.7.1.4, 3.1.7.1.24

A registration changes the directory first: a crash in between leaves an entry without a queue, and
the next attempt to create the queue reuses that entry. Later changes (label, quotas, deletion) are
made here even if the directory does not answer: the commit of the change also records that the
directory must be updated, and it is updated when it is available again.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Iterable
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import structlog

from protocol.identifiers import guid_text
from qmd.directory.interface import (
    KIND_NONE,
    PRIVACY_OPTIONAL,
    AlreadyInDirectory,
    DirectoryAway,
    NewQueue,
    NoDirectory,
    NotInDirectory,
)
from qmd.errors import Refusal
from qmd.queues.local_queue import OWN_PREFIX, LocalQueue
from storage.tables import directory_changes
from storage.tables.directory_changes import DirectoryChange

if TYPE_CHECKING:
    from collections.abc import Callable

    from qmd.directory.interface import Directory
    from qmd.directory.resolver import Resolver
    from qmd.queues.registry import LocalQueues
    from qmd.runtime.services import Services

T = TypeVar("T")

RETRY_S = 1.0  # minimum, and not before the directory may be queried again

log = structlog.get_logger()


def new_queue(
    services: Services,
    path: str,
    *,
    label: str,
    transactional: bool,
    journal: bool = False,
    quota_bytes: int | None = None,
    journal_quota_bytes: int | None = None,
    authenticate: bool = False,
    privacy: str = PRIVACY_OPTIONAL,
) -> NewQueue:
    r"""Return the registration data of the queue `.\orders`."""
    return NewQueue(
        machine=services.id,
        computer=services.name,
        queue=path.removeprefix(OWN_PREFIX),
        label=label,
        transactional=transactional,
        journal=journal,
        quota_bytes=quota_bytes,
        journal_quota_bytes=journal_quota_bytes,
        authenticate=authenticate,
        privacy=privacy,
    )


class Registration:
    """Updates of the directory about our public queues."""

    def __init__(
        self,
        services: Services,
        directory: Directory,
        queues: LocalQueues,
        resolver: Resolver,
        queue_by_guid: Callable[[bytes], LocalQueue | None],
    ) -> None:
        self._services = services
        self._directory = directory
        self._queues = queues
        self._resolver = resolver
        self._queue_by_guid = queue_by_guid
        #: Serializes requests to the directory and their consequences here.
        self.turn = asyncio.Lock()
        self._waiting: dict[bytes, DirectoryChange] = {}
        self._worker: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()

    def restore(self, rows: Iterable[DirectoryChange]) -> None:
        self._waiting = {row.queue: row for row in rows}

    def start(self) -> None:
        """Begin to send pending changes to the directory, if there is one."""
        if self._waiting and self._worker is None and self._can_notify:
            self._worker = self._services.loop.create_task(self._notify_all())
            self._worker.add_done_callback(self._notified_all)

    def stop(self) -> None:
        """Stop sending; pending changes are on disk."""
        if self._worker is not None:
            self._worker.cancel()

    def directory_changed(self) -> None:
        self._changed.set()
        self._changed.clear()

    @property
    def waiting(self) -> list[DirectoryChange]:
        return list(self._waiting.values())

    @property
    def _can_notify(self) -> bool:
        return self._directory.kind != KIND_NONE and not self._services.lifecycle.stopping

    # Creating.

    async def register(self, new: NewQueue) -> bytes:
        """Register a queue; return the GUID of its entry, a new one or an unused one. Raises
        Refusal.

        The caller holds `turn` until the queue itself is created.
        """
        if new.queue.lower() in self._queues.by_key:
            raise Refusal(
                "queue_exists",
                f"there is a queue {OWN_PREFIX}{new.queue} already",
                "Choose another name, or delete it first.",
            )
        directory = self._directory
        try:
            entry = await in_time(self._services, directory, directory.changes.register_queue(new))
        except AlreadyInDirectory:
            entry = await in_time(
                self._services, directory, directory.queue_by_path(f"{new.computer}\\{new.queue}")
            )
            if entry.machine.guid != self._services.id:
                raise
            if entry.transactional is not None and entry.transactional != new.transactional:
                kind = "transactional" if entry.transactional else "not transactional"
                raise AlreadyInDirectory(
                    f"the directory has {entry.path} already, and there it is {kind}",
                    "Create it as the directory has it, or delete the entry there first.",
                ) from None
            # Senders must not refuse messages by the properties of an earlier queue.
            properties = entry.label, entry.authenticate, entry.privacy
            if properties != (new.label, new.authenticate, new.privacy):
                update = directory.changes.update_queue(entry.guid, new)
                await in_time(self._services, directory, update)
        self._resolver.forget()
        log.info("queue_registered", queue=entry.path, guid=guid_text(entry.guid))
        return entry.guid

    async def withdraw(self, guid: bytes) -> None:
        """Remove the entry of a queue that was registered and not created. Raises Refusal."""
        directory = self._directory
        await in_time(self._services, directory, directory.changes.unregister_queue(guid))

    def created(self, guid: bytes) -> None:
        """Discard a pending change of the entry: its new queue exists."""
        self._waiting.pop(guid, None)

    # Later changes.

    def change_of(self, queue: LocalQueue, *, deleted: bool) -> DirectoryChange | None:
        """Return the row to store with a change of a queue; None if no directory needs it."""
        if not queue.is_public or self._directory.kind == KIND_NONE:
            return None
        at_s = int(self._services.environment.time())
        return DirectoryChange(queue.guid, queue.name, deleted, at_s)

    async def notify(self, change: DirectoryChange) -> None:
        """Update the directory after a change was stored, now or when it is available again."""
        self._waiting[change.queue] = change
        try:
            async with self.turn:
                await self._notify(change)
        except DirectoryAway as error:
            log.warning("directory_not_told", queue=change.path, code=error.code, reason=error.text)
            self.start()

    def notify_later(self, change: DirectoryChange) -> None:
        """Update the directory later about a stored change, because it is unavailable now."""
        self._waiting[change.queue] = change
        self.start()

    async def unregister(self, queue: LocalQueue) -> bool:
        """Remove a queue's entry before the queue is deleted here.

        Returns False if the directory is unavailable and must be updated later. Raises Refusal if
        the directory refuses.
        """
        async with self.turn:
            try:
                await self._unregister(queue.guid)
            except DirectoryAway as error:
                log.warning(
                    "directory_not_told", queue=queue.name, code=error.code, reason=error.text
                )
                return False
        return True

    async def _notify_all(self) -> None:
        while self._waiting and self._can_notify:
            for change in self.waiting:
                try:
                    async with self.turn:
                        await self._notify(change)
                except DirectoryAway:
                    pause_s = max(self._services.settings.directory.pause_s, RETRY_S)
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(self._changed.wait(), pause_s)
                    break

    def _notified_all(self, task: asyncio.Task[None]) -> None:
        self._worker = None
        if not task.cancelled() and task.exception() is not None:
            self._services.lifecycle.fail(task.exception())  # type: ignore[arg-type]

    async def _notify(self, change: DirectoryChange) -> None:
        """Send one change. Raises DirectoryAway; another error of the directory is logged and
        final."""
        if self._waiting.get(change.queue) is not change:
            return  # a later change replaced it, or the queue was created again
        try:
            if change.deleted:
                await self._unregister(change.queue)
            else:
                await self._update(change.queue)
        except DirectoryAway:
            raise
        except Refusal as error:
            log.warning(
                "directory_entry_differs",
                queue=change.path,
                guid=guid_text(change.queue),
                reason=error.text,
                code="directory_entry_left" if change.deleted else "directory_entry_differs",
            )
        if self._waiting.get(change.queue) is change:
            del self._waiting[change.queue]
            forget = partial(directory_changes.forget, queue=change.queue)
            await self._services.storage.batch.run(forget)

    async def _update(self, guid: bytes) -> None:
        queue = self._queue_by_guid(guid)
        if queue is None:
            return  # it has been deleted
        new = new_queue(
            self._services,
            queue.name,
            label=queue.label,
            transactional=queue.transactional,
            journal=queue.journal,
            quota_bytes=queue.quota_bytes,
            journal_quota_bytes=queue.journal_quota_bytes,
            authenticate=queue.authenticate,
            privacy=queue.privacy,
        )
        await in_time(
            self._services, self._directory, self._directory.changes.update_queue(guid, new)
        )
        self._resolver.forget()
        log.info("queue_entry_changed", queue=queue.name, guid=guid_text(guid))

    async def _unregister(self, guid: bytes) -> None:
        """Remove an entry; a missing entry counts as removed. Raises Refusal."""
        try:
            await in_time(
                self._services, self._directory, self._directory.changes.unregister_queue(guid)
            )
        except NotInDirectory:
            pass
        except NoDirectory:
            # The queue was created with a directory that is no longer configured.
            log.warning(
                "queue_left_in_directory", guid=guid_text(guid), code="directory_entry_left"
            )
        else:
            log.info("queue_unregistered", guid=guid_text(guid))
        self._resolver.forget()


async def in_time(services: Services, directory: Directory, work: Awaitable[T]) -> T:
    """Wait for a request to the directory, at most for the configured time-out.

    Raises DirectoryAway.
    """
    timeout_s = services.settings.directory.timeout_s
    try:
        async with asyncio.timeout(timeout_s):
            return await work
    except TimeoutError:
        where = directory.status().where
        raise DirectoryAway(
            f"no answer within {timeout_s:g} s; it may have been done, and can safely be repeated",
            where=where,
        ) from None
