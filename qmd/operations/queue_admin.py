"""Creation of queues, and changes of their properties."""

from __future__ import annotations

import contextlib
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import structlog

from qmd.access.register import owner_row
from qmd.control_protocol.messages import UNLIMITED
from qmd.directory import registration as registration
from qmd.directory.interface import PRIVACY_OPTIONAL
from qmd.errors import Refusal
from qmd.message.limits import LABEL_CHARACTERS_MAX
from qmd.queues.groups import Groups
from qmd.queues.local_queue import PRIVACY_LEVELS, LocalQueue
from storage.errors import QueueExists, StoredError, TooManyQueues
from storage.tables import access as access_rows
from storage.tables import directory_changes
from storage.tables import queues as queue_rows
from storage.tables import sequences as sequence_rows
from storage.tables.directory_changes import DirectoryChange
from storage.tables.sequences import IncomingSequenceRow

if TYPE_CHECKING:
    import sqlite3

    from qmd.access.register import AccessRegister
    from qmd.core.principals import Principal
    from qmd.directory.registration import Registration
    from qmd.naming.destinations import Destinations
    from qmd.operations.queue_deletion import QueueDeletion
    from qmd.operations.queue_slots import QueueSlots
    from qmd.queues.incoming_sequences import IncomingStreams
    from qmd.queues.registry import LocalQueues
    from qmd.runtime.services import Services

log = structlog.get_logger()

QUOTA_BYTES_MAX = (1 << 63) - 1  # the largest integer of SQLite


class Security(NamedTuple):
    """Which messages of others a queue takes; None: that stays, or is the default."""

    authenticate: bool | None = None
    privacy: str | None = None  # one of PRIVACY_LEVELS

    @property
    def level(self) -> int | None:
        """The level of privacy, as stored.  Raises Refusal."""
        if self.privacy is None:
            return None
        if self.privacy not in PRIVACY_LEVELS:
            raise Refusal(
                "bad_privacy",
                f"there is no level of privacy {self.privacy!r}",
                f"It is one of {', '.join(PRIVACY_LEVELS)}.",
            )
        return PRIVACY_LEVELS.index(self.privacy)


SAME = Security()


class _NewQueue(NamedTuple):
    """A queue to create; its properties are checked."""

    path: str
    transactional: bool
    label: str
    journal: bool
    quota_bytes: int | None
    journal_quota_bytes: int | None
    security: Security
    groups: bool
    guid: bytes | None = None  # from the directory
    owner: Principal | None = None


class _Change(NamedTuple):
    """Changes of a queue; properties that are None stay."""

    queue_id: int
    label: str | None
    journal: bool | None
    quota_bytes: int | None
    journal_quota_bytes: int | None
    security: Security
    groups: bool | None
    now_s: int
    for_directory: DirectoryChange | None


class QueueAdministration:
    """Creation and changes of queues, for operators."""

    def __init__(
        self,
        services: Services,
        deletion: QueueDeletion,
        destinations: Destinations,
        incoming_streams: IncomingStreams,
        queues: LocalQueues,
        registration: Registration,
        slots: QueueSlots,
        access: AccessRegister,
    ) -> None:
        self._services = services
        self._deletion = deletion
        self._destinations = destinations
        self._incoming_streams = incoming_streams
        self._queues = queues
        self._registration = registration
        self._slots = slots
        self._access = access

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
        security: Security = SAME,
        groups: bool = False,
        owner: Principal | None = None,
        owned_max: int | None = None,
    ) -> LocalQueue:
        """Create a queue of this computer; a quota that is None is that of the configuration.

        A `public` queue is registered in the directory first, and gets its GUID from there.  Its
        `owner` may have `owned_max` queues; None: any number.  Raises Refusal.
        """
        path = self._destinations.own_path(name, public=public)
        quotas = self._services.settings.quotas
        new = _NewQueue(
            path,
            transactional,
            label,
            journal,
            _quota(quota_bytes, quotas.queue_bytes),
            _quota(journal_quota_bytes, quotas.journal_bytes),
            security,
            groups,
            owner=owner,
        )
        _check_label(label)
        _level(security, 0)
        await self._deletion.finished(path.lower())
        if path.lower() in self._queues.by_key:
            raise _exists(path)
        with (
            self._slots.reserve(2 if journal else 1),
            self._access.owners.room(owner, owned_max),
        ):
            if not public:
                return await self._create(new)
            entry = registration.new_queue(
                self._services,
                path,
                label=label,
                transactional=transactional,
                journal=journal,
                quota_bytes=new.quota_bytes,
                journal_quota_bytes=new.journal_quota_bytes,
                authenticate=bool(security.authenticate),
                privacy=security.privacy or PRIVACY_OPTIONAL,
            )
            async with self._registration.turn:
                guid = await self._registration.register(entry)
                queue = await self._create(new._replace(guid=guid))
                self._registration.created(guid)
            return queue

    async def _create(self, new: _NewQueue) -> LocalQueue:
        now_s = int(self._services.environment.time())
        try:
            rows, streams = await self._services.storage.batch.run(
                partial(_store_new, new=new, now_s=now_s)
            )
        except QueueExists as error:
            raise _exists(new.path) from error
        except TooManyQueues as error:  # the ids of queues that are being deleted are not free yet
            if new.guid is not None:
                await self._registration.withdraw(new.guid)
            raise self._slots.too_many() from error
        log.info("queue_created", queue=new.path, transactional=new.transactional)
        queue, *_ = [self._queues.adopt(row, 0, 0) for row in rows]
        self._access.created(queue, new.owner)
        for stream in streams:
            # A queue with this name was deleted: the messages that it received are duplicates.
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
        security: Security = SAME,
        groups: bool | None = None,
    ) -> LocalQueue:
        """Change properties of a queue; those that are None stay, and UNLIMITED removes a quota.

        Messages that exceed a smaller quota stay.  Raises Refusal.
        """
        _check_changeable(
            queue,
            only_quota=(journal_quota_bytes, journal, label, groups) == (None, None, None, None)
            and security == SAME,
        )
        if label is not None:
            _check_label(label)
        _level(security, 0)
        for each in (quota_bytes, journal_quota_bytes):
            _quota(each, None)
        for_directory = self._registration.change_of(queue, deleted=False)
        change = _Change(
            queue.id,
            label,
            journal,
            quota_bytes,
            journal_quota_bytes,
            security,
            groups,
            int(self._services.environment.time()),
            for_directory,
        )
        needs_journal = journal is True and queue.own_journal is None
        try:
            with self._slots.reserve(1) if needs_journal else contextlib.nullcontext():
                row, journal_row = await self._services.storage.batch.run(
                    partial(_store_change, change=change)
                )
        except TooManyQueues as error:
            raise self._slots.too_many() from error
        except StoredError as error:  # it was deleted meanwhile
            raise Refusal("no_such_queue", str(error)) from error
        self._changed(queue, row, journal_row)
        if for_directory is not None:
            await self._registration.notify(for_directory)
        return queue

    def _changed(
        self,
        queue: LocalQueue,
        row: queue_rows.QueueRow,
        journal_row: queue_rows.QueueRow | None,
    ) -> None:
        """Apply a stored change to the queue in memory."""
        queue.label, queue.journal = row.label, row.journal
        queue.authenticate, queue.privacy = row.authenticate, PRIVACY_LEVELS[row.privacy]
        queue.journal_quota_bytes = row.journal_quota_bytes
        if row.grouped != (queue.groups is not None):
            # Messages that are taken already count for no group.
            queue.groups = Groups(queue.scouts) if row.grouped else None
            queue.wake_readers()
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


def _store_new(
    db: sqlite3.Connection, *, new: _NewQueue, now_s: int
) -> tuple[list[queue_rows.QueueRow], list[IncomingSequenceRow]]:
    """Store a queue; return the rows of it and its journal, and the sequences of a deleted queue
    with its name."""
    row = queue_rows.create(
        db,
        name=new.path,
        transactional=new.transactional,
        now_s=now_s,
        label=new.label,
        journal=new.journal,
        quota_bytes=new.quota_bytes,
        journal_quota_bytes=new.journal_quota_bytes,
        directory_guid=new.guid,
        authenticate=bool(new.security.authenticate),
        privacy=_level(new.security, 1),
        grouped=new.groups,
    )
    if new.owner is not None:
        access_rows.set_owner(db, owner_row(row.name, new.owner))
    if new.guid is not None:
        directory_changes.forget(db, new.guid)  # the deletion of a queue with this name
    streams = sequence_rows.of_queue(db, row.id)
    rows = [row, queue_rows.create_journal(db, row, now_s)] if new.journal else [row]
    return rows, streams


def _store_change(
    db: sqlite3.Connection, *, change: _Change
) -> tuple[queue_rows.QueueRow, queue_rows.QueueRow | None]:
    """Store changes of a queue; return its row, and that of its journal if it has one.

    Properties that stay are those of the database: memory may lack another change that is being
    committed.
    """
    row = queue_rows.get(db, change.queue_id)
    row = queue_rows.change(
        db,
        change.queue_id,
        label=row.label if change.label is None else change.label,
        journal=row.journal if change.journal is None else change.journal,
        quota_bytes=_quota(change.quota_bytes, row.quota_bytes),
        journal_quota_bytes=_quota(change.journal_quota_bytes, row.journal_quota_bytes),
        now_s=change.now_s,
        authenticate=row.authenticate
        if change.security.authenticate is None
        else change.security.authenticate,
        privacy=_level(change.security, row.privacy),
        grouped=row.grouped if change.groups is None else change.groups,
    )
    if change.for_directory is not None:
        directory_changes.note(db, change.for_directory)
    return row, queue_rows.create_journal(db, row, change.now_s) if row.journal else None


def _level(security: Security, present: int) -> int:
    return present if security.level is None else security.level


def _check_changeable(queue: LocalQueue, *, only_quota: bool) -> None:
    """Raise Refusal for a queue with properties that cannot be changed."""
    if queue.is_system and (queue.id != queue_rows.JOURNAL_ID or not only_quota):
        raise Refusal(
            "system_queue_unchanged",
            f"{queue.name} belongs to the queue manager; only the quota of the journal can be"
            " changed",
            "Dead letters must be kept; purge the queue to make room.",
        )
    if queue.parent is not None:
        raise Refusal(
            "subqueue_unchanged",
            f"{queue.name} has no properties of its own",
            f"Change those of its queue: qmd queue set '{queue.parent.name}'",
        )


def _exists(path: str) -> Refusal:
    return Refusal(
        "queue_exists",
        f"there is a queue {path} already",
        "Choose another name, or delete it first.",
    )


def _quota(asked: int | None, default: int | None) -> int | None:
    """Return a quota in bytes: `default` for None, and None for UNLIMITED.  Raises Refusal."""
    quota = default if asked is None else asked
    if quota is None or quota == UNLIMITED:
        return None
    if not 0 <= quota <= QUOTA_BYTES_MAX:
        raise Refusal(
            "bad_quota", f"a quota of {quota} bytes is not valid", f"Give 0 to {QUOTA_BYTES_MAX}."
        )
    return quota


def _check_label(label: str) -> None:
    if len(label) > LABEL_CHARACTERS_MAX:
        raise Refusal(
            "queue_label_too_long",
            f"the label has {len(label)} characters; {LABEL_CHARACTERS_MAX} are allowed",
        )
