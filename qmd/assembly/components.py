"""The assembly: makes the components of a queue manager, and connects them.

A component takes the services and the components that it uses; `connect` names those that are made
later.  Hooks such as `on_change` notify other components.  No component imports this module.
"""

from __future__ import annotations

import dataclasses
from functools import partial

from qmd.access.things import ThingFinder
from qmd.bulk.consume import Consumer
from qmd.bulk.directory_answers import DirectoryAnswers
from qmd.bulk.message_shapes import ShapeBuilder
from qmd.bulk.prepared_publication import PreparedPublication
from qmd.bulk.publication_batch import PublicationWriter
from qmd.bulk.publisher import Publisher
from qmd.bulk.range_read import Ranges
from qmd.bulk.readers import Readers
from qmd.bulk.reservations import Reservations
from qmd.bulk.reserve_next import Reserver
from qmd.bulk.stage_owners import StageOwners
from qmd.bulk.stage_store import StageStore
from qmd.bulk.staging import Staging
from qmd.control.components import Components
from qmd.directory.factory import open_directory
from qmd.directory.interface import Reloadable
from qmd.directory.registration import Registration
from qmd.directory.resolver import Own, Resolver
from qmd.events.log_limits import EventLogLimits
from qmd.events.recorder import Recorder
from qmd.history.event_query import EventLog
from qmd.history.message_description import MessageDescriber
from qmd.history.message_lookup import MessageLookup
from qmd.history.message_search import MessageSearch
from qmd.history.places import LocalPlaces, OutgoingPlaces
from qmd.history.remote_lookup import RemoteLookup
from qmd.maintenance import retention
from qmd.maintenance.disk_watch import DiskWatch
from qmd.maintenance.expiry import Expiry
from qmd.maintenance.housekeeping import Housekeeping
from qmd.maintenance.loop import MaintenanceLoop
from qmd.maintenance.sweepers import LocalSweeper, OutgoingSweeper
from qmd.message.shared_packet import Parts
from qmd.naming.destinations import Destinations
from qmd.operations.import_messages import Importer
from qmd.operations.move import Mover
from qmd.operations.move_target import MoveTargets
from qmd.operations.packet_composer import PacketComposer
from qmd.operations.packet_sender import PacketSender
from qmd.operations.purge import Purger
from qmd.operations.queue_admin import QueueAdministration
from qmd.operations.queue_deletion import QueueDeletion
from qmd.operations.queue_slots import QueueSlots
from qmd.operations.receive import MessageReceiver
from qmd.operations.receive_selected import SelectiveReceiver
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
from qmd.outcomes.acknowledgments import Acknowledgments
from qmd.outcomes.dead_letter import DeadLetters
from qmd.outcomes.deferred_acknowledgments import DeferredAcknowledgments
from qmd.outcomes.nack import Nacks
from qmd.outcomes.promises import Promises
from qmd.outcomes.reports import Reports
from qmd.outcomes.source_acknowledgments import SourceAcknowledgments
from qmd.outcomes.undeliverable import Undeliverable
from qmd.peers.connection import PeerConnection, SessionUser
from qmd.peers.dialer import Dialer
from qmd.peers.identity_conflicts import IdentityConflicts
from qmd.peers.link import Link
from qmd.peers.next_hop import NextHops
from qmd.peers.pending_acks import OwedAcks
from qmd.peers.redirect import Redirection
from qmd.peers.sessions import Peers
from qmd.peers.transmitter import Transmitter
from qmd.queues import quotas
from qmd.queues.incoming_sequences import IncomingStreams
from qmd.queues.limits import Limits
from qmd.queues.local_queue import LocalQueue
from qmd.queues.message_id_history import KnownMessages
from qmd.queues.named_dead_letter_queue import NamedDeadLetterQueues
from qmd.queues.outgoing_ids import OutgoingIds
from qmd.queues.outgoing_queues import OutgoingQueues
from qmd.queues.outgoing_refill import OutgoingRefill
from qmd.queues.quarantine import Damage
from qmd.queues.registry import LocalQueues
from qmd.queues.usage import Usage
from qmd.runtime.fair_scheduler import FairScheduler, Light
from qmd.runtime.services import Services
from qmd.transfer.acceptance import Acceptance
from qmd.transfer.arrivals import Arrivals
from qmd.transfer.confirmation import Confirmations
from qmd.transfer.incoming import Incoming
from qmd.transfer.local_destinations import LocalDestinations
from qmd.transfer.received_acks import ReceivedAcks
from qmd.transfer.relay import Relay
from qmd.transfer.relay_loops import RelayLoops
from qmd.transfer.relay_rules import RelayRules
from qmd.transfer.relay_store import RelayStore
from qmd.transfer.relayed_acks import RelayedAcks
from qmd.transfer.release import OutgoingRelease
from qmd.transfer.sequence_order import SequenceOrder
from qmd.transfer.sequence_renewal import SequenceRenewal


class Assembly:
    """All components of one queue manager."""

    def __init__(self, services: Services, limits: Limits) -> None:
        self.services = services
        settings = services.settings
        light = Light()
        self.turns = FairScheduler(services, light, beside_the_disk=False)  # of peers
        self.local_turns = FairScheduler(services, light, beside_the_disk=True)  # of applications
        self.usage = Usage(settings.quotas.computer_bytes, quotas.notice)
        self.admission = quotas.Admission(services, self.usage)
        self.queues = LocalQueues(services, self.usage)
        self.parts = Parts()
        self.recorder = Recorder(services)
        self.event_log_limits = EventLogLimits(services)
        self.incoming_streams = IncomingStreams(services)
        self.known_messages = KnownMessages(services)
        self.damage = Damage(services, self.recorder)
        outgoing_ids = OutgoingIds(services, destinations_max=limits.destinations)
        outgoing_refill = OutgoingRefill(services, self.damage, self.parts)
        self.outgoing = OutgoingQueues(services, self.usage, outgoing_ids)
        self.own_dead_letters = NamedDeadLetterQueues(services, self.outgoing, self.queues)
        self.directory = open_directory(settings.directory, changed=self._directory_changed)
        self.destinations = Destinations(services, self.directory, self.outgoing, self.queues)
        self.resolver = Resolver(
            self.directory,
            Own(services.id, self.destinations.is_local, self.destinations.path_of_guid),
            settings.directory,
            now=services.loop.time,
        )
        self.destinations.connect(self.resolver)
        self.things = ThingFinder(self.queues, self.destinations, self.resolver)
        self.registration = Registration(
            services,
            self.directory,
            self.queues,
            self.resolver,
            self.destinations.queue_by_guid,
        )
        deferred_acknowledgments = DeferredAcknowledgments(
            services, self.recorder, self.resolver, self.destinations
        )
        self.acknowledgments = Acknowledgments(
            services, self.outgoing, self.recorder, self.destinations, deferred_acknowledgments
        )
        self.reports = Reports(services, self.admission, self.recorder, self.destinations)
        self.dead_letters = DeadLetters(
            services,
            self.acknowledgments,
            self.own_dead_letters,
            self.queues,
            self.recorder,
        )
        self.promises = Promises(services)
        self.nacks = Nacks(
            services,
            self.acknowledgments,
            self.dead_letters,
            self.known_messages,
            self.promises,
            self.recorder,
            self.destinations,
        )
        self.source_acknowledgments = SourceAcknowledgments(services, self.acknowledgments)
        self.undeliverable = Undeliverable(
            services,
            self.source_acknowledgments,
            self.dead_letters,
            self.outgoing,
            self.recorder,
        )
        self.identities = IdentityConflicts(services, self.known_messages)
        self.peers = Peers(services, self.acknowledgments, self.identities, self.incoming_streams)
        self.next_hops = NextHops(services, self.directory, self.peers)
        self.owed_acks = OwedAcks(services, self.next_hops.session_towards)
        self.redirection = Redirection(
            services, self.identities, self.outgoing, self.peers, self.destinations
        )
        self.local_destinations = LocalDestinations(services, self.queues, self.destinations)
        self.relay_rules = RelayRules(
            services, self.destinations, self.local_destinations, self.next_hops, self.peers
        )
        self.relay_store = RelayStore(services, self.known_messages, self.outgoing, self.recorder)
        relayed_acks = RelayedAcks(
            services, self.known_messages, self.outgoing, self.relay_rules, self.relay_store
        )
        self.relay = Relay(
            services,
            self.next_hops,
            self.outgoing,
            relayed_acks,
            self.reports,
            self.relay_rules,
            self.relay_store,
        )
        self.relay_loops = RelayLoops(services, self.next_hops, self.undeliverable)
        self.outgoing_release = OutgoingRelease(
            services,
            self.dead_letters,
            self.outgoing,
            self.recorder,
            self.relay_store,
            relayed_acks,
            self.undeliverable,
        )
        self.confirmations = Confirmations(
            services,
            self.dead_letters,
            self.outgoing,
            self.promises,
            self.recorder,
            relayed_acks,
            self.outgoing_release,
        )
        self.sequence_renewal = SequenceRenewal(
            services, self.outgoing, self.outgoing_release.release, self.undeliverable
        )
        sequence_order = SequenceOrder(services, self.incoming_streams, self.identities)
        acceptance = Acceptance(
            services,
            self.admission,
            self.known_messages,
            self.local_destinations,
            self.next_hops,
            self.relay,
            sequence_order,
        )
        arrivals = Arrivals(
            services,
            self.acknowledgments,
            self.incoming_streams,
            self.known_messages,
            self.recorder,
            self.reports,
        )
        received_acks = ReceivedAcks(
            services, self.confirmations, self.outgoing_release, self.promises
        )
        self.incoming = Incoming(
            services,
            acceptance,
            arrivals,
            self.nacks,
            self.promises,
            received_acks,
            self.recorder,
        )
        replies = self.destinations.replies
        self.packet_sender = PacketSender(services, self.destinations, self.outgoing, self.recorder)
        self.composer = PacketComposer(services, self.confirmations, replies)
        self.send_outcomes = SendOutcomes(
            self.acknowledgments, self.dead_letters, self.own_dead_letters, self.reports
        )
        self.message_sender = MessageSender(
            services,
            SendChecks(
                services,
                self.admission,
                self.destinations,
                self.own_dead_letters,
                self.peers,
                replies,
            ),
            CopySender(services, self.composer, self.send_outcomes, self.parts),
            self._begin_batch,
            self.outgoing_release.release,
        )
        self.message_receiver = MessageReceiver(
            services, self.damage, self.dead_letters, self.parts, self.queues, self.recorder
        )
        self.selection = Selection(services, self.damage)
        self.selective_receiver = SelectiveReceiver(services, self.selection)
        slots = QueueSlots(self.queues, limits.queues)
        self.mover = Mover(
            services,
            self.recorder,
            self.selection,
            MoveTargets(services, self.destinations, self.queues, slots),
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
        self.importer = Importer(services, self.admission, self.peers, self.recorder)
        self.sealed_tokens = SealedTokens()
        self.transactions = Transactions(
            services,
            self.mover,
            self.selective_receiver,
            self.message_receiver,
            self.message_sender,
            self.sealed_tokens,
        )
        self.request_outcomes = RequestOutcomes(
            services, self.message_sender, self.sealed_tokens, self.transactions
        )
        self.once_sender = OnceSender(
            services, self.message_sender, self.request_outcomes, self.sealed_tokens
        )
        self.branches = Branches(services, self.request_outcomes, self.transactions)
        self.ranges = Ranges(services, self.damage)
        self.readers = Readers(services, self.queues, self.destinations)
        self.reservations = Reservations(
            services,
            self.readers,
            Reserver(services, self.ranges, self.recorder),
            self.ranges,
            Consumer(services, self.recorder, self.dead_letters, self.damage),
            self.selective_receiver,
        )
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
            slots,
        )
        self.stage_store = StageStore(services, self.usage)
        stage_owners = StageOwners(services, self.things, self.stage_store.rows)
        self.stage_store.on_removed = stage_owners.forget
        self.staging = Staging(
            services, self.admission, self.message_sender, self.stage_store, stage_owners
        )
        self.publisher = Publisher(
            services,
            self.stage_store,
            stage_owners,
            self.message_sender,
            self._new_answers,
            self.new_publication,
        )
        self.event_log = EventLog(services, self.destinations)
        self.message_search = MessageSearch(
            services,
            self.queues,
            self.outgoing,
            LocalPlaces(services, self.queues),
            OutgoingPlaces(services, self.outgoing, self.identities),
            self.transactions,
            self.outgoing_release,
        )
        self.message_describer = MessageDescriber(services, self.peers)
        self.remote_lookup = RemoteLookup(
            services, self.peers, self.message_search, self.message_describer
        )
        self.message_lookup = MessageLookup(
            services,
            self.message_search,
            self.message_describer,
            self.remote_lookup,
            self.destinations,
            self.things,
        )
        self.housekeeping = Housekeeping(services)
        self.retention = retention.Retention(self._retention_tasks())
        self.disk_watch = DiskWatch(services, self.recorder)
        self.expiry = Expiry(
            services,
            self.confirmations,
            (
                OutgoingSweeper(services, self.outgoing, self.undeliverable),
                LocalSweeper(services, self.queues, self.dead_letters),
            ),
        )
        self.maintenance = MaintenanceLoop(
            services, self.housekeeping, self.expiry, self.retention, self.event_log_limits
        )
        self._connect(deferred_acknowledgments, outgoing_ids, outgoing_refill)
        self.components = self._components()

    def _connect(
        self,
        deferred_acknowledgments: DeferredAcknowledgments,
        outgoing_ids: OutgoingIds,
        outgoing_refill: OutgoingRefill,
    ) -> None:
        """Name the collaborators that are made later."""
        services = self.services
        self._transmitter = Transmitter(
            services,
            self.outgoing,
            self.recorder,
            self.reports,
            self.undeliverable,
            self.redirection.may_transmit,
        )
        self._dialer = Dialer(services, self.make_connection)
        self.queues.on_added = self.destinations.forget
        self.queues.on_ready = self.message_receiver.serve
        services.clock.when_set = self.outgoing.clock_was_set
        self.damage.connect(self.outgoing.arm_resend)
        outgoing_refill.connect(self.outgoing_release.release)
        outgoing_ids.connect(self.outgoing, self._forget_ways)
        self.outgoing.connect(
            self.peers,
            self.redirection,
            self.outgoing_release.release,
            outgoing_refill.refill,
        )
        self.own_dead_letters.connect(self.destinations.find_here)
        self.destinations.on_change = self.local_destinations.queues_changed
        deferred_acknowledgments.connect(self.packet_sender)
        self.acknowledgments.connect(self.peers.connection_to, self.packet_sender)
        self.reports.connect(self.packet_sender)
        self.undeliverable.connect(self.outgoing_release.release, self.relay_store.gone)
        self.promises.connect(self.owed_acks.owe_order_ack, self.owed_acks.arm_order_ack)
        self.identities.connect(self.peers.close_sessions)
        self.peers.connect(
            self.next_hops, self.make_link, self.outgoing_release.session_acknowledged
        )
        self.peers.on_change = self.remote_lookup.sessions_changed
        self.outgoing_release.connect(self.confirmations, self.sequence_renewal)
        self.local_destinations.connect([self.remote_lookup])

    def _components(self) -> Components:
        names = (each.name for each in dataclasses.fields(Components))
        return Components(**{name: getattr(self, name) for name in names})

    def make_connection(
        self, link: SessionUser | None, dialled_address: tuple[str, int] | None = None
    ) -> PeerConnection:
        """Make the session for a socket that is about to be connected."""
        return PeerConnection(
            self.services,
            self.incoming,
            self.owed_acks.send,
            self.peers,
            self.turns,
            link,
            dialled_address,
        )

    def make_link(self, *, address: tuple[str, int] | None, guid: bytes | None) -> Link:
        return Link(
            self.services,
            self._transmitter,
            self._dialer,
            self.next_hops,
            self.remote_lookup.sessions_changed,
            self.relay_loops.end_relayed,
            address=address,
            guid=guid,
        )

    def _begin_batch(self, token: bytes, transaction: str) -> BatchSender:
        """Return the sender of one request; `transaction` is its id as text, or ""."""
        return BatchSender(
            self.services,
            self.composer,
            self.send_outcomes,
            self.outgoing,
            SentEvents(self.recorder, self.services.id, transaction),
            token,
        )

    def _queue_removed(self, queue: LocalQueue) -> None:
        """Drop references to a queue that is being deleted."""
        self.destinations.forget()
        self.incoming_streams.forget_queue(queue)

    def _new_answers(self) -> DirectoryAnswers:
        return DirectoryAnswers(self.resolver, self.destinations)

    def new_publication(self) -> PreparedPublication:
        """Return an empty publication."""
        services = self.services
        return PreparedPublication(
            services,
            self.admission,
            self.message_sender,
            self._new_answers(),
            ShapeBuilder(services, self.confirmations, self.destinations, self.message_sender),
            PublicationWriter(
                services, self.confirmations, self.outgoing, self.outgoing_release, self.recorder
            ),
        )

    def _retention_tasks(self) -> dict[str, retention.Task]:
        services = self.services
        return {
            "forget message ids": partial(retention.forget_message_ids, self.known_messages),
            "forget own dead-letter queues": self.own_dead_letters.forget_gone,
            "forget readers": self.readers.forget_gone,
            "forget stages": self.staging.forget_old,
            "forget unconfirmed messages": partial(
                retention.forget_unconfirmed, services, self.confirmations
            ),
            "forget outcomes": partial(retention.forget_outcomes, services),
            "trim the events": self.event_log_limits.forget_old,
        }

    def _forget_ways(self) -> None:
        """Drop references to outgoing queues that are only kept for speed."""
        self.destinations.forget_elsewhere()
        self.relay_rules.forget_avoided()
        self.acknowledgments.forget_idle_ways()

    async def reload_directory(self) -> None:
        """Look everything up anew; read the file of a file directory again.  Raises Refusal."""
        self._directory_changed()
        if isinstance(self.directory, Reloadable):
            await self.directory.reload()

    def _directory_changed(self) -> None:
        """Forget what was looked up in the directory."""
        self.resolver.forget()
        self.destinations.forget()
        self.next_hops.directory_changed()
        self.acknowledgments.deferred.directory_changed()
        self.registration.directory_changed()
