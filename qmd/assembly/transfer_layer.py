"""The components that exchange messages with other queue managers, and end them."""

from __future__ import annotations

from qmd.assembly.state_layer import StateLayer
from qmd.operations.packet_sender import PacketSender
from qmd.outcomes.acknowledgment_columns import AcknowledgmentColumns
from qmd.outcomes.acknowledgments import Acknowledgments
from qmd.outcomes.answer_ways import AnswerWays
from qmd.outcomes.dead_letter import DeadLetters
from qmd.outcomes.deferred_acknowledgments import DeferredAcknowledgments
from qmd.outcomes.nack import Nacks
from qmd.outcomes.promises import Promises
from qmd.outcomes.refused_letters import RefusedLetters
from qmd.outcomes.reports import Reports
from qmd.outcomes.source_acknowledgments import SourceAcknowledgments
from qmd.outcomes.undeliverable import Undeliverable
from qmd.peers.away_hosts import AwayHosts
from qmd.peers.connection import PeerConnection, SessionUser
from qmd.peers.dial_gate import DialGate, has_applications
from qmd.peers.dialer import Dialer
from qmd.peers.identity_conflicts import IdentityConflicts
from qmd.peers.known_hosts import KnownHosts
from qmd.peers.link import Link
from qmd.peers.met_runs import MetRuns
from qmd.peers.name_lookups import NameLookups
from qmd.peers.next_hop import NextHops
from qmd.peers.origins import Origins
from qmd.peers.pending_acks import PendingAcks
from qmd.peers.redirect import Redirection
from qmd.peers.relays import Relays
from qmd.peers.sessions import Peers
from qmd.peers.tls_peers import TlsPeers
from qmd.peers.tls_watch import TlsWatch
from qmd.peers.transmitter import Transmitter
from qmd.queues.limits import Limits
from qmd.queues.parts_ahead import PartsAhead
from qmd.runtime.services import Services
from qmd.transfer.acceptance import Acceptance
from qmd.transfer.arrivals import Arrivals
from qmd.transfer.confirmation import Confirmations
from qmd.transfer.incoming import Incoming
from qmd.transfer.large_arrivals import LargeArrivals
from qmd.transfer.local_destinations import LocalDestinations
from qmd.transfer.received_acks import ReceivedAcks
from qmd.transfer.relay import Relay
from qmd.transfer.relay_loops import RelayLoops
from qmd.transfer.relay_rules import RelayRules
from qmd.transfer.relay_store import RelayStore
from qmd.transfer.relayed_acks import RelayedAcks
from qmd.transfer.release import OutgoingRelease
from qmd.transfer.security_gate import SecurityGate
from qmd.transfer.sender_access import SenderAccess
from qmd.transfer.sequence_order import SequenceOrder
from qmd.transfer.sequence_renewal import SequenceRenewal
from qmd.transfer.speakers import Speakers


class TransferLayer(StateLayer):
    """Outcomes, sessions with peers, and the transfer of messages."""

    def __init__(self, services: Services, limits: Limits) -> None:
        super().__init__(services, limits)
        self._make_outcomes()
        self._make_peers()
        self._make_relay()
        self._make_transfer()
        self._make_incoming()
        self._connect_transfer()

    def _make_outcomes(self) -> None:
        services = self.services
        self.deferred_acknowledgments = DeferredAcknowledgments(
            services, self.recorder, self.resolver, self.destinations
        )
        self.answer_ways = AnswerWays(services, self.destinations)
        self.acknowledgments = Acknowledgments(
            services,
            self.outgoing,
            self.recorder,
            self.destinations,
            self.deferred_acknowledgments,
            self.answer_ways,
            self.answer_limits,
        )
        self.reports = Reports(
            services,
            self.admission,
            self.recorder,
            self.resolver,
            self.destinations,
            self.answer_ways,
            self.answer_limits,
        )
        self.refused_letters = RefusedLetters(services, self.usage)
        self.dead_letters = DeadLetters(
            services,
            self.acknowledgments,
            self.own_dead_letters,
            self.queues,
            self.recorder,
            self.refused_letters,
            self.answer_ways,
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

    def _make_peers(self) -> None:
        services = self.services
        self.origins = Origins(services)
        self.identities = IdentityConflicts(services, self.known_messages, self.origins)
        self.known_hosts = KnownHosts(services)
        self.tls = TlsPeers(services)
        self.peers = Peers(
            services,
            self.acknowledgments,
            self.identities,
            self.incoming_streams,
            self.known_hosts,
            self.origins,
            self.tls,
            MetRuns(self.recorder),
        )
        self.tls_watch = TlsWatch(services, self.tls, self.peers)
        self.next_hops = NextHops(services, self.directory, self.peers, self.origins)
        self.relays = Relays(services, self.directory, self.next_hops)
        self.incoming_streams.connect(
            self.origins,
            self.relays.is_relay_host,
            lambda guid, origin: self.peers.connection_to(guid, origin) is not None,
        )
        self.pending_acks = PendingAcks(services, self.next_hops.session_towards)
        self.redirection = Redirection(
            services, self.origins, self.outgoing, self.peers, self.destinations
        )

    def _make_relay(self) -> None:
        services = self.services
        self.local_destinations = LocalDestinations(services, self.queues, self.destinations)
        self._speakers = Speakers(self.origins, self.relays)
        self.relay_rules = RelayRules(
            services,
            self.destinations,
            self.local_destinations,
            self.next_hops,
            self.peers,
            self._speakers,
        )
        self.relay_store = RelayStore(services, self.known_messages, self.outgoing, self.recorder)
        self._relayed_acks = RelayedAcks(
            services,
            self.known_messages,
            self.outgoing,
            self.relay_rules,
            self._speakers,
            self.relay_store,
        )
        self.relay = Relay(
            services,
            self.next_hops,
            self.outgoing,
            self._relayed_acks,
            self.reports,
            self.relay_rules,
            self.relay_store,
            self.peers.shortage,
        )
        self.relay_loops = RelayLoops(services, self.next_hops, self.undeliverable)

    def _make_transfer(self) -> None:
        services = self.services
        self.outgoing_release = OutgoingRelease(
            services,
            self.dead_letters,
            self.outgoing,
            self.recorder,
            self.relay_store,
            self._relayed_acks,
            self._speakers,
            self.undeliverable,
        )
        self.confirmations = Confirmations(
            services,
            self.dead_letters,
            self.outgoing,
            self.promises,
            self.recorder,
            self._relayed_acks,
            self.outgoing_release,
            self._speakers,
        )
        self.sequence_renewal = SequenceRenewal(
            services,
            self.outgoing,
            self.outgoing_ids,
            self.outgoing_release.release,
            self._speakers,
            self.undeliverable,
        )
        self.packet_sender = PacketSender(
            services,
            self.destinations,
            self.outgoing,
            self.recorder,
            self.answer_limits,
            self.parts,
        )

    def _make_incoming(self) -> None:
        services = self.services
        sequence_order = SequenceOrder(services, self.incoming_streams, self.identities)
        senders = SenderAccess(
            self.access_register, self.origins, self.local_destinations.is_listed
        )
        acceptance = Acceptance(
            services,
            self.admission,
            self.known_messages,
            self.local_destinations,
            self.next_hops,
            self.relay,
            sequence_order,
            senders,
            self._speakers,
            self.peers.shortage,
        )
        large = LargeArrivals(
            self.local_destinations,
            self.admission,
            senders,
            self._speakers,
            PartsAhead(services, self.turns),
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
            SecurityGate(services, self.local_destinations, self.keyring, self.security_answers),
            large,
        )

    def _connect_transfer(self) -> None:
        """Name the collaborators that were made later."""
        services = self.services
        self._transmitter = Transmitter(
            services,
            self.outgoing,
            self.recorder,
            self.reports,
            self.undeliverable,
            self.redirection.may_transmit,
        )
        settings = services.settings
        self.dial_gate = DialGate(
            turns=settings.consequences.connections, sessions_max=settings.peers.sessions_max
        )
        self._away_hosts = AwayHosts(settings.delivery.away_retry_s)
        self.name_lookups = NameLookups(services)
        self._dialer = Dialer(
            services, self.name_lookups, self.tls, self.turns, self.make_connection
        )
        release = self.outgoing_release.release
        self._outgoing_refill.connect(release)
        self.outgoing_ids.connect(self.outgoing, self._forget_ways)
        self.outgoing.connect(self.peers, self.redirection, release, self._outgoing_refill.refill)
        self.destinations.on_change = self.local_destinations.queues_changed
        self.deferred_acknowledgments.connect(self.packet_sender)
        self.answer_ways.connect(
            self.peers.connection_to, self._sends_to, self.origins.primary_fact
        )
        self.acknowledgments.connect(self.peers.connection_to, self.packet_sender)
        self.dead_letters.connect(self._acknowledgment_columns)
        self.reports.connect(self.packet_sender)
        self.undeliverable.connect(release, self.relay_store.gone)
        self.promises.connect(self.pending_acks.owe_order_ack, self.pending_acks.arm_order_ack)
        self.identities.connect(self.peers.close_sessions)
        self.peers.connect(
            self.next_hops, self.make_link, self.outgoing_release.session_acknowledged
        )
        self.outgoing_release.connect(self.confirmations, self.sequence_renewal)

    def _acknowledgment_columns(self, message_class: int) -> AcknowledgmentColumns:
        return AcknowledgmentColumns(
            self.services,
            self.outgoing,
            self.answer_limits,
            self.acknowledgments,
            self.packet_sender,
            message_class,
        )

    def make_connection(
        self, link: SessionUser | None, dialled_address: tuple[str, int] | None = None
    ) -> PeerConnection:
        """Make the session for a socket that is about to be connected."""
        return PeerConnection(
            self.services,
            self.incoming,
            self.pending_acks.send,
            self.peers,
            self.turns,
            link,
            dialled_address,
        )

    def make_link(self, *, address: tuple[str, int] | None, guid: bytes | None) -> Link:
        """Make the link to an address or to a queue manager."""
        return Link(
            self.services,
            self._transmitter,
            self._dialer,
            self.next_hops,
            self.peers.on_change,
            self.relay_loops.end_relayed,
            self.dial_gate,
            self._away_hosts,
            address=address,
            guid=guid,
        )

    def _sends_to(self, there: tuple[str, int] | bytes) -> bool:
        return has_applications(self.peers.find_link(there))

    def _forget_ways(self) -> None:
        """Drop references to outgoing queues that are only kept for speed."""
        self.destinations.forget_elsewhere()
        self.relay_rules.forget_avoided()
        self.acknowledgments.forget_idle_ways()

    def _directory_changed(self) -> None:
        super()._directory_changed()
        self.next_hops.directory_changed()
        self.relays.directory_changed()
        self.deferred_acknowledgments.directory_changed()
        self.registration.directory_changed()
