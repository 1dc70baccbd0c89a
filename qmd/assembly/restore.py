"""The start: loads the state of the components from the storage."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from qmd.bulk.reader import StoredReaders
from qmd.bulk.reader import read_stored as read_readers
from qmd.core.peer_instance import run_text
from storage.tables import access as access_rows
from storage.tables import awaiting as awaiting_rows
from storage.tables import branches as branch_rows
from storage.tables import (
    counters,
    delayed,
    directory_changes,
    known_hosts,
    own_dead_letters,
    restorations,
    retries,
    unaddressed,
)
from storage.tables import message_id_history as history_rows
from storage.tables import messages as message_rows
from storage.tables import outgoing as outgoing_rows
from storage.tables import peer_origins as origin_rows
from storage.tables import queues as queue_rows
from storage.tables import refused_letters as letter_rows
from storage.tables import sequences as sequence_rows
from storage.tables import stages as stage_rows
from storage.tables import tls_peers as tls_rows
from storage.tables import topics as topic_rows
from storage.tables import ways_back as way_rows
from storage.tables.pages import EMPTY, Totals
from storage.tables.tally import NONE, Figures

if TYPE_CHECKING:
    import sqlite3

    from qmd.assembly.components import Assembly

SKIPPED_BYTES = 3  # size of the random count of message numbers that a start skips


async def restore(assembly: Assembly) -> None:
    """Load the state of the last run from the storage.  Raises StorageError."""
    services = assembly.services
    await services.clock.start()
    # If a backup was restored, peers know messages with the numbers that would follow.
    skipped = int.from_bytes(services.environment.urandom(SKIPPED_BYTES), "big")
    is_new = await services.storage.read(partial(counters.following, name="message")) == 1
    await services.ids.start(0 if is_new else skipped)
    if restored := await services.storage.read(restorations.unlogged):
        assembly.recorder.restored(restored)
    state = await services.storage.read(_read_state)
    assembly.origins.restore(state.peer_origins)
    # Subqueues and journals after the queues that they belong to.
    for row in sorted(state.queues, key=lambda row: row.parent_id is not None):
        assembly.queues.adopt(row, *state.messages.get(row.id, (0, 0)))
    for row in state.queues:  # earlier versions had no journals of queues
        if row.journal and assembly.queues.by_id[row.id].own_journal is None:
            now_s = int(services.environment.time())
            create = partial(queue_rows.create_journal, parent=row, now_s=now_s)
            assembly.queues.adopt(await services.storage.batch.run(create), 0, 0)
    assembly.access_register.restore(state.access_entries)
    assembly.topics.restore(state.topics, state.subscriptions)
    awaited: dict[int, list[int]] = {}
    for outgoing_id, sequence_id in state.awaited:
        awaited.setdefault(outgoing_id, []).append(sequence_id)
    if over := sorted(awaited.keys() - state.awaiting.keys()):
        services.storage.batch.run(partial(awaiting_rows.forget_sequences, queue_ids=over))
    for outgoing in state.outgoing_queues:
        assembly.outgoing.restore(
            outgoing,
            state.outgoing.get(outgoing.id, NONE),
            state.awaiting.get(outgoing.id, EMPTY),
            awaited.get(outgoing.id, ()),
        )
    assembly.acknowledgments.restore()
    assembly.outgoing_ids.restore(state.last_timestamp, state.unconfirmed)
    assembly.branches.restore(state.branches)
    assembly.readers.restore(state.readers)
    assembly.stage_store.restore(state.stages)
    for stream in state.streams:
        queue = assembly.queues.by_id.get(stream.queue_id)
        if queue is not None:
            assembly.incoming_streams.restore(stream, queue)
        else:
            assembly.incoming_streams.reserve_id(stream.id)
    if state.has_own_dead_letters:
        await assembly.own_dead_letters.restore()
    assembly.known_messages.restore(state.history)
    assembly.refused_letters.restore(state.refused_letters)
    assembly.next_hops.restore(state.ways_back)
    assembly.deferred_acknowledgments.restore(state.unaddressed)
    assembly.registration.restore(state.directory_changes)
    assembly.delayed.restore(state.delayed, state.next_due)
    assembly.redelivery.restore(state.retry_policies)
    assembly.retry_release.restore(state.next_retry_ms)
    starts = await services.storage.batch.run(partial(counters.reserve, name="start", count=1))
    assembly.tls.restore(state.tls_peers)
    assembly.identities.restore(starts)
    assembly.known_hosts.restore(await services.storage.read(known_hosts.list_all))
    await assembly.relay_store.restore()
    assembly.recorder.started(assembly.usage.bytes, run_text(services.id, assembly.identities.own))
    if restored and assembly.recorder.enabled:
        # Not before the event: a start that dies between them records it again.
        await services.storage.batch.run(partial(restorations.note_logged, at_ms=restored))


class _State(NamedTuple):
    """The rows that a start reads."""

    queues: list[queue_rows.QueueRow]
    messages: dict[int, Totals]
    outgoing_queues: list[outgoing_rows.OutgoingQueueRow]
    outgoing: dict[int, Figures]
    awaiting: dict[int, Totals]
    last_timestamp: int
    unconfirmed: set[int]
    awaited: list[tuple[int, int]]
    streams: list[sequence_rows.IncomingSequenceRow]
    history: list[history_rows.StoredSegment]
    has_own_dead_letters: bool
    refused_letters: list[letter_rows.RefusedLetter]
    branches: list[branch_rows.BranchRow]
    readers: StoredReaders
    stages: list[stage_rows.StageRow]
    ways_back: list[way_rows.WayBack]
    peer_origins: list[origin_rows.PeerOrigin]
    tls_peers: list[tls_rows.TlsPeer]
    access_entries: list[access_rows.EntryRow]
    unaddressed: list[tuple[unaddressed.Unaddressed, bool]]
    directory_changes: list[directory_changes.DirectoryChange]
    delayed: dict[str, Totals]
    next_due: delayed.NextDue
    retry_policies: list[retries.PolicyRow]
    next_retry_ms: int | None
    topics: list[topic_rows.TopicRow]
    subscriptions: list[topic_rows.SubscriptionRow]


def _read_state(db: sqlite3.Connection) -> _State:
    return _State(
        queue_rows.list_all(db),
        message_rows.totals_by_queue(db),
        outgoing_rows.list_queues(db),
        outgoing_rows.figures_by_queue(db),
        awaiting_rows.totals_by_queue(db),
        outgoing_rows.last_timestamp(db),
        awaiting_rows.unconfirmed_queues(db),
        awaiting_rows.sequences_by_queue(db),
        sequence_rows.list_all(db),
        history_rows.entries(db),
        own_dead_letters.any_stored(db),
        letter_rows.list_all(db),
        branch_rows.list_all(db),
        read_readers(db),
        stage_rows.list_all(db),
        way_rows.list_all(db),
        origin_rows.list_all(db),
        tls_rows.list_all(db),
        access_rows.entries(db),
        unaddressed.list_all(db),
        directory_changes.list_all(db),
        delayed.totals_by_queue(db),
        delayed.next_due(db),
        retries.list_policies(db),
        retries.next_due_ms(db),
        topic_rows.topics(db),
        topic_rows.subscriptions(db),
    )
