"""Registry: the local queues of this queue manager, by key and by id."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from protocol.names.direct_name import DirectName, queue_key
from protocol.names.format_name import parse_destination
from qmd.message.addresses import queue_address
from qmd.queues import quotas
from qmd.queues.local_queue import LocalQueue, QueueNames
from qmd.queues.public_guid import public_guid
from storage.tables import queues as queue_rows
from storage.tables.pages import Totals

if TYPE_CHECKING:
    from qmd.queues.usage import Usage
    from qmd.runtime.services import Services


class LocalQueues:
    """The local queues: those of applications, subqueues, journals and the system queues."""

    def __init__(self, services: Services, usage: Usage) -> None:
        self._services = services
        self._usage = usage
        self.by_key: dict[str, LocalQueue] = {}
        self.by_id: dict[int, LocalQueue] = {}
        #: Ids of queues that are being deleted: no client finds them, and their rows still exist.
        self.being_deleted: set[int] = set()
        #: Called after a queue was added.
        self.on_added: Callable[[], None] = lambda: None
        #: Called with a queue when there may be messages for its readers.
        self.on_ready: Callable[[LocalQueue], None] = lambda queue: None

    def adopt(self, row: queue_rows.QueueRow, messages: int, size: int) -> LocalQueue:
        """Add the queue of a row, with this many stored messages and bytes; return it."""
        path = parse_destination(row.name, local_host=self._services.name)
        assert isinstance(path, DirectName)
        key = queue_key(path)
        assert key is not None
        # A rescued folder may lack the parent; its subqueue is then an ordinary queue.
        parent = None if row.parent_id is None else self.by_id.get(row.parent_id)
        is_journal = parent is not None and path.suffix is not None
        quota = parent.journal_quota_bytes if parent and is_journal else self.quota_of(row)
        guid = row.directory_guid or public_guid(self._services.id, row.id, row.created_at_s)
        queue = LocalQueue(
            row._replace(quota_bytes=quota),
            QueueNames(key, queue_address(path), guid),
            self._usage,
            stored=Totals(messages, size),
            notice=quotas.notice,
            parent=parent,
            is_journal=is_journal,
        )
        queue.on_ready = self.on_ready
        self.by_key[key] = queue
        self.by_id[row.id] = queue
        self.on_added()
        return queue

    def quota_of(self, row: queue_rows.QueueRow) -> int | None:
        """Return the quota of a row; the machine journal without one has that of the settings."""
        if row.quota_bytes is None and row.id == queue_rows.JOURNAL_ID:
            return self._services.settings.quotas.journal_bytes
        return row.quota_bytes
