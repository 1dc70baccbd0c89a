r"""Public queues of ours are registered in the directory as long as they are there.

[MS-MQDMPR] 3.1.7.1.3, 3.1.7.1.4

The directory comes first: a crash in between leaves an entry without a queue, and the next attempt
to create the queue takes that entry up.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TYPE_CHECKING, TypeVar

import structlog

from protocol.identifiers import guid_text
from qmd.directory.interface import (
    AlreadyInDirectory,
    DirectoryAway,
    NewQueue,
    NoDirectory,
    NotInDirectory,
)
from qmd.local_queue import OWN_PREFIX
from qmd.refusal import Refusal

if TYPE_CHECKING:
    from qmd.manager import QueueManager

T = TypeVar("T")

log = structlog.get_logger()


def new_queue(manager: QueueManager, path: str, *, label: str, transactional: bool) -> NewQueue:
    r"""What is registered of the queue `.\orders`."""
    return NewQueue(
        machine=manager.id,
        computer=manager.name,
        queue=path.removeprefix(OWN_PREFIX),
        label=label,
        transactional=transactional,
    )


async def register(manager: QueueManager, new: NewQueue) -> bytes:
    """The GUID of the queue's entry, a new one or that which waits for it.  Raises Refusal."""
    if new.queue.lower() in manager.queues:
        raise Refusal(
            "queue_exists",
            f"there is a queue {OWN_PREFIX}{new.queue} already",
            "Choose another name, or delete it first.",
        )
    directory = manager.directory
    try:
        entry = await in_time(manager, directory.register_queue(new))
    except AlreadyInDirectory:
        entry = await in_time(manager, directory.queue_by_path(f"{new.computer}\\{new.queue}"))
        if entry.machine.guid != manager.id:
            raise
        if entry.transactional is not None and entry.transactional != new.transactional:
            kind = "transactional" if entry.transactional else "not transactional"
            raise AlreadyInDirectory(
                f"the directory has {entry.path} already, and there it is {kind}",
                "Create it as the directory has it, or delete the entry there first.",
            ) from None
    manager.resolver.forget()
    log.info("queue_registered", queue=entry.path, guid=guid_text(entry.guid))
    return entry.guid


async def unregister(manager: QueueManager, guid: bytes) -> None:
    """Raises Refusal; what the directory has not got any more is done already."""
    try:
        await in_time(manager, manager.directory.unregister_queue(guid))
    except NotInDirectory:
        pass
    except NoDirectory:
        # It was created with a directory that the configuration names no more.
        log.warning("queue_left_in_directory", guid=guid_text(guid), code="directory_entry_left")
    else:
        log.info("queue_unregistered", guid=guid_text(guid))
    manager.resolver.forget()


async def in_time(manager: QueueManager, work: Awaitable[T]) -> T:
    """What a directory is asked to do, no longer than the configuration lets it."""
    timeout_s = manager.settings.directory.timeout_s
    try:
        async with asyncio.timeout(timeout_s):
            return await work
    except TimeoutError:
        where = manager.directory.status().where
        raise DirectoryAway(
            f"no answer within {timeout_s:g} s; it may have been done, and can safely be repeated",
            where=where,
        ) from None
