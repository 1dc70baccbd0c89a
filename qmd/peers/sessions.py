"""Sessions and links: which hosts may connect, and which link uses which session."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Protocol, cast

from protocol.identifiers import guid_text
from qmd.core.identity_proof import NONCE_BYTES, Prover
from qmd.core.session import Session, SessionSettings
from qmd.core.session_events import NEVER, USUAL_WINDOW
from qmd.peers.admission import Admission
from qmd.peers.announced import AnnouncedSessions
from qmd.peers.configured_hosts import ConfiguredHosts
from qmd.peers.dial_gate import has_applications
from qmd.peers.link import Link
from qmd.peers.origins import Bound, is_proof
from qmd.peers.own_addresses import NO_ADDRESS, OwnAddresses, packed_address
from qmd.peers.shortage import Shortage
from qmd.peers.tls_peers import end_of
from qmd.runtime.identity_key import verify

if TYPE_CHECKING:
    from qmd.core.peer_instance import Instance
    from qmd.outcomes.acknowledgments import Acknowledgments
    from qmd.peers.connection import PeerConnection, SessionUser
    from qmd.peers.identity_conflicts import IdentityConflicts
    from qmd.peers.known_hosts import KnownHosts
    from qmd.peers.met_runs import MetRuns
    from qmd.peers.origins import Origins
    from qmd.peers.tls_peers import TlsPeers
    from qmd.queues.incoming_sequences import IncomingStreams
    from qmd.queues.outgoing_queue import OutgoingQueue
    from qmd.queues.way import Way
    from qmd.runtime.services import Services


# Limit for acknowledging the receipt of a message. The specification permits 10 s for an express
# message, for which its sender would show the message as being sent.
RECEIPT_ACK_MAX_S = 0.1

#: The reason of a session with a queue manager that states the GUID of another one.
NOT_THE_ONE = "it has not proven to be the queue manager that is known by its GUID"
#: The reason of a session whose address or key belongs to another origin than at its beginning.
ANOTHER_ORIGIN = "its address or its key belongs to another origin now (qmd peer list)"


class LinkObserver(Protocol):
    """Next hops of links, which depend on sessions and addresses: `NextHops`."""

    def link_changed(self, link: Link) -> None: ...
    def session_opened(self, guid: bytes) -> None: ...
    def may_lead_to(self, link: Link, *, is_known: bool) -> bool: ...


class Peers:
    """The table of all sessions with other queue managers, and of all links to them."""

    def __init__(
        self,
        services: Services,
        acknowledgments: Acknowledgments,
        identities: IdentityConflicts,
        incoming_streams: IncomingStreams,
        known_hosts: KnownHosts,
        origins: Origins,
        tls: TlsPeers,
        met_runs: MetRuns,
    ) -> None:
        self._services = services
        self._acknowledgments = acknowledgments
        self._identities = identities
        self._incoming_streams = incoming_streams
        self._origins = origins
        self._own_addresses = OwnAddresses(services)
        origins.on_primary = self._primary_changed
        origins.on_facts = self._facts_changed
        self._tls = tls
        self._met_runs = met_runs
        self._links_by_address: dict[tuple[str, int], Link] = {}
        self._links_by_guid: dict[bytes, Link] = {}
        self._by_origin: dict[tuple[bytes, str], list[PeerConnection]] = {}
        self._origins_of: dict[bytes, dict[str, None]] = {}  # with open sessions
        self._known_hosts = known_hosts
        self.hosts = ConfiguredHosts(services)
        self.admission = Admission(services, known_hosts)
        self.shortage = Shortage()
        self.announced = AnnouncedSessions()
        self.connections: dict[PeerConnection, None] = {}
        #: Called when a session has opened.
        self.on_change: Callable[[], None] = lambda: None
        delivery = services.settings.delivery
        self._session_settings = SessionSettings(
            window_size=delivery.window_size,
            # Below the usual window, an operator wants few messages in flight, to any peer.
            wide_window_size=delivery.wide_window_size
            if delivery.window_size >= USUAL_WINDOW
            else delivery.window_size,
            ack_timeout_s=delivery.ack_timeout_s,
            recoverable_ack_min_s=delivery.recoverable_ack_timeout_min_s,
            initialization_timeout_s=services.settings.peers.handshake_timeout_s,
            cleanup_timeout_s=delivery.idle_close_s,
            receipt_ack_max_s=RECEIPT_ACK_MAX_S if delivery.acknowledge_at_once else NEVER,
            ack_at_once=delivery.acknowledge_at_once,
        )

    def connect(
        self,
        next_hops: LinkObserver,
        make_link: Callable[..., Link],
        acknowledged: Callable[[list[tuple[OutgoingQueue, int]]], None],
    ) -> None:
        """Set the components that are made later.

        `make_link(address=, guid=)` makes a link.  `acknowledged` is called with the outgoing queue
        and the number of each message that a session has acknowledged.
        """
        self._next_hops = next_hops
        self._make_link = make_link
        self._acknowledged = acknowledged

    @property
    def links(self) -> list[Link]:
        """All links."""
        return [*self._links_by_address.values(), *self._links_by_guid.values()]

    def link_to_address(self, host: str, port: int) -> Link:
        """Return the link to an address; make it if there is none."""
        address = (host.casefold(), port)
        link = self._links_by_address.get(address)
        if link is None:
            link = self._links_by_address[address] = self._make_link(address=address, guid=None)
        return link

    def link_to_queue_manager(self, guid: bytes, address: tuple[str, int] | None = None) -> Link:
        """Return the link to a queue manager, which uses any session with it; make it if necessary.

        Without a session the link dials `address`.
        """
        link = self._links_by_guid.get(guid)
        if link is None:
            link = self._links_by_guid[guid] = self._make_link(address=address, guid=guid)
        elif link.address is None and address is not None:
            link.address = address
            self._next_hops.link_changed(link)
        if link.connection is None:
            self._use_open_session(link)
        return link

    def forget_link(self, link: Way) -> None:
        """Remove an idle link, unless something references it, such as a session or a route."""
        assert isinstance(link, Link)
        if not link.is_idle:
            return
        link.stop()
        self._next_hops.link_changed(link)
        guid, address, reference = link.guid, link.address, weakref.ref(link)
        if guid is not None:
            self._links_by_guid.pop(guid)
        elif address is not None:
            self._links_by_address.pop(address)
        del link
        held = reference()
        if held is not None and guid is not None:
            self._links_by_guid[guid] = held
        elif held is not None and address is not None:
            self._links_by_address[address] = held

    def find_link(self, there: tuple[str, int] | bytes) -> Link | None:
        """Return the link to an address, or to a queue manager by its GUID, if there is one."""
        if isinstance(there, bytes):
            return self._links_by_guid.get(there)
        return self._links_by_address.get(there)

    def connection_to(self, guid: bytes, origin: str | None = None) -> PeerConnection | None:
        """Return the latest open session with an origin of a queue manager, if any.

        Without `origin` it is the primary one; while that is not known, the session that stated the
        GUID last.
        """
        if origin is None:
            origin = self._origins.primary(guid)
        if origin is None:
            origin = next(reversed(self._origins_of.get(guid, {})), "")
        connections = self._by_origin.get((guid, origin))
        return connections[-1] if connections else None

    # Called by connections.

    def _origin_for(self, connection: PeerConnection, source: bytes) -> str:
        """Return the origin for which a message of a source counts that a session brings.

        A relay speaks for the primary origin of the source; "" if none is known.
        """
        assert connection.session is not None
        if source == connection.session.remote_id:
            return connection.origin
        return self._origins.primary(source) or ""

    def admit(self, connection: PeerConnection) -> Session | None:
        """Return the session for a new connection, or None to abort the connection.

        If a limit is reached, the session refuses the handshake.
        """
        host, dialled = connection.host, connection.link is not None
        refuse = False
        if not dialled:
            if not self.may_connect(host):
                return None
            refuse = not self.admission.begin(connection)
        self.connections[connection] = None
        connection.when_accepted = self._origins.accepted
        connection.origin_for = partial(self._origin_for, weakref.proxy(connection))  # no cycle
        if connection.link is not None:
            connection.link.attempt = connection
        return Session(
            initiator=dialled,
            own_id=self._services.id,
            expected_remote=None if connection.link is None else connection.link.guid,
            settings=self._session_settings,
            now=self._services.loop.time(),
            refuse=refuse,
            instance=self._identities.own._replace(
                tls_port=self._tls.offer_to(connection),
                lack=self.shortage.lack(self._services.loop.time()),
            ),
            judge=partial(self._judge, connection),
            prover=None if connection.certified else self._prover(connection),
        )

    def _prover(self, connection: PeerConnection) -> Prover:
        """Return the means to prove our key over a connection, and to check that of the peer."""
        dialled = connection.dialled_address
        key = self._services.key
        return Prover(
            lambda: key.public,
            key.sign,
            verify,
            self._services.environment.urandom(NONCE_BYTES),
            NO_ADDRESS if dialled is None else packed_address(connection.host, dialled[1]),
            partial(self._own_addresses.includes, connection.own_host, connection.own_port),
        )

    def _judge(
        self,
        connection: PeerConnection,
        guid: bytes,
        instance: Instance | None,
        key: bytes | None,
    ) -> str | None:
        """Return why there must be no session with the other end of a handshake, or None."""
        hindrance = self._tls.judge(connection, guid)
        port = 0 if instance is None else instance.tls_port
        if hindrance is None and self._goes_to_tls(connection, port):
            hindrance = "it offers TLS, and is dialled again over TLS"
        return hindrance or self._identities.judge(connection, guid, instance, key)

    def _goes_to_tls(
        self, connection: PeerConnection, port: int, *, is_needed: bool = False
    ) -> bool:
        """Return whether a connection that this side has dialled gives way to one over TLS."""
        if connection.link is not None and connection.proof is None:
            connection.goes_to_tls = self._tls.offered(
                end_of(connection.link), port, is_needed=is_needed
            )
        return connection.goes_to_tls

    def may_connect(self, host: str) -> bool:
        """Return whether a connection from that address is accepted; log it if not."""
        if not self.hosts.is_allowed(host):
            self._services.log_limited("peer_not_allowed", host, address=host)
            return False
        if not self.admission.may_connect(host):
            self._services.log_limited("too_many_connections", host, address=host)
            return False
        return True

    def close_sessions(self, guid: bytes, origin: str, reason: str, *, but: PeerConnection) -> None:
        """End the sessions with one origin of a queue manager, except `but`."""
        for connection in list(self._by_origin.get((guid, origin), ())):
            if connection is not but:
                connection.close(reason)

    def opened(self, connection: PeerConnection) -> None:
        """Let links use a session that has opened."""
        assert connection.session is not None
        guid = connection.session.remote_id
        assert guid is not None
        self.admission.opened(connection)
        if connection.link is not None:
            self._known_hosts.add(connection.host, is_dialled=True)
        connection.handshake_done = True
        # Others may have proven a key, or got a pin, since its handshake was judged.
        self._origins.identify(connection, guid, connection.peer_key)
        hindrance = self._tls.judge(connection, guid)
        self._tls.opened(connection)
        self._by_origin.setdefault((guid, connection.origin), []).append(connection)
        origins = self._origins_of.setdefault(guid, {})
        origins.pop(connection.origin, None)
        origins[connection.origin] = None  # the latest is the last
        self._services.log_limited(
            "session_opened",
            connection.host,
            peer=guid_text(guid),
            address=connection.host,
            origin=connection.origin,
            dialled=connection.link is not None,
        )
        if hindrance is not None:
            connection.close(hindrance)
            return
        self._origins.opened(connection)
        link = connection.link
        if link is not None:
            if link.is_configured or has_applications(link):  # not if a peer asked for it
                self._origins.dialled(connection, is_configured=link.is_configured)
            if not self._is_expected(link, connection, guid):
                connection.close(NOT_THE_ONE)
                return
        self._met_runs.met(connection)
        if link is not None:
            self._opened(link, connection)
        if self._origins.is_primary(connection):
            self._acknowledgments.met(connection)
        self._primary_changed(guid)
        self.on_change()
        if link is None:
            # A host that has connected is probably reachable again.
            is_primary = self._origins.is_primary(connection)
            for each in self._links_by_address.values():
                is_it = is_primary and each.remote_id == guid
                is_away = each.connection is None and each.attempt is None and each.has_work
                if is_away and (is_it or connection.host in each.resolved):
                    each.kick()

    def _is_expected(self, link: SessionUser, connection: PeerConnection, guid: bytes) -> bool:
        """Return whether the queue manager that answered is the one that a link is for.

        A link to an address takes any that answers there, except one without a proof if a queue
        manager with this GUID has proven a key at this address, or at a configured one.
        """
        primary = self._origins.primary_fact(guid)
        if primary is None or primary.origin == connection.origin:
            return True
        if link.guid is not None:
            return False
        # Another program may have been the first one to state the GUID: its key excludes no other.
        return is_proof(connection.fact) or not (
            is_proof(primary.fact)
            and (primary.bound >= Bound.CONFIGURED or primary.host == connection.host)
        )

    def _facts_changed(
        self, guid: bytes, has_kept_origin: Callable[[PeerConnection], bool]
    ) -> None:
        """End the sessions of which the origin is another one now: each keeps its own to its end.

        A program whose session has begun before would else go on as the queue manager.
        """
        for origin in list(self._origins_of.get(guid, ())):
            for connection in [*self._by_origin.get((guid, origin), ())]:
                if not has_kept_origin(connection):
                    connection.close(ANOTHER_ORIGIN)

    def _primary_changed(self, guid: bytes) -> None:
        """Let the link to a queue manager use a session with its primary origin only."""
        if self._origins.primary(guid) is None:  # it was forgotten
            for known in self._origins_of.get(guid, ()):
                for each in self._by_origin[guid, known]:
                    each.is_recorded = False
        link = self._links_by_guid.get(guid)
        if link is not None:
            self.reconsider(link)
        connection = self.connection_to(guid)
        if connection is not None:
            if self._origins.is_primary(connection):
                self._acknowledgments.met(connection)
            self._next_hops.session_opened(guid)

    def reconsider(self, link: Link) -> None:
        """Let a link to a queue manager use only a session that may carry its messages.

        This is called when the primary origin, or the answer of the directory, has changed.
        """
        used = link.connection
        if used is not None and link.carrier is None and not self._may_carry(link, used):
            if used.link is link:
                used.close(NOT_THE_ONE)
            else:
                # The session stays open: it may serve its own origin.
                used.links.pop(link, None)
                link.closed(used, NOT_THE_ONE, clean=True)
        if link.connection is None:
            self._use_open_session(link)

    def _may_carry(self, link: Link, connection: PeerConnection) -> bool:
        """Return whether a session may carry the messages of a link to a queue manager.

        A session that the other side has begun may not if the directory or the configuration leads
        to the queue manager, until it has answered there: before, its GUID was only stated. One
        with a proven key may if nothing answers there.
        """
        assert link.guid is not None
        primary = self._origins.primary_fact(link.guid)
        if primary is not None and primary.origin != connection.origin:
            return False
        if connection.link is link or (primary is not None and primary.bound >= Bound.CONFIGURED):
            return True
        if primary is not None and is_proof(primary.fact) and link.retry.failures:
            return True
        return not self._next_hops.may_lead_to(link, is_known=primary is not None)

    def _use_open_session(self, link: Link) -> None:
        """Let a link to a queue manager use an open session with its primary origin.

        While none is known, it is the latest session that states the GUID, which becomes the
        primary origin.
        """
        if link.guid is None:
            return
        connection = self.connection_to(link.guid)
        if connection is None or not self._may_carry(link, connection):
            return
        if self._origins.primary(link.guid) is None:
            self._origins.accepted(connection)  # calls this method again
        if link.connection is None:
            self._opened(link, connection)

    def _opened(self, link: SessionUser, connection: PeerConnection) -> None:
        """Let a link use a session; that the peer has accepted it may resolve a conflict."""
        link.opened(connection)
        if link.carrier is None:
            self._identities.accepted_by(connection)

    def closed(self, connection: PeerConnection, reason: str, *, clean: bool) -> None:
        """Remove a session that has ended; its links use another session if there is one."""
        if connection not in self.connections:
            return
        del self.connections[connection]
        self._incoming_streams.forget_connection(connection)
        self.admission.closed(connection)
        assert connection.session is not None
        if connection.proof and connection.link is not None and not connection.handshake_done:
            self._tls.failed(end_of(connection.link), reason)
        needed_port = connection.session.offered_tls_port
        if connection.goes_to_tls or self._goes_to_tls(connection, needed_port, is_needed=True):
            clean = True  # it is dialled again at once
        if connection.session.refused_as_another:
            self._identities.refused_by(connection)
        guid = connection.session.remote_id
        if guid is not None and connection.handshake_done:
            place = (guid, connection.origin)
            remaining = self._by_origin[place]
            remaining.remove(connection)
            if not remaining:
                del self._by_origin[place]
                del self._origins_of[guid][connection.origin]
                if not self._origins_of[guid]:
                    del self._origins_of[guid]
        self._services.log_limited(
            "session_closed", connection.host, address=connection.host, reason=reason
        )
        links = dict.fromkeys(connection.links)
        if connection.link is not None:
            links[connection.link] = None
        for link in links:
            link.closed(connection, reason, clean=clean)
            if isinstance(link, Link) and link.connection is None:
                self._use_open_session(link)

    def acknowledged(self, connection: PeerConnection, tokens: list[object]) -> None:
        """Release messages that a session has acknowledged, except transactional ones."""
        # `OutgoingQueue.transmit` has given these tokens to the session.
        given = cast("list[tuple[OutgoingQueue, int]]", tokens)
        self._acknowledged(given)

    def pump(self, connection: PeerConnection) -> None:
        """Transmit messages of all links that use a session."""
        # The pump may add a link: the acknowledgment of an expired message may go to this peer.
        for link in list(connection.links):
            link.pump()

    def stop(self) -> None:
        """Stop all links and end all sessions."""
        for link in self.links:
            link.stop()
        for connection in list(self.connections):
            connection.close("this queue manager stops")
