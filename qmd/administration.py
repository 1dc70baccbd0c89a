"""Queues come and go, and are emptied."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import structlog

from qmd.compose import LABEL_CHARACTERS_MAX
from qmd.local_queue import LocalQueue, Reader
from qmd.refusal import Refusal
from storage import messages as message_rows
from storage import queues as queue_rows
from storage.errors import QueueExists, StoredError
from storage.keys import (
    ARRIVAL_MAX,
    LOOKUP_BITS,
    LOOKUP_MASK,
    TRANSACTIONAL_LEVEL,
)

if TYPE_CHECKING:
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
    ) -> LocalQueue:
        """A new queue of ours.  Raises Refusal."""
        path = self._manager.routes.own_path(name)
        quota = self._manager.settings.quotas.queue_bytes if quota_bytes is None else quota_bytes
        if not 0 <= quota <= QUOTA_BYTES_MAX:
            raise Refusal(
                "bad_request", f"a quota of {quota} bytes is none", f"Give 0 to {QUOTA_BYTES_MAX}."
            )
        if len(label) > LABEL_CHARACTERS_MAX:
            raise Refusal(
                "bad_request",
                f"the label has {len(label)} characters; {LABEL_CHARACTERS_MAX} are allowed",
            )
        try:
            row = await self._manager.storage.batch.run(
                partial(
                    queue_rows.create,
                    name=path,
                    transactional=transactional,
                    now_s=int(self._manager.environment.time()),
                    label=label,
                    journal=journal,
                    quota_bytes=quota,
                )
            )
        except QueueExists as error:
            raise Refusal(
                "queue_exists", str(error), "Choose another name, or delete it first."
            ) from error
        except StoredError as error:
            raise Refusal("bad_request", str(error)) from error
        log.info("queue_created", queue=path, transactional=transactional)
        return self._manager.adopt(row, 0, 0)

    async def delete(self, queue: LocalQueue) -> int:
        """The queue and what is in it; how many messages that were.  Raises Refusal."""
        if queue.is_system:
            raise Refusal(
                "read_only",
                f"{queue.name} belongs to the queue manager and cannot be deleted",
                "Purge it instead.",
            )
        count = await self.purge(queue)
        if queue.deleted:
            return count  # by another request, meanwhile
        del self._manager.queues[queue.key]
        del self._manager.queues_by_id[queue.id]
        queue.deleted = True
        self._manager.routes.forget()
        self._manager.incoming.forget_queue(queue)
        rest = await self._manager.storage.batch.run(partial(queue_rows.delete, queue_id=queue.id))
        queue.shrink(queue.bytes)
        for message in queue.express.values():  # what somebody has taken
            queue.usage.express_bytes -= len(message.packet)
        waiters, queue.waiters = queue.waiters, type(queue.waiters)()
        for waiter in waiters:
            self._manager.timers.cancel(waiter)
            waiter.answer([])
        self._manager.reading.serve(queue)
        log.info("queue_deleted", queue=queue.name, messages=count + rest.messages)
        return count + rest.messages

    async def purge(self, queue: LocalQueue) -> int:
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
            purged = await self._manager.storage.batch.run(
                partial(
                    message_rows.remove,
                    keys=[queue.id << LOOKUP_BITS | lookup_id for lookup_id in held],
                )
            )
            count += purged.messages + sum(lookup_id in queue.express for lookup_id in held)
            queue.forget(held)
            queue.count_out(*purged)
            if len(keys) < PURGE_ROWS and not express:
                return count
            start = (keys[-1] & LOOKUP_MASK) + 1 if keys else start
