"""All sessions and links: who may connect, which session leads to whom."""

from __future__ import annotations

import ipaddress
import weakref
from collections import Counter
from collections.abc import Callable, Collection
from functools import partial
from typing import TYPE_CHECKING, Protocol, cast

from protocol.headers import PACKET_BYTES_MAX
from protocol.identifiers import guid_text
from qmd.core.session import Session, SessionSettings
from qmd.core.session_events import NEVER
from qmd.peers.link import Link

if TYPE_CHECKING:
    from qmd.outcomes.acknowledgments import Acknowledgments
    from qmd.peers.connection import PeerConnection, SessionUser
    from qmd.peers.identity_conflicts import IdentityConflicts
    from qmd.queues.incoming_sequences import IncomingStreams
    from qmd.queues.outgoing_queue import OutgoingQueue
    from qmd.queues.way import Way
    from qmd.runtime.services import Services


# The specification lets the receipt of an express message go unacknowledged for 10 s, and so long
# its sender would show it as under way.
RECEIPT_ACK_MAX_S = 0.1

LARGE_HEADERS_BYTES_MAX = 64 * 1024  # beside a body of more than 4 MiB, with its extension


class LinkObserver(Protocol):
    """Next hops of links, which depend on sessions and addresses: `NextHops`."""

    def link_changed(self, link: Link) -> None: ...
    def session_opened(self, guid: bytes) -> None: ...


class Peers:
    """The queue managers that we talk with."""

    def __init__(
        self,
        services: Services,
        acknowledgments: Acknowledgments,
        identities: IdentityConflicts,
        incoming_streams: IncomingStreams,
    ) -> None:
        self._services = services
        self._acknowledgments = acknowledgments
        self._identities = identities
        self._incoming_streams = incoming_streams
        self._links_by_address: dict[tuple[str, int], Link] = {}
        self._links_by_guid: dict[bytes, Link] = {}
        self._by_guid: dict[bytes, list[PeerConnection]] = {}
        self._per_host: Counter[str] = Counter()
        # Those that others have opened and not finished, the oldest first.
        self._handshakes: dict[PeerConnection, None] = {}
        self.connections: dict[PeerConnection, None] = {}
        #: Called when a session has opened.
        self.on_change: Callable[[], None] = lambda: None
        delivery = services.settings.delivery
        self._session_settings = SessionSettings(
            window_size=delivery.window_size,
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
        return [*self._links_by_address.values(), *self._links_by_guid.values()]

    def link_to_address(self, host: str, port: int) -> Link:
        address = (host.casefold(), port)
        link = self._links_by_address.get(address)
        if link is None:
            link = self._links_by_address[address] = self._make_link(address=address, guid=None)
        return link

    def link_to_queue_manager(self, guid: bytes, address: tuple[str, int] | None = None) -> Link:
        """The link over whatever session with that queue manager there is, or will be.

        Without one, `address` is dialled.
        """
        link = self._links_by_guid.get(guid)
        if link is None:
            link = self._links_by_guid[guid] = self._make_link(address=address, guid=guid)
            connection = self.connection_to(guid)
            if connection is not None:
                self._opened(link, connection)
        elif link.address is None and address is not None:
            link.address = address
            self._next_hops.link_changed(link)
        return link

    def forget_link(self, link: Way) -> None:
        """Nothing goes there any more; unless somebody holds it, as a session or a route does."""
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

    def find_link(self, guid: bytes) -> Link | None:
        """That of a queue manager, if something was ever sent to it by its GUID."""
        return self._links_by_guid.get(guid)

    def connection_to(self, guid: bytes) -> PeerConnection | None:
        """A live session with that queue manager, if there is one."""
        connections = self._by_guid.get(guid)
        return connections[-1] if connections else None

    # What a connection tells.

    def admit(self, connection: PeerConnection) -> Session | None:
        """The session for a new connection; None when it must not have one."""
        limits = self._services.settings.peers
        host, dialled = connection.host, connection.link is not None
        refuse = False
        if not dialled:
            if not self.may_connect(host):
                return None
            if len(self._handshakes) >= limits.handshakes_max:
                # A handshake takes milliseconds: who has waited longest will hardly finish it, and
                # must not keep others out.
                oldest = next(iter(self._handshakes))
                self._services.log_limited("too_many_handshakes", oldest.host, address=oldest.host)
                oldest.close("too many connections have not finished their handshake")
            self._handshakes[connection] = None
            refuse = not self.has_room_for(host)
            if refuse:
                self._services.log_limited(
                    "session_refused", host, address=host, reason="limit reached"
                )
        self.connections[connection] = None
        self._per_host[host] += 1
        if connection.link is not None:
            connection.link.attempt = connection
        return Session(
            initiator=dialled,
            own_id=self._services.id,
            expected_remote=None if connection.link is None else connection.link.guid,
            settings=self._session_settings,
            now=self._services.loop.time(),
            refuse=refuse,
            instance=self._identities.own,
            judge=partial(self._identities.judge, connection),
        )

    def may_connect(self, host: str) -> bool:
        """Whether anything is to be made for a connection from there."""
        if not self.is_allowed(host):
            self._services.log_limited("peer_not_allowed", host, address=host)
            return False
        if self._per_host[host] >= 2 * self._services.settings.peers.sessions_per_peer_max:
            self._services.log_limited("too_many_connections", host, address=host)
            return False
        return True

    def close_sessions(self, guid: bytes, reason: str, *, but: PeerConnection) -> None:
        """End the sessions with that queue manager."""
        for connection in list(self._by_guid.get(guid, ())):
            if connection is not but:
                connection.close(reason)

    def opened(self, connection: PeerConnection) -> None:
        assert connection.session is not None
        guid = connection.session.remote_id
        assert guid is not None
        self._handshakes.pop(connection, None)
        connection.handshake_done = True
        self._acknowledgments.met(guid, connection.host)
        self._by_guid.setdefault(guid, []).append(connection)
        self._services.log_limited(
            "session_opened",
            connection.host,
            peer=guid_text(guid),
            address=connection.host,
            dialled=connection.link is not None,
        )
        if connection.link is not None:
            self._opened(connection.link, connection)
        waiting = self._links_by_guid.get(guid)
        if waiting is not None and waiting.connection is None:
            self._opened(waiting, connection)
        self._next_hops.session_opened(guid)
        self.on_change()
        if connection.link is None:
            # Who can reach us is probably reachable again as well.
            for link in self._links_by_address.values():
                if link.remote_id == guid and link.connection is None and link.has_work:
                    link.kick()

    def _opened(self, link: SessionUser, connection: PeerConnection) -> None:
        """Let a link use a session with its own peer."""
        link.opened(connection)
        if link.carrier is None:
            self._identities.accepted_by(connection)

    def closed(self, connection: PeerConnection, reason: str, *, clean: bool) -> None:
        if connection not in self.connections:
            return
        del self.connections[connection]
        self._incoming_streams.forget_connection(connection)
        self._per_host[connection.host] -= 1
        if not self._per_host[connection.host]:
            del self._per_host[connection.host]
        self._handshakes.pop(connection, None)
        assert connection.session is not None
        if connection.session.refused_as_another:
            self._identities.refused_by(connection)
        guid = connection.session.remote_id
        if guid is not None and connection.handshake_done:
            remaining = self._by_guid[guid]
            remaining.remove(connection)
            if not remaining:
                del self._by_guid[guid]
        self._services.log_limited(
            "session_closed", connection.host, address=connection.host, reason=reason
        )
        links = dict.fromkeys(connection.links)
        if connection.link is not None:
            links[connection.link] = None
        for link in links:
            link.closed(connection, reason, clean=clean)
            if link.guid is not None and (other := self.connection_to(link.guid)) is not None:
                self._opened(link, other)

    def acknowledged(self, connection: PeerConnection, tokens: list[object]) -> None:
        """The peer has these messages: what is not transactional is finished."""
        # What `OutgoingQueue.transmit` gave the session.
        given = cast("list[tuple[OutgoingQueue, int]]", tokens)
        self._acknowledged(given)

    def has_room_for(self, host: str) -> bool:
        """Whether another session with that address is within the limits."""
        limits = self._services.settings.peers
        return (
            len(self.connections) < limits.sessions_max
            and self._per_host[host] < limits.sessions_per_peer_max
        )

    def pump(self, connection: PeerConnection) -> None:
        # A link may join meanwhile: an acknowledgment of what expires here may lead to this peer.
        for link in list(connection.links):
            link.pump()

    def packet_bytes_max(self, *hosts: str) -> int:
        """How long a packet may be that a host sends or gets, known by any of these names and
        addresses of it: longer than the specification has it only where the configuration says
        that both ends have agreed."""
        if any(map(self._takes_large, hosts)):
            return self.own_packet_bytes_max
        return PACKET_BYTES_MAX

    @property
    def own_packet_bytes_max(self) -> int:
        """The longest packet that we keep ourselves."""
        body_bytes_max = self._services.settings.quotas.message_bytes_max
        if body_bytes_max <= PACKET_BYTES_MAX:
            return PACKET_BYTES_MAX
        return body_bytes_max + LARGE_HEADERS_BYTES_MAX

    def _takes_large(self, host: str) -> bool:
        return self.is_listed(host, self._services.settings.peers.large_messages)

    def is_listed(
        self, host: str, listed: Collection[ipaddress.IPv4Network | ipaddress.IPv6Network | str]
    ) -> bool:
        """Whether a name or an address is one of these."""
        address = _address(host)
        if address is None:
            names = (each.casefold() for each in listed if isinstance(each, str))
            return host.casefold() in names
        return any(address in each for each in listed if not isinstance(each, str))

    def stop(self) -> None:
        for link in self.links:
            link.stop()
        for connection in list(self.connections):
            connection.close("this queue manager stops")

    def is_allowed(self, host: str) -> bool:
        address = _address(host)
        return address is not None and any(
            address in network for network in self._services.settings.peers.allow
        )


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """The address that a text is, if it is one; IPv4 in IPv6 clothes is IPv4."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return None
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped
    return address
