"""The queue manager: queues, what is sent, what is received.  Core and storage meet here.

    application ──send──► rows ──(commit)──► answer; readers or links are woken
    peer ──session──► incoming.py ──(commit)──► acknowledgment; readers are woken
    application ──take──► a copy ──remove──► (commit) ──► answer; the message is gone

Nothing here waits for the disk on the hot path: rows go into the open batch,
and what follows from their being durable is a callback of its commit.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import structlog

from protocol.names.direct_name import DirectName, queue_key
from protocol.names.format_name import parse_destination
from qmd.bulk.range_read import Ranges
from qmd.bulk.reader import State as Reservations
from qmd.bulk.reader import read_state as read_reservations
from qmd.bulk.reservations import Reserving
from qmd.bulk.staging import Staging
from qmd.config.settings import Settings
from qmd.directory.factory import open_directory
from qmd.directory.interface import Reloadable
from qmd.directory.registration import Publishing
from qmd.directory.resolver import Own, Resolver
from qmd.events.recorder import Recorder
from qmd.history.event_query import EventLog
from qmd.history.message_lookup import Inquiry
from qmd.history.remote_lookup import Asking
from qmd.maintenance.disk_watch import DiskWatch
from qmd.maintenance.housekeeping import Housekeeping
from qmd.maintenance.retention import Retention
from qmd.message.build import queue_address
from qmd.message.shared_packet import Parts
from qmd.naming.destinations import Routes
from qmd.operations.dead_letter_summary import DeadLetters
from qmd.operations.import_messages import Importing
from qmd.operations.move import Moving
from qmd.operations.queue_admin import Administration
from qmd.operations.receive import Reading
from qmd.operations.receive_selected import Picking
from qmd.operations.resend import Resending
from qmd.operations.selection import Choosing
from qmd.operations.send import Sending
from qmd.operations.transactions import Transactions
from qmd.operations.two_phase_commit import Branches
from qmd.outcomes.acknowledgments import Acknowledging
from qmd.outcomes.dead_letter import Endings
from qmd.outcomes.nack import Refusing
from qmd.outcomes.reports import Tracing
from qmd.outcomes.undeliverable import Undelivered
from qmd.peers.identity_conflicts import Identities
from qmd.peers.next_hop import Routing
from qmd.peers.pending_acks import OwedAcks
from qmd.peers.redirect import Redirecting
from qmd.peers.sessions import Peers
from qmd.queues import quotas
from qmd.queues.incoming_sequences import IncomingStreams
from qmd.queues.limits import Limits
from qmd.queues.local_queue import LocalQueue
from qmd.queues.message_id_history import KnownMessages
from qmd.queues.named_dead_letter_queue import OwnDeadLetters
from qmd.queues.outgoing_queues import Outgoing
from qmd.queues.public_guid import public_guid
from qmd.queues.quarantine import Damage
from qmd.queues.usage import Usage
from qmd.runtime.budget import Budget, Gate, MemoryProbe
from qmd.runtime.clock import Clock
from qmd.runtime.environment import Environment
from qmd.runtime.fair_scheduler import Light, Turns
from qmd.runtime.id_allocator import Numbers
from qmd.runtime.log import LimitedLog
from qmd.runtime.timers import Timers
from qmd.transfer.confirmation import Confirmations
from qmd.transfer.incoming import Incoming
from qmd.transfer.relay import Relaying
from qmd.transfer.release import Releasing
from qmd.transfer.sequence_renewal import SequenceRenewal
from storage import Storage, StorageOptions
from storage.errors import StorageError
from storage.tables import awaiting as awaiting_rows
from storage.tables import branches as branch_rows
from storage.tables import counters, directory_changes, own_dead_letters, unaddressed
from storage.tables import message_id_history as history_rows
from storage.tables import messages as message_rows
from storage.tables import outcomes as outcome_rows
from storage.tables import outgoing as outgoing_rows
from storage.tables import peer_instances as instance_rows
from storage.tables import queues as queue_rows
from storage.tables import sequences as sequence_rows
from storage.tables import stages as stage_rows
from storage.tables import ways_back as way_rows
from storage.tables.keys import ARRIVAL_BITS
from storage.tables.pages import EMPTY, Totals

if TYPE_CHECKING:
    import sqlite3

    from qmd.errors import Refusal

log = structlog.get_logger()

ARRIVALS_BLOCK = 1_000_000  # numbers reserved at once: one row written for so many messages
MESSAGE_NUMBERS_BLOCK = 1 << 18  # half of it is more than a client can ask for at once
NUMBERS_SPARE = 20_000  # for what our own acknowledgments and dead letters may need meanwhile
SKIPPED_BYTES = 3  # of a random number of message numbers that are passed over at each start


class Bug(Exception):
    """Something that cannot happen did; the cause says what.  The daemon stops."""


class QueueManager:
    """One queue manager.  `await QueueManager.open(...)`, then `start` its peers and readers."""

    def __init__(
        self,
        settings: Settings,
        environment: Environment,
        storage: Storage,
        name: str,
        limits: Limits = Limits(),  # noqa: B008  a tuple
    ) -> None:
        self.settings = settings
        self.environment = environment
        self.storage = storage
        self.name = name
        self.id = storage.identity.queue_manager_id
        self.loop = asyncio.get_running_loop()
        self.started_at = self.loop.time()
        self.failed: asyncio.Future[None] = self.loop.create_future()
        self.stopping = False
        self.listening: list[tuple[str, int]] = []
        self.clock = Clock(environment, storage, downtime_max_s=settings.delivery.downtime_max_s)
        self.timers = Timers(self.loop)
        memory = settings.memory.of(environment.memory_bytes())
        self.packet_memory = Gate(memory.packets, self.loop, self.timers)
        self.request_memory = Gate(memory.requests, self.loop, self.timers)
        self.memory_probe = MemoryProbe(self.loop)
        self.answer_memory = Budget(memory.requests)
        self.transaction_memory = Budget(memory.transactions)
        light = Light()
        self.turns = Turns(self, light, beside_the_disk=False)  # of peers
        self.local_turns = Turns(self, light, beside_the_disk=True)  # of applications
        self.usage = Usage(settings.quotas.computer_bytes, quotas.notice)
        self._limited_log = LimitedLog(log)
        self.message_numbers = Numbers(storage, "message", MESSAGE_NUMBERS_BLOCK)
        self._arrivals = Numbers(storage, "arrival", ARRIVALS_BLOCK)
        self.queues: dict[str, LocalQueue] = {}
        self.queues_by_id: dict[int, LocalQueue] = {}
        self.recorder = Recorder(self)
        self.event_log = EventLog(self)
        self.inquiry = Inquiry(self)
        self.asking = Asking(self)
        self.identities = Identities(self)
        self.peers = Peers(self)
        self.routing = Routing(self)
        self.relaying = Relaying(self)
        self.incoming = Incoming(self)
        self.incoming_streams = IncomingStreams(self)
        self.known_messages = KnownMessages(self)
        self.refusing = Refusing(self)
        self.owed_acks = OwedAcks(self)
        self.redirecting = Redirecting(self)
        self.outgoing = Outgoing(self, destinations_max=limits.destinations)
        self.releasing = Releasing(self)
        self.sequence_renewal = SequenceRenewal(self)
        self.acknowledging = Acknowledging(self)
        self.clock.when_set = self.outgoing.clock_was_set
        self.routes = Routes(self)
        self.directory = open_directory(settings.directory, changed=self._directory_changed)
        self.resolver = Resolver(
            self.directory,
            Own(self.id, self.routes.is_local, self.routes.path_of_guid),
            settings.directory,
            now=self.loop.time,
        )
        self.publishing = Publishing(self)
        self.parts = Parts()
        self.sending = Sending(self)
        self.reading = Reading(self)
        self.transactions = Transactions(self)
        self.branches = Branches(self)
        self.picking = Picking(self)
        self.endings = Endings(self)
        self.administration = Administration(self, queues_max=limits.queues)
        self.undelivered = Undelivered(self)
        self.confirmations = Confirmations(self)
        self.damage = Damage(self)
        self.choosing = Choosing(self)
        self.moving = Moving(self)
        self.resending = Resending(self)
        self.dead_letters = DeadLetters(self)
        self.importing = Importing(self)
        self.ranges = Ranges(self)
        self.reserving = Reserving(self)
        self.staging = Staging(self)
        self._at_work: dict[bytes, asyncio.Event] = {}
        self.tracing = Tracing(self)
        self.own_dead_letters = OwnDeadLetters(self)
        self.sent_count = 0
        self.housekeeping = Housekeeping(self)
        self.retention = Retention(self)
        self.disk_watch = DiskWatch(self)

    # Start and stop.

    @classmethod
    async def open(
        cls,
        settings: Settings,
        environment: Environment,
        name: str,
        *,
        first_id: bytes | None = None,
        limits: Limits = Limits(),  # noqa: B008
    ) -> QueueManager:
        """Open the data folder and take up what it holds.  Raises storage.errors.CannotStart.

        A new one becomes the queue manager `first_id`, or one that nobody knows.
        """
        storage = await environment.open_storage(
            settings.queue_manager.data,
            StorageOptions(
                commit_rows_max=settings.storage.commit_rows_max,
                wal_autocheckpoint_pages=settings.storage.checkpoint_pages,
                disk_reserve_bytes=settings.quotas.disk_reserve_bytes,
                disk_watermark_bytes=settings.quotas.disk_reserve_bytes,
            ),
            now_ms=int(environment.time() * 1000),
            new_id=first_id or environment.urandom(16),
        )
        try:
            manager = cls(settings, environment, storage, name, limits)
            await manager._restore()
            await manager.directory.start()
            manager.acknowledging.addressing.start()
            manager.publishing.start()
            await manager.undelivered.tell_what_is_owed()
        except BaseException:
            await storage.close()
            raise
        return manager

    async def _restore(self) -> None:
        await self.clock.start()
        # After a backup was restored, others were given the next ones to messages that peers know.
        skipped = int.from_bytes(self.environment.urandom(SKIPPED_BYTES), "big")
        is_new = await self.storage.read(partial(counters.following, name="message")) == 1
        await self.message_numbers.start(0 if is_new else skipped)
        await self._arrivals.start()
        state = await self.storage.read(_read_state)
        # Subqueues and journals after the queues that they belong to.
        for row in sorted(state.queues, key=lambda row: row.parent_id is not None):
            self.adopt(row, *state.messages.get(row.id, (0, 0)))
        for row in state.queues:  # of earlier versions, which had no journals of queues
            if row.journal and self.queues_by_id[row.id].own_journal is None:
                now_s = int(self.environment.time())
                create = partial(queue_rows.create_journal, parent=row, now_s=now_s)
                self.adopt(await self.storage.batch.run(create), 0, 0)
        awaited: dict[int, list[int]] = {}
        for outgoing_id, sequence_id in state.awaited:
            awaited.setdefault(outgoing_id, []).append(sequence_id)
        for outgoing in state.outgoing_queues:
            totals = state.outgoing.get(outgoing.id)
            self.outgoing.restore(
                outgoing,
                *(totals or (0, 0)),
                state.transactional.get(outgoing.id, 0),
                state.awaiting.get(outgoing.id, EMPTY),
                awaited.get(outgoing.id, ()),
            )
        self.outgoing.ids.restore(state.last_timestamp, state.unconfirmed)
        self.branches.restore(state.branches)
        self.reserving.restore(state.reservations)
        self.staging.restore(state.stages)
        for stream in state.streams:
            queue = self.queues_by_id.get(stream.queue_id)
            if queue is not None:
                self.incoming_streams.restore(stream, queue)
            else:
                self.incoming_streams.reserve_id(stream.id)
        self.own_dead_letters.restore(state.own_dead_letters)
        self.known_messages.restore(state.history)
        self.routing.restore(state.ways_back)
        self.acknowledging.addressing.restore(state.unaddressed)
        self.publishing.restore(state.directory_changes)
        starts = await self.storage.batch.run(partial(counters.reserve, name="start", count=1))
        self.identities.restore(state.peer_instances, starts)
        await self.relaying.restore()
        self.recorder.started()

    async def stop(self) -> None:
        """End the sessions and let the disk finish; what was not acknowledged stays to be sent."""
        self.stopping = True
        self.asking.stop()
        self.acknowledging.addressing.stop()
        self.publishing.stop()
        self.routing.stop()
        self.relaying.stop()
        self.peers.stop()
        await self.directory.stop()
        await asyncio.sleep(0)  # what the sessions still say is written
        self.releasing.release()
        self.clock.save()
        with contextlib.suppress(StorageError):
            # What is being removed has been received, and is not lost: that is known behind it.
            await self.storage.batch.run(lambda db: None)
            # Nor is what ends otherwise, which takes a look at it and a commit more.
            while self.endings.under_way:
                await self.storage.batch.run(lambda db: None)
        self.recorder.stop()
        self.timers.cancel_all()
        await self.storage.close()

    async def reload_directory(self) -> None:
        """Everything of it is asked anew; of a file, it is read anew."""
        self._directory_changed()
        if isinstance(self.directory, Reloadable):
            await self.directory.reload()

    def _directory_changed(self) -> None:
        """What was looked up may be wrong now."""
        self.resolver.forget()
        self.routes.forget()
        self.routing.directory_changed()
        self.acknowledging.addressing.directory_changed()
        self.publishing.directory_changed()

    def next_message_number(self) -> int:
        """[MS-MQQB] 3.1.1.3 MessageIdOrdinal: 32 bits, each number once."""
        return self.message_numbers.next() & 0xFFFFFFFF

    def next_lookup_id(self, level: int) -> int:
        return level << ARRIVAL_BITS | self._arrivals.next()

    def next_message_numbers(self, count: int) -> list[int]:
        """So many at once."""
        return [number & 0xFFFFFFFF for number in self.message_numbers.take(count)]

    def next_lookup_ids(self, level: int, count: int) -> list[int]:
        """So many at once."""
        at = level << ARRIVAL_BITS
        return [at | number for number in self._arrivals.take(count)]

    def is_full(
        self, size: int, *, express: bool = False, messages: int = 1, stored: int | None = None
    ) -> Refusal | None:
        """Why no more can be taken in now, or None.  What fits counts as taken.

        `stored`: the bytes of it that are kept, where those are fewer, because copies share them.
        """
        return quotas.no_room(self, size, express=express, messages=messages, stored=stored)

    def has_numbers(self, messages: int, *, spare: int = NUMBERS_SPARE) -> bool:
        """Whether so many messages can be given their numbers without waiting for the disk."""
        return min(self._arrivals.left, self.message_numbers.left) >= messages + spare

    async def numbers_for(self, messages: int) -> None:
        """Wait until so many messages can be given their numbers at once.  Raises StorageError."""
        wanted = messages + NUMBERS_SPARE
        await self._arrivals.ensure(wanted)
        await self.message_numbers.ensure(wanted)

    def quota_of(self, row: queue_rows.QueueRow) -> int | None:
        """That of the row; the machine journal has the configuration's until it gets its own."""
        if row.quota_bytes is None and row.id == queue_rows.JOURNAL_ID:
            return self.settings.quotas.journal_bytes
        return row.quota_bytes

    def adopt(self, row: queue_rows.QueueRow, messages: int, size: int) -> LocalQueue:
        path = parse_destination(row.name, local_host=self.name)
        assert isinstance(path, DirectName)
        key = queue_key(path)
        assert key is not None
        # Of a rescued folder the parent may be lost; its subqueue is a queue by itself then.
        parent = None if row.parent_id is None else self.queues_by_id.get(row.parent_id)
        is_journal = parent is not None and path.suffix is not None
        queue = LocalQueue(
            id=row.id,
            name=row.name,
            key=key,
            label=row.label,
            transactional=row.transactional,
            journal=row.journal,
            quota_bytes=parent.journal_quota_bytes if parent and is_journal else self.quota_of(row),
            journal_quota_bytes=row.journal_quota_bytes,
            is_system=row.system,
            created_at_s=row.created_at_s,
            address=queue_address(path),
            guid=row.directory_guid or public_guid(self.id, row.id, row.created_at_s),
            usage=self.usage,
            messages=messages,
            size=size,
            notice=quotas.notice,
            parent=parent,
            is_journal=is_journal,
        )
        self.queues[key] = queue
        self.queues_by_id[row.id] = queue
        self.routes.forget()
        return queue

    def fail(self, error: BaseException) -> None:
        """A bug showed: whoever waits for `failed` stops the daemon."""
        if not self.failed.done():
            bug = Bug(str(error))
            bug.__cause__ = error
            self.failed.set_exception(bug)
            self.failed.exception()  # seen: there may be nobody who waits

    # What became of a request.

    async def outcome(self, token: bytes, asker: int = 0) -> object:
        """The answer to an earlier request with this token; None when it was not done.

        None is a promise: a request that is still on its way here over a connection older than
        that of the `asker` will be refused.
        """
        self.transactions.seal(token, asker)
        answer = await self.find_outcome(token)
        if answer is not None:
            self.transactions.unseal(token)
        return answer

    async def find_outcome(self, token: bytes) -> object:
        """The same, with nothing promised for the time to come."""
        if token in self._at_work:
            await self._at_work[token].wait()
        found: asyncio.Future[bytes | None] = self.loop.create_future()
        # After the open batch, which may hold the very request.
        self.storage.batch.read_after(
            partial(outcome_rows.find, token=token), partial(_settle, found)
        )
        result = await found
        if result is None:
            return None
        answer = msgspec.msgpack.decode(result)
        if isinstance(answer, list):  # the numbers of messages that were sent
            return self.sending.ids(answer)
        return answer

    @contextlib.asynccontextmanager
    async def at_work(self, token: bytes) -> AsyncIterator[object]:
        """Around a request that takes more than one turn: who asks for its outcome waits.

        Gives the answer of the same request, if that was at work and is done.
        """
        if not token:
            yield None
            return
        if token in self._at_work and (before := await self.find_outcome(token)) is not None:
            yield before
            return
        done = self._at_work[token] = asyncio.Event()
        try:
            yield None
        finally:
            self._at_work.pop(token, None)
            done.set()

    def log_limited(self, event: str, about: str, **values: object) -> None:
        """For what a peer can provoke at will: some lines a minute, then a count."""
        self._limited_log.log("info", event, key=about, now=self.loop.time(), **values)


def _settle(found: asyncio.Future[bytes | None], result: bytes | None) -> None:
    if not found.done():  # who asked may be gone
        found.set_result(result)


class _State(NamedTuple):
    """What a start reads from the disk."""

    queues: list[queue_rows.QueueRow]
    messages: dict[int, Totals]
    outgoing_queues: list[outgoing_rows.OutgoingQueueRow]
    outgoing: dict[int, Totals]
    transactional: dict[int, int]
    awaiting: dict[int, Totals]
    last_timestamp: int
    unconfirmed: set[int]
    awaited: list[tuple[int, int]]
    streams: list[sequence_rows.IncomingSequenceRow]
    history: list[history_rows.StoredSegment]
    own_dead_letters: dict[int, int]
    branches: list[branch_rows.BranchRow]
    reservations: Reservations
    stages: list[stage_rows.StageRow]
    ways_back: list[way_rows.WayBack]
    peer_instances: list[instance_rows.PeerInstance]
    unaddressed: list[tuple[unaddressed.Unaddressed, bool]]
    directory_changes: list[directory_changes.DirectoryChange]


def _read_state(db: sqlite3.Connection) -> _State:
    return _State(
        queue_rows.list_all(db),
        message_rows.totals_by_queue(db),
        outgoing_rows.list_queues(db),
        outgoing_rows.totals_by_queue(db),
        outgoing_rows.transactional_by_queue(db),
        awaiting_rows.totals_by_queue(db),
        outgoing_rows.last_timestamp(db),
        awaiting_rows.unconfirmed_queues(db),
        awaiting_rows.sequences_by_queue(db),
        sequence_rows.list_all(db),
        history_rows.entries(db),
        own_dead_letters.queues_by_number(db),
        branch_rows.list_all(db),
        read_reservations(db),
        stage_rows.list_all(db),
        way_rows.list_all(db),
        instance_rows.list_all(db),
        unaddressed.list_all(db),
        directory_changes.list_all(db),
    )
