r"""Public queues of ours are registered in the directory as long as they are there.

[MS-MQDMPR] 3.1.7.1.3, 3.1.7.1.4, 3.1.7.1.24

To register, the directory comes first: a crash in between leaves an entry without a queue, and the
next attempt to create the queue takes that entry up.  What changes later (its label, its quotas,
its end) is done here whether the directory answers or not: it is on disk, with the change, that the
directory has yet to hear of it, and it is told when it is back.
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

RETRY_S = 1.0  # at least, and not before the directory may be asked again

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
) -> NewQueue:
    r"""What is registered of the queue `.\orders`."""
    return NewQueue(
        machine=services.id,
        computer=services.name,
        queue=path.removeprefix(OWN_PREFIX),
        label=label,
        transactional=transactional,
        journal=journal,
        quota_bytes=quota_bytes,
        journal_quota_bytes=journal_quota_bytes,
    )


class Publishing:
    """What the directory hears of our public queues."""

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
        #: Around what is asked of the directory and what follows here: one thing after the other.
        self.turn = asyncio.Lock()
        self._waiting: dict[bytes, DirectoryChange] = {}
        self._worker: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()

    def restore(self, rows: Iterable[DirectoryChange]) -> None:
        self._waiting = {row.queue: row for row in rows}

    def start(self) -> None:
        """Where there is a directory, tell it what it has yet to hear."""
        if self._waiting and self._worker is None and self._can_hear:
            self._worker = self._services.loop.create_task(self._tell_all())
            self._worker.add_done_callback(self._told_all)

    def stop(self) -> None:
        """What waits is on disk."""
        if self._worker is not None:
            self._worker.cancel()

    def directory_changed(self) -> None:
        self._changed.set()
        self._changed.clear()

    @property
    def waiting(self) -> list[DirectoryChange]:
        return list(self._waiting.values())

    @property
    def _can_hear(self) -> bool:
        return self._directory.kind != KIND_NONE and not self._services.lifecycle.stopping

    # Creating.

    async def register(self, new: NewQueue) -> bytes:
        """The GUID of the queue's entry, a new one or that which waits for it.  Raises Refusal.

        The caller has `turn`, until the queue itself is there.
        """
        if new.queue.lower() in self._queues.by_key:
            raise Refusal(
                "queue_exists",
                f"there is a queue {OWN_PREFIX}{new.queue} already",
                "Choose another name, or delete it first.",
            )
        directory = self._directory
        try:
            entry = await in_time(self._services, directory, directory.register_queue(new))
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
        self._resolver.forget()
        log.info("queue_registered", queue=entry.path, guid=guid_text(entry.guid))
        return entry.guid

    def created(self, guid: bytes) -> None:
        """The queue is there: that an earlier one of that entry was deleted counts no more."""
        self._waiting.pop(guid, None)

    # Later.

    def change_of(self, queue: LocalQueue, *, deleted: bool) -> DirectoryChange | None:
        """What is to be on disk with a change of a queue; None where nobody has to hear of it."""
        if not queue.is_public or self._directory.kind == KIND_NONE:
            return None
        at_s = int(self._services.environment.time())
        return DirectoryChange(queue.guid, queue.name, deleted, at_s)

    async def tell(self, change: DirectoryChange) -> None:
        """It is on disk: tell the directory now, or as soon as it is back."""
        self._waiting[change.queue] = change
        try:
            async with self.turn:
                await self._tell(change)
        except DirectoryAway as error:
            log.warning("directory_not_told", queue=change.path, code=error.code, reason=error.text)
            self.start()

    def tell_later(self, change: DirectoryChange) -> None:
        """It is on disk, and the directory was found away just now."""
        self._waiting[change.queue] = change
        self.start()

    async def unregister(self, queue: LocalQueue) -> bool:
        """Before it is deleted here.  False: the directory is away, and has to hear of it later.

        Raises Refusal, where the directory does not let us.
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

    async def _tell_all(self) -> None:
        while self._waiting and self._can_hear:
            for change in self.waiting:
                try:
                    async with self.turn:
                        await self._tell(change)
                except DirectoryAway:
                    pause_s = max(self._services.settings.directory.pause_s, RETRY_S)
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(self._changed.wait(), pause_s)
                    break

    def _told_all(self, task: asyncio.Task[None]) -> None:
        self._worker = None
        if not task.cancelled() and task.exception() is not None:
            self._services.lifecycle.fail(task.exception())  # type: ignore[arg-type]

    async def _tell(self, change: DirectoryChange) -> None:
        """Raises DirectoryAway; whatever else the directory answers ends it, with a word."""
        if self._waiting.get(change.queue) is not change:
            return  # another change came meanwhile, or the queue was created anew
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
            return  # it was deleted meanwhile
        new = new_queue(
            self._services,
            queue.name,
            label=queue.label,
            transactional=queue.transactional,
            journal=queue.journal,
            quota_bytes=queue.quota_bytes,
            journal_quota_bytes=queue.journal_quota_bytes,
        )
        await in_time(self._services, self._directory, self._directory.update_queue(guid, new))
        self._resolver.forget()
        log.info("queue_entry_changed", queue=queue.name, guid=guid_text(guid))

    async def _unregister(self, guid: bytes) -> None:
        """Raises Refusal; what the directory has not got any more is done already."""
        try:
            await in_time(self._services, self._directory, self._directory.unregister_queue(guid))
        except NotInDirectory:
            pass
        except NoDirectory:
            # It was created with a directory that the configuration names no more.
            log.warning(
                "queue_left_in_directory", guid=guid_text(guid), code="directory_entry_left"
            )
        else:
            log.info("queue_unregistered", guid=guid_text(guid))
        self._resolver.forget()


async def in_time(services: Services, directory: Directory, work: Awaitable[T]) -> T:
    """What a directory is asked to do, no longer than the configuration lets it."""
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
