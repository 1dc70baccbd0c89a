"""The components of a queue manager, made and connected.

Each takes the services and the components that it uses; `connect` names those that are made later,
and hooks say what happens elsewhere when something changes.  No component knows this module.
"""

from __future__ import annotations

import dataclasses

from qmd.access.things import ThingFinder
from qmd.bulk.consume import Consumer
from qmd.bulk.publish import Prepared
from qmd.bulk.range_read import Ranges
from qmd.bulk.reservations import Reserving
from qmd.bulk.staging import Staging
from qmd.control.components import Components
from qmd.directory.factory import open_directory
from qmd.directory.interface import Reloadable
from qmd.directory.registration import Publishing
from qmd.directory.resolver import Own, Resolver
from qmd.events.recorder import Recorder
from qmd.history.event_query import EventLog
from qmd.history.message_lookup import Inquiry
from qmd.history.remote_lookup import Asking
from qmd.maintenance.disk_watch import DiskWatch
from qmd.maintenance.expiry import Reaper
from qmd.maintenance.housekeeping import Housekeeping
from qmd.maintenance.retention import Retention
from qmd.message.shared_packet import Parts
from qmd.naming.destinations import Routes
from qmd.operations.dead_letter_summary import DeadLetters
from qmd.operations.import_messages import Importing
from qmd.operations.move import Moving
from qmd.operations.queue_admin import Administration
from qmd.operations.receive import Reading
from qmd.operations.receive_selected import Picking
from qmd.operations.request_outcomes import RequestOutcomes
from qmd.operations.resend import Resending
from qmd.operations.selection import Choosing
from qmd.operations.send import Sending
from qmd.operations.send_batch import Handover
from qmd.operations.transactions import Transactions
from qmd.operations.two_phase_commit import Branches
from qmd.outcomes.acknowledgments import Acknowledging
from qmd.outcomes.dead_letter import Endings
from qmd.outcomes.deferred_acknowledgments import Addressing
from qmd.outcomes.nack import Refusing
from qmd.outcomes.promises import Promises
from qmd.outcomes.reports import Tracing
from qmd.outcomes.undeliverable import Undelivered
from qmd.peers.connection import PeerConnection
from qmd.peers.identity_conflicts import Identities
from qmd.peers.link import Link
from qmd.peers.next_hop import Routing
from qmd.peers.pending_acks import OwedAcks
from qmd.peers.redirect import Redirecting
from qmd.peers.sessions import Peers
from qmd.queues import quotas
from qmd.queues.incoming_sequences import IncomingStreams
from qmd.queues.limits import Limits
from qmd.queues.message_id_history import KnownMessages
from qmd.queues.named_dead_letter_queue import OwnDeadLetters
from qmd.queues.outgoing_ids import OutgoingIds
from qmd.queues.outgoing_queues import Outgoing
from qmd.queues.quarantine import Damage
from qmd.queues.registry import LocalQueues
from qmd.queues.usage import Usage
from qmd.runtime.fair_scheduler import Light, Turns
from qmd.runtime.services import Services
from qmd.transfer.confirmation import Confirmations
from qmd.transfer.incoming import Incoming
from qmd.transfer.relay import Relaying
from qmd.transfer.release import Releasing
from qmd.transfer.sequence_renewal import SequenceRenewal


class Assembly:
    """All components of one queue manager."""

    def __init__(self, services: Services, limits: Limits) -> None:
        self.services = services
        settings = services.settings
        light = Light()
        self.turns = Turns(services, light, beside_the_disk=False)  # of peers
        self.local_turns = Turns(services, light, beside_the_disk=True)  # of applications
        self.usage = Usage(settings.quotas.computer_bytes, quotas.notice)
        self.admission = quotas.Admission(services, self.usage)
        self.queues = LocalQueues(services, self.usage)
        self.parts = Parts()
        self.recorder = Recorder(services)
        self.incoming_streams = IncomingStreams(services)
        self.known_messages = KnownMessages(services)
        self.damage = Damage(services, self.recorder)
        outgoing_ids = OutgoingIds(services, destinations_max=limits.destinations)
        self.outgoing = Outgoing(services, self.damage, self.parts, self.usage, outgoing_ids)
        self.own_dead_letters = OwnDeadLetters(services, self.outgoing, self.queues)
        self.directory = open_directory(settings.directory, changed=self._directory_changed)
        self.routes = Routes(services, self.directory, self.outgoing, self.queues)
        self.resolver = Resolver(
            self.directory,
            Own(services.id, self.routes.is_local, self.routes.path_of_guid),
            settings.directory,
            now=services.loop.time,
        )
        self.things = ThingFinder(self.queues, self.routes, self.resolver)
        self.publishing = Publishing(
            services,
            self.directory,
            self.queues,
            self.resolver,
            self.routes.queue_by_guid,
        )
        addressing = Addressing(services, self.recorder, self.resolver, self.routes)
        self.acknowledging = Acknowledging(
            services, self.outgoing, self.recorder, self.routes, addressing
        )
        self.tracing = Tracing(services, self.admission, self.recorder, self.routes)
        self.endings = Endings(
            services,
            self.acknowledging,
            self.damage,
            self.own_dead_letters,
            self.queues,
            self.recorder,
        )
        self.promises = Promises(services)
        self.refusing = Refusing(
            services,
            self.acknowledging,
            self.endings,
            self.known_messages,
            self.promises,
            self.recorder,
            self.routes,
        )
        self.undelivered = Undelivered(
            services, self.acknowledging, self.damage, self.endings, self.outgoing, self.recorder
        )
        self.identities = Identities(services, self.known_messages)
        self.peers = Peers(services, self.acknowledging, self.identities, self.incoming_streams)
        self.routing = Routing(services, self.directory, self.peers)
        self.owed_acks = OwedAcks(services, self.routing.session_towards)
        self.redirecting = Redirecting(
            services, self.identities, self.outgoing, self.peers, self.routes
        )
        self.relaying = Relaying(
            services,
            self.known_messages,
            self.outgoing,
            self.peers,
            self.recorder,
            self.refusing,
            self.routes,
            self.routing,
            self.tracing,
            self.undelivered,
        )
        self.releasing = Releasing(
            services, self.endings, self.outgoing, self.recorder, self.relaying, self.undelivered
        )
        self.confirmations = Confirmations(
            services,
            self.damage,
            self.endings,
            self.outgoing,
            self.promises,
            self.recorder,
            self.relaying,
            self.releasing,
        )
        self.sequence_renewal = SequenceRenewal(
            services, self.outgoing, self.releasing.release, self.undelivered
        )
        self.incoming = Incoming(
            services,
            self.acknowledging,
            self.admission,
            self.confirmations,
            self.identities,
            self.incoming_streams,
            self.known_messages,
            self.owed_acks,
            self.promises,
            self.queues,
            self.recorder,
            self.refusing,
            self.relaying,
            self.releasing,
            self.routes,
            self.routing,
            self.tracing,
        )
        self.sending = Sending(
            services,
            self.admission,
            self.outgoing,
            self.own_dead_letters,
            self.peers,
            self.recorder,
            self.releasing,
            self.routes,
        )
        self.request_outcomes = RequestOutcomes(services, self.sending)
        self.reading = Reading(
            services, self.damage, self.endings, self.parts, self.queues, self.recorder
        )
        self.choosing = Choosing(services, self.damage)
        self.picking = Picking(services, self.choosing)
        self.moving = Moving(services, self.choosing, self.queues, self.recorder, self.routes)
        self.resending = Resending(
            services,
            self.choosing,
            self.endings,
            self.outgoing,
            self.recorder,
            self.resolver,
            self.routes,
            self.sending,
            self.things,
        )
        self.dead_letters = DeadLetters(services)
        self.importing = Importing(services, self.admission, self.peers, self.recorder)
        self.administration = Administration(
            services,
            self.choosing,
            self.directory,
            self.endings,
            self.incoming_streams,
            self.own_dead_letters,
            self.publishing,
            self.queues,
            self.routes,
            queues_max=limits.queues,
        )
        self.transactions = Transactions(
            services, self.moving, self.picking, self.reading, self.request_outcomes, self.sending
        )
        self.branches = Branches(services, self.request_outcomes, self.transactions)
        self.ranges = Ranges(services, self.damage)
        consumer = Consumer(services, self.recorder, self.endings, self.damage)
        self.reserving = Reserving(
            services, consumer, self.recorder, self.picking, self.queues, self.ranges, self.routes
        )
        self.staging = Staging(
            services,
            self.admission,
            self.resolver,
            self.routes,
            self.sending,
            self.things,
            self.usage,
            self._prepare_publication,
        )
        self.event_log = EventLog(services, self.routes)
        self.asking = Asking(services, self.peers)
        self.inquiry = Inquiry(
            services,
            self.asking,
            self.identities,
            self.outgoing,
            self.peers,
            self.queues,
            self.routes,
            self.transactions,
            self.releasing,
            self.things,
        )
        self.housekeeping = Housekeeping(services)
        self.retention = Retention(
            services,
            self.confirmations,
            self.known_messages,
            self.own_dead_letters,
            self.recorder,
            self.reserving,
            self.staging,
        )
        self.disk_watch = DiskWatch(services, self.recorder)
        self.reaper = Reaper(
            services,
            self.confirmations,
            self.endings,
            self.housekeeping,
            self.outgoing,
            self.queues,
            self.recorder,
            self.retention,
            self.undelivered,
        )
        self._connect(addressing, outgoing_ids)
        self.components = self._components()

    def _connect(self, addressing: Addressing, outgoing_ids: OutgoingIds) -> None:
        """Name the collaborators that are made later."""
        services = self.services
        self.queues.on_added = self.routes.forget
        self.queues.on_ready = self.reading.serve
        services.clock.when_set = self.outgoing.clock_was_set
        self.damage.connect(self.outgoing.arm_resend)
        outgoing_ids.connect(self.outgoing, self._forget_ways)
        self.outgoing.connect(
            self.peers,
            self.redirecting,
            self.relaying.usage,
            self.releasing.release,
            self.acknowledging.met,
        )
        self.own_dead_letters.connect(self.routes.find_here)
        self.routes.connect(self.resolver)
        self.routes.on_change = self.incoming.queues_changed
        addressing.connect(self.sending)
        self.acknowledging.connect(self.peers.connection_to, self.sending)
        self.tracing.connect(self.sending)
        self.undelivered.connect(self.releasing.release, self.relaying.gone)
        self.promises.connect(self.owed_acks.owe_order_ack, self.owed_acks.arm_order_ack)
        self.identities.connect(self.peers.end_all)
        self.peers.connect(
            self.routing.know,
            self.routing.opened,
            self.make_link,
            self.asking.sessions_changed,
            self.releasing.session_acknowledged,
        )
        self.relaying.connect(self.asking)
        self.releasing.connect(self.confirmations, self.sequence_renewal)
        self.incoming.connect(self.asking)
        self.sending.connect(self._hand_over)
        self.request_outcomes.connect(self.transactions)
        self.moving.connect(self.administration)
        self.administration.connect(self.reserving.check_deletable)
        self.asking.connect(self.inquiry)

    def _components(self) -> Components:
        names = (each.name for each in dataclasses.fields(Components))
        return Components(**{name: getattr(self, name) for name in names})

    def make_connection(
        self, link: Link | None, dialled_address: tuple[str, int] | None = None
    ) -> PeerConnection:
        """A session over a socket that is about to be connected."""
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
            self.identities,
            self.outgoing,
            self.recorder,
            self.redirecting.may_hand,
            self.routing,
            self.tracing,
            self.undelivered,
            self.make_connection,
            self.asking.sessions_changed,
            self.relaying.ways_lead_back,
            address=address,
            guid=guid,
        )

    def _hand_over(self, token: bytes, transaction: str) -> Handover:
        return Handover(
            self.services,
            self.acknowledging,
            self.confirmations,
            self.endings,
            self.outgoing,
            self.own_dead_letters,
            self.parts,
            self.recorder,
            self.routes,
            self.tracing,
            token,
            transaction,
        )

    def _prepare_publication(self) -> Prepared:
        return Prepared(
            self.services,
            self.admission,
            self.confirmations,
            self.outgoing,
            self.recorder,
            self.releasing,
            self.resolver,
            self.routes,
            self.sending,
        )

    def _forget_ways(self) -> None:
        """Drop references to outgoing queues that are only kept for speed."""
        self.routes.forget_elsewhere()
        self.relaying.forget_avoided()
        self.acknowledging.forget_idle_ways()

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
