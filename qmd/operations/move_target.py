"""Targets of moves: queues of this computer; the first move to a subqueue creates it."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import structlog

from protocol.errors import InvalidName
from protocol.names.direct_name import DirectName
from protocol.names.format_name import parse_destination
from protocol.names.path_name import LocalPath
from qmd.errors import Refusal
from qmd.queues.local_queue import LocalQueue
from storage.errors import NoSuchQueue, QueueExists, StoredError
from storage.tables import queues as queue_rows

if TYPE_CHECKING:
    from qmd.naming.destinations import Destinations
    from qmd.operations.queue_slots import QueueSlots
    from qmd.queues.registry import LocalQueues
    from qmd.runtime.services import Services

log = structlog.get_logger()

#: A subqueue that does not exist yet: the queue that it will belong to, and its path.
NewSubqueue = tuple[LocalQueue, LocalPath]


class MoveTargets:
    """Targets of moves; a target that is a new subqueue is created."""

    def __init__(
        self,
        services: Services,
        destinations: Destinations,
        queues: LocalQueues,
        slots: QueueSlots,
    ) -> None:
        self._services = services
        self._destinations = destinations
        self._queues = queues
        self._slots = slots

    async def get(self, source: LocalQueue, name: str) -> LocalQueue:
        """Return the target with this name for messages of `source`; a new subqueue is created.
        Raises Refusal."""
        target = self.find(source, name)
        return target if isinstance(target, LocalQueue) else await self.create(*target)

    def find(self, source: LocalQueue, name: str) -> LocalQueue | NewSubqueue:
        """Return the queue with this name, or the subqueue to create.  Raises Refusal."""
        destinations = self._destinations
        try:
            target = destinations.find_queue(name)
        except Refusal as refusal:
            if refusal.code != "no_such_queue":
                raise
            found = self._new_subqueue(name)
            if found is None:
                raise
            return found
        if target is source:
            raise Refusal("same_queue", f"{source.name} contains the messages already")
        if target.holds_ended:
            raise Refusal(
                "queue_read_only",
                f"{target.name} is a journal or dead-letter queue",
                "Only the queue manager itself puts messages there; move them to another queue.",
            )
        return target

    def _new_subqueue(self, name: str) -> NewSubqueue | None:
        try:
            parsed = parse_destination(name, local_host=".")
        except InvalidName:
            return None
        if not isinstance(parsed, DirectName) or not self._destinations.is_local(parsed):
            return None
        path = parsed.local_path
        if path.subqueue is None:
            return None
        parent = self._queues.by_key.get(path._replace(subqueue=None).key)
        if parent is None or parent.is_read_only:
            return None
        return parent, path

    async def create(self, parent: LocalQueue, path: LocalPath) -> LocalQueue:
        """Create a subqueue, unless another move creates it at the same time.  Raises Refusal."""
        name = f"{parent.name};{path.subqueue}"
        try:
            with self._slots.reserve(1):
                row = await self._services.storage.batch.run(
                    partial(
                        queue_rows.create,
                        name=name,
                        transactional=parent.transactional,
                        now_s=int(self._services.environment.time()),
                        parent_id=parent.id,
                    )
                )
        except QueueExists:
            return self._queues.by_key[path.key]
        except NoSuchQueue as error:
            raise was_deleted(parent) from error
        except StoredError as error:
            raise Refusal("too_many_queues", str(error)) from error
        if parent.deleted:
            raise was_deleted(parent)
        if (
            path.key in self._queues.by_key
        ):  # two units of one commit; that of this move was the first
            return self._queues.by_key[path.key]
        log.info("subqueue_created", queue=name)
        return self._queues.adopt(row, 0, 0)


def was_deleted(queue: LocalQueue) -> Refusal:
    """Return the refusal of a move from or to a queue that is deleted."""
    return Refusal("no_such_queue", f"{queue.name} was deleted meanwhile", "Nothing was moved.")
