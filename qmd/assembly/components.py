"""The assembly: makes the components of a queue manager, and connects them.

A component takes the services and the components that it uses; `connect` names those that are made
later.  Hooks such as `on_change` notify other components.  No component imports this module.
"""

from __future__ import annotations

import dataclasses
from functools import partial

from protocol.message_class import MessageClass
from qmd.access.administration import AccessAdministration
from qmd.access.recreated_queues import RecreatedQueues
from qmd.assembly.transfer_layer import TransferLayer
from qmd.bulk.arrival_answers import ArrivalAnswers
from qmd.bulk.column_writer import ColumnWriter
from qmd.bulk.consume import Consumer
from qmd.bulk.directory_answers import DirectoryAnswers
from qmd.bulk.large_send import LargeSender
from qmd.bulk.message_shapes import ShapeBuilder
from qmd.bulk.prepared_messages import PreparedMessages
from qmd.bulk.prepared_publication import PreparedPublication
from qmd.bulk.publication_batch import PublicationWriter
from qmd.bulk.publisher import Publisher
from qmd.bulk.range_read import Ranges
from qmd.bulk.reader_expiry import ReaderExpiry
from qmd.bulk.reader_start import ReaderStarts
from qmd.bulk.readers import Readers
from qmd.bulk.reservations import Reservations
from qmd.bulk.reserve_next import Reserver
from qmd.bulk.stage_owners import StageOwners
from qmd.bulk.stage_store import StageStore
from qmd.bulk.staging import Staging
from qmd.bulk.uniform_send import UniformSender
from qmd.control.accounts import Accounts
from qmd.control.components import Components
from qmd.control.figure_changes import FigureReaders
from qmd.control.token_watch import TokenLogins
from qmd.events.audit_log import AuditLog
from qmd.history.event_query import EventLog
from qmd.history.message_description import MessageDescriber
from qmd.history.message_lookup import MessageLookup
from qmd.history.message_search import MessageSearch
from qmd.history.places import LocalPlaces, OutgoingPlaces
from qmd.history.remote_lookup import RemoteLookup
from qmd.maintenance import retention
from qmd.maintenance.delayed_release import DelayedRelease, UnsendableMessages
from qmd.maintenance.disk_watch import DiskWatch
from qmd.maintenance.expiry import Expiry
from qmd.maintenance.housekeeping import Housekeeping
from qmd.maintenance.loop import MaintenanceLoop
from qmd.maintenance.reload import Reload
from qmd.maintenance.retry_release import RetryRelease
from qmd.maintenance.row_watch import RowWatch
from qmd.maintenance.sweepers import LocalSweeper, OutgoingSweeper
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
from qmd.operations.move_target import MoveTargets
from qmd.operations.once_limit import OutcomeLimit
from qmd.operations.packet_composer import PacketComposer
from qmd.operations.purge import Purger
from qmd.operations.queue_admin import QueueAdministration
from qmd.operations.queue_deletion import QueueDeletion
from qmd.operations.queue_slots import QueueSlots
from qmd.operations.receive import MessageReceiver
from qmd.operations.receive_selected import SelectiveReceiver
from qmd.operations.redelivery import Redelivery
from qmd.operations.request_outcomes import RequestOutcomes
from qmd.operations.resend import Resender
from qmd.operations.restore_message import MessageRestorer
from qmd.operations.sealed_tokens import SealedTokens
from qmd.operations.selection import Selection
from qmd.operations.send import MessageSender
from qmd.operations.send_batch import BatchSender
from qmd.operations.send_checks import SendChecks
from qmd.operations.send_copies import CopySender
from qmd.operations.send_once import OnceSender
from qmd.operations.send_outcomes import SendOutcomes
from qmd.operations.sent_events import SentEvents
from qmd.operations.transactions import Transactions
from qmd.operations.two_phase_commit import Branches
from qmd.queues.limits import Limits
from qmd.queues.local_queue import LocalQueue
from qmd.runtime.log_levels import LogLevels
from qmd.runtime.loop_lag import LoopLag
from qmd.runtime.services import Services
from qmd.runtime.work_parts import Line, WorkParts
from qmd.transfer.heartbeats import Heartbeats
from qmd.transfer.security_gate import make_checker


class Assembly(TransferLayer):
    """All components of one queue manager: the verbs of applications, look-ups and maintenance."""

    def __init__(self, services: Services, limits: Limits) -> None:
        super().__init__(services, limits)
        self.client_accounts = Accounts(services.loop.time)
        self.token_logins = TokenLogins(services)
        self.loop_lag = LoopLag(services.loop)
        self.figure_readers = FigureReaders()
        self.log_levels = LogLevels(services.settings.log.level)
        self.audit_log = AuditLog(services)
        self.reload = Reload(
            services, self.usage, self.peers, self.next_hops, self.relays, self.log_levels
        )
        self._make_sending()
        self._make_receiving()
        self._make_transactions()
        self._make_readers()
        self._make_administration()
        self._make_stages()
        self._make_history()
        self._make_maintenance()
        self.components = self._components()

    def _make_sending(self) -> None:
        services = self.services
        replies = self.destinations.replies
        self.composer = PacketComposer(services, replies)
        self.send_outcomes = SendOutcomes(
            self.acknowledgments, self.dead_letters, self.own_dead_letters, self.reports
        )
        self.send_checks = SendChecks(
            services,
            self.admission,
            self.destinations,
            self.own_dead_letters,
            self.peers,
            replies,
        )
        self.message_protection = MessageProtection(
            services,
            self.send_checks,
            self.composer,
            self.keyring,
            partial(
                make_checker,
                services.settings.message_security,
                self.keyring,
                has_directory=self.security_answers.can_ask,
            ),
            self.security_answers,
        )
        self.delayed = DelayedMessages(services, self.usage, self.queues, self.recorder)
        self.topics = Topics(services)
        self.message_sender = MessageSender(
            services,
            self.send_checks,
            CopySender(services, self.composer, self.send_outcomes, self.parts),
            self._begin_batch,
            self.outgoing_release.release,
            self.topics.before(self.message_protection.protect),
            self.delayed,
        )

    def _make_receiving(self) -> None:
        services = self.services
        self.message_receiver = MessageReceiver(
            services, self.damage, self.dead_letters, self.parts, self.queues, self.recorder
        )
        self.message_browser = MessageBrowser(services, self.damage)
        self.selection = Selection(services, self.damage)
        self.selective_receiver = SelectiveReceiver(services, self.selection)
        self._slots = QueueSlots(self.queues, self.limits.queues)
        self.mover = Mover(
            services,
            self.recorder,
            self.selection,
            MoveTargets(services, self.destinations, self.queues, self._slots),
        )
        self.resender = Resender(
            services,
            self.dead_letters,
            self.destinations,
            self.message_sender,
            self.recorder,
            MessageRestorer(services, self.destinations, self.outgoing, self.resolver),
            self.selection,
        )
        self.redelivery = Redelivery(
            services, self.mover, self.dead_letters, self.message_receiver, self.queues
        )
        self.message_receiver.connect(self.redelivery.failed)
        self.work_parts = WorkParts(services, self.busy_turns)
        self._line = Line(services.loop)
        in_parts = self.work_parts, self._line
        self.large_ends = LargeEnds(services, self.message_receiver, *in_parts)
        self.message_receiver.connect_large(self.large_ends)
        self.large_removals = LargeRemovals(
            services, self.message_receiver, self.dead_letters, *in_parts
        )
        self.queues.on_ready = self.message_receiver.serve

    def _make_transactions(self) -> None:
        services = self.services
        self.importer = Importer(services, self.admission, self.peers, self.recorder)
        self.sealed_tokens = SealedTokens()
        self.transactions = Transactions(
            services,
            self.mover,
            self.selective_receiver,
            self.message_receiver,
            self.send_checks,
            self.message_sender,
            self.sealed_tokens,
        )
        self.locks = Locks(services, self.message_receiver, self.selective_receiver)
        self.request_outcomes = RequestOutcomes(
            services, self.message_sender, self.sealed_tokens, self.transactions
        )
        self.once_sender = OnceSender(
            services, self.message_sender, self.request_outcomes, self.sealed_tokens
        )
        self.outcome_limit = OutcomeLimit(services)
        self.uniform_sender = UniformSender(
            services,
            self.message_sender,
            self.resolver,
            self.destinations,
            self._publication_with,
        )
        self.link_records = LinkRecords(services, self.uniform_sender.send_for_links)
        self.branches = Branches(services, self.request_outcomes, self.transactions)

    def _make_readers(self) -> None:
        services = self.services
        self.ranges = Ranges(services, self.damage)
        self.readers = Readers(services, self.queues, self.destinations)
        self.reservations = Reservations(
            services,
            self.readers,
            Reserver(services, self.ranges, self.recorder),
            self.ranges,
            Consumer(
                *(services, self.recorder, self.dead_letters, self.damage), self.large_removals
            ),
            self.selective_receiver,
            ReaderStarts(services, self.ranges),
        )
        self.reader_expiry = ReaderExpiry(services, self.readers, self.reservations)

    def _make_administration(self) -> None:
        services = self.services
        self.purger = Purger(services, self.dead_letters, self.selection)
        self.queue_deletion = QueueDeletion(
            services,
            self.own_dead_letters,
            self.purger,
            self.queues,
            self.registration,
            self.readers.check_deletable,
            self._queue_removed,
        )
        self.administration = QueueAdministration(
            services,
            self.queue_deletion,
            self.destinations,
            self.incoming_streams,
            self.queues,
            self.registration,
            self._slots,
            self.access_register,
        )

        self.access_administration = AccessAdministration(
            self.access_register, self.local_users, self.things, self.queues
        )

    def _make_stages(self) -> None:
        services = self.services
        self.stage_store = StageStore(services, self.usage)
        stage_owners = StageOwners(services, self.things, self.stage_store.rows)
        self.stage_store.on_removed = stage_owners.forget
        self.staging = Staging(
            services, self.admission, self.send_checks, self.stage_store, stage_owners
        )
        self.publisher = Publisher(
            services,
            self.stage_store,
            stage_owners,
            self.send_checks,
            self.message_sender,
            self._new_answers,
            self.new_publication,
        )
        self.large_sender = LargeSender(
            services,
            self.work_parts,
            self._line,
            self.large_removals,
            self.send_checks,
            self.message_sender,
            self._new_answers,
            self._publication_with,
            self._messages_one_by_one,
        )

    def _make_history(self) -> None:
        services = self.services
        self.event_log = EventLog(services, self.destinations)
        self.message_search = MessageSearch(
            services,
            self.queues,
            self.outgoing,
            LocalPlaces(services, self.queues),
            OutgoingPlaces(services, self.outgoing, self.identities),
            self.transactions,
            self.outgoing_release,
            self.delayed,
        )
        self.message_describer = MessageDescriber(services, self.peers)
        self.remote_lookup = RemoteLookup(
            services, self.peers, self.origins, self.message_search, self.message_describer
        )
        self.message_lookup = MessageLookup(
            services,
            self.message_search,
            self.message_describer,
            self.remote_lookup,
            self.destinations,
            self.things,
        )
        self.peers.on_change = self.remote_lookup.sessions_changed
        self.heartbeats = Heartbeats(services, self.peers)
        self.local_destinations.connect([self.remote_lookup, self.heartbeats])

    def _make_maintenance(self) -> None:
        services = self.services
        self.housekeeping = Housekeeping(services)
        self.retention = retention.Retention(self._retention_tasks())
        self.disk_watch = DiskWatch(services, self.recorder)
        self.row_watch = RowWatch(
            services, self.recorder, self.housekeeping, self.queues, self.outgoing
        )
        self.expiry = Expiry(
            services,
            self.confirmations,
            (
                OutgoingSweeper(services, self.outgoing, self.undeliverable),
                LocalSweeper(services, self.queues, self.dead_letters),
            ),
        )
        self.delayed_release = DelayedRelease(
            services,
            self.housekeeping,
            self.delayed,
            self.send_checks,
            self.message_sender,
            UnsendableMessages(
                services,
                self.composer,
                self.acknowledgments,
                self.dead_letters,
                self.own_dead_letters,
                self.recorder,
            ),
            self._new_answers,
            RecreatedQueues(self.access_register).check,
        )
        self.retry_release = RetryRelease(
            services, self.housekeeping, self.mover, self.queues, self.redelivery
        )
        self.maintenance = MaintenanceLoop(
            services, self.housekeeping, self.expiry, self.retention, self.event_log_limits
        )

    def _components(self) -> Components:
        names = (each.name for each in dataclasses.fields(Components))
        return Components(**{name: getattr(self, name) for name in names})

    def _begin_batch(self, token: bytes, transaction: str) -> BatchSender:
        """Return the sender of one request; `transaction` is its id as text, or ""."""
        return BatchSender(
            self.services,
            self.composer,
            self.send_outcomes,
            self.outgoing,
            SentEvents(self.recorder, self.services.id, transaction),
            token,
            self.message_protection.authenticated,
            self.message_protection.verified_style,
        )

    def _queue_removed(self, queue: LocalQueue) -> None:
        """Drop references to a queue that is being deleted."""
        self.access_register.queue_removed(queue)
        self.destinations.forget()
        self.incoming_streams.forget_queue(queue)

    def _new_answers(self) -> DirectoryAnswers:
        return DirectoryAnswers(self.resolver, self.destinations)

    def new_publication(self) -> PreparedPublication:
        """Return an empty publication."""
        return self._publication_with(self._new_answers(), "")

    def _publication_with(self, answers: DirectoryAnswers, transaction: str) -> PreparedPublication:
        services = self.services
        return PreparedPublication(
            services,
            self.admission,
            self.message_sender,
            answers,
            ShapeBuilder(
                services, self.destinations, self.send_checks, in_transaction=bool(transaction)
            ),
            self._publication_writer(),
            transaction,
            self._arrivals(),
        )

    def _messages_one_by_one(
        self, *, transaction: bytes = b"", owner: str = ""
    ) -> PreparedMessages:
        return PreparedMessages(
            *(self.services, self.send_checks, self.admission, self.message_sender),
            arrivals=self._arrivals(),
            writer=self._column_writer(),
            delayed=self.delayed,
            new_refusals=partial(
                self.dead_letters.prepare, MessageClass.NACK_NOT_TRANSACTIONAL_QUEUE
            ),
            transaction=transaction,
            owner=owner,
        )

    def _arrivals(self) -> ArrivalAnswers:
        return ArrivalAnswers(
            self.services, self.destinations, self.recorder, self._publication_writer()
        )

    def _column_writer(self) -> ColumnWriter:
        return ColumnWriter(
            *(self.services, self.outgoing, self.outgoing_release, self.recorder),
            self.own_dead_letters,
            self.reports,
            self.delayed,
            self.dead_letters,
            self.acknowledgments,
        )

    def _publication_writer(self) -> PublicationWriter:
        return PublicationWriter(self.services, self.outgoing, self.outgoing_release, self.recorder)

    def _retention_tasks(self) -> dict[str, retention.Task]:
        services = self.services
        return {
            "forget message ids": partial(retention.forget_message_ids, self.known_messages),
            "forget own dead-letter queues": self.own_dead_letters.forget_gone,
            "forget readers": self.readers.forget_gone,
            "forget stages": self.staging.forget_old,
            "warn of quiet readers": self.readers.warn,
            "end unused readers": self.reader_expiry.sweep,
            "forget unconfirmed messages": partial(
                retention.forget_unconfirmed, services, self.confirmations
            ),
            "forget dead letters of other hosts": self.refused_letters.forget_old,
            "forget outcomes": partial(retention.forget_outcomes, services),
            "forget deliveries of links": partial(retention.forget_deliveries, services),
            "trim the events": self.event_log_limits.forget_old,
            "trim the audit log": self.audit_log.forget_old,
        }
