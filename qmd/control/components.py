"""The components that the handlers of verbs call."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from qmd.access.administration import AccessAdministration
    from qmd.access.checks import AccessChecks
    from qmd.access.local_users import LocalUsers
    from qmd.access.register import AccessRegister
    from qmd.access.things import ThingFinder
    from qmd.bulk.large_send import LargeSender
    from qmd.bulk.publisher import Publisher
    from qmd.bulk.range_read import Ranges
    from qmd.bulk.readers import Readers
    from qmd.bulk.reservations import Reservations
    from qmd.bulk.stage_store import StageStore
    from qmd.bulk.staging import Staging
    from qmd.bulk.uniform_send import UniformSender
    from qmd.control.accounts import Accounts
    from qmd.control.figure_changes import FigureReaders
    from qmd.control.token_watch import TokenLogins
    from qmd.directory.interface import Directory
    from qmd.directory.registration import Registration
    from qmd.directory.resolver import Resolver
    from qmd.events.audit_log import AuditLog
    from qmd.events.log_limits import EventLogLimits
    from qmd.events.recorder import Recorder
    from qmd.history.event_query import EventLog
    from qmd.history.message_lookup import MessageLookup
    from qmd.maintenance.disk_watch import DiskWatch
    from qmd.maintenance.housekeeping import Housekeeping
    from qmd.maintenance.reload import Reload
    from qmd.maintenance.row_watch import RowWatch
    from qmd.naming.destinations import Destinations
    from qmd.naming.topics import Topics
    from qmd.operations.browse import MessageBrowser
    from qmd.operations.delayed import DelayedMessages
    from qmd.operations.import_messages import Importer
    from qmd.operations.large_ends import LargeEnds
    from qmd.operations.large_removals import LargeRemovals
    from qmd.operations.link_deliveries import LinkRecords
    from qmd.operations.locks import Locks
    from qmd.operations.message_protection import MessageProtection
    from qmd.operations.move import Mover
    from qmd.operations.once_limit import OutcomeLimit
    from qmd.operations.purge import Purger
    from qmd.operations.queue_admin import QueueAdministration
    from qmd.operations.queue_deletion import QueueDeletion
    from qmd.operations.receive import MessageReceiver
    from qmd.operations.receive_selected import SelectiveReceiver
    from qmd.operations.redelivery import Redelivery
    from qmd.operations.request_outcomes import RequestOutcomes
    from qmd.operations.resend import Resender
    from qmd.operations.sealed_tokens import SealedTokens
    from qmd.operations.send import MessageSender
    from qmd.operations.send_checks import SendChecks
    from qmd.operations.send_once import OnceSender
    from qmd.operations.transactions import Transactions
    from qmd.operations.two_phase_commit import Branches
    from qmd.outcomes.acknowledgments import Acknowledgments
    from qmd.outcomes.dead_letter import DeadLetters
    from qmd.outcomes.deferred_acknowledgments import DeferredAcknowledgments
    from qmd.outcomes.nack import Nacks
    from qmd.outcomes.refused_letters import RefusedLetters
    from qmd.outcomes.undeliverable import Undeliverable
    from qmd.peers.identity_conflicts import IdentityConflicts
    from qmd.peers.link import Link
    from qmd.peers.name_lookups import NameLookups
    from qmd.peers.next_hop import NextHops
    from qmd.peers.origins import Origins
    from qmd.peers.redirect import Redirection
    from qmd.peers.sessions import Peers
    from qmd.peers.tls_peers import TlsPeers
    from qmd.queues.answer_limits import AnswerLimits
    from qmd.queues.incoming_sequences import IncomingStreams
    from qmd.queues.outgoing_queues import OutgoingQueues
    from qmd.queues.registry import LocalQueues
    from qmd.queues.usage import Usage
    from qmd.runtime.fair_scheduler import FairScheduler
    from qmd.runtime.log_levels import LogLevels
    from qmd.runtime.loop_lag import LoopLag
    from qmd.runtime.services import Services
    from qmd.runtime.work_parts import WorkParts
    from qmd.transfer.confirmation import Confirmations
    from qmd.transfer.heartbeats import Heartbeats
    from qmd.transfer.incoming import Incoming
    from qmd.transfer.relay_store import RelayStore
    from qmd.transfer.release import OutgoingRelease
    from qmd.transfer.sequence_renewal import SequenceRenewal


@dataclass(frozen=True, slots=True)
class Components:
    """The components of one queue manager, for its handlers of verbs."""

    services: Services
    access_administration: AccessAdministration
    access_checks: AccessChecks
    access_register: AccessRegister
    local_users: LocalUsers
    acknowledgments: Acknowledgments
    administration: QueueAdministration
    answer_limits: AnswerLimits
    audit_log: AuditLog
    branches: Branches
    busy_turns: FairScheduler
    client_accounts: Accounts
    confirmations: Confirmations
    deferred_acknowledgments: DeferredAcknowledgments
    dead_letters: DeadLetters
    delayed: DelayedMessages
    directory: Directory
    disk_watch: DiskWatch
    event_log: EventLog
    event_log_limits: EventLogLimits
    figure_readers: FigureReaders
    heartbeats: Heartbeats
    housekeeping: Housekeeping
    identities: IdentityConflicts
    origins: Origins
    importer: Importer
    incoming: Incoming
    incoming_streams: IncomingStreams
    message_lookup: MessageLookup
    local_turns: FairScheduler
    large_ends: LargeEnds
    large_removals: LargeRemovals
    large_sender: LargeSender
    locks: Locks
    log_levels: LogLevels
    loop_lag: LoopLag
    reload: Reload
    make_link: Callable[..., Link]
    mover: Mover
    name_lookups: NameLookups
    once_sender: OnceSender
    outcome_limit: OutcomeLimit
    link_records: LinkRecords
    outgoing: OutgoingQueues
    peers: Peers
    purger: Purger
    selective_receiver: SelectiveReceiver
    send_checks: SendChecks
    refused_letters: RefusedLetters
    recorder: Recorder
    registration: Registration
    queue_deletion: QueueDeletion
    publisher: Publisher
    queues: LocalQueues
    ranges: Ranges
    readers: Readers
    message_browser: MessageBrowser
    message_receiver: MessageReceiver
    redirection: Redirection
    nacks: Nacks
    outgoing_release: OutgoingRelease
    relay_store: RelayStore
    reload_directory: Callable[[], Awaitable[None]]
    request_outcomes: RequestOutcomes
    redelivery: Redelivery
    resender: Resender
    reservations: Reservations
    resolver: Resolver
    row_watch: RowWatch
    destinations: Destinations
    next_hops: NextHops
    message_protection: MessageProtection
    message_sender: MessageSender
    sealed_tokens: SealedTokens
    sequence_renewal: SequenceRenewal
    stage_store: StageStore
    staging: Staging
    things: ThingFinder
    token_logins: TokenLogins
    tls: TlsPeers
    topics: Topics
    transactions: Transactions
    undeliverable: Undeliverable
    uniform_sender: UniformSender
    usage: Usage
    work_parts: WorkParts
