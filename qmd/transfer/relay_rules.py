"""Relay rules: which received messages are for other computers, and which of those are relayed.

The queue manager's address in the packet says for which computer a message is.  Direct names have
none, and a packet with one is for this computer whatever host it names (decision 0005): only those
that [routing] relay_to names are relayed.  [MS-MQQB] 3.1.5.8.2
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from protocol import DirectQueueName, MessageKind, UserMessage, classify
from protocol.errors import InvalidName, ProtocolError
from protocol.headers import HOPS_MAX
from protocol.identifiers import NULL_GUID, guid_text
from protocol.message_class import MessageClass
from protocol.names.direct_name import DirectName, parse_wire_name
from protocol.names.format_name import PrivateName, PublicName
from qmd.transfer.decision import Decision, refused

if TYPE_CHECKING:
    from qmd.naming.destinations import Destinations
    from qmd.peers.connection import PeerConnection
    from qmd.peers.next_hop import NextHops
    from qmd.peers.sessions import Peers
    from qmd.queues.outgoing_queue import OutgoingQueue
    from qmd.runtime.services import Services
    from qmd.transfer.local_destinations import LocalDestinations
    from qmd.transfer.speakers import Speakers

NAMES_MAX = 10_000  # direct names as peers spell them, cached with what they stand for
AVOIDED_MAX = 100_000  # pairs of a queue and a queue manager beside this one
AVOIDED_RENEWED_S = 60.0

_HOPS = 0x1F


class RelayRules:
    """Finds messages for other computers, and the reasons for which they are not relayed."""

    def __init__(
        self,
        services: Services,
        destinations: Destinations,
        local_destinations: LocalDestinations,
        next_hops: NextHops,
        peers: Peers,
        speakers: Speakers,
    ) -> None:
        self._services = services
        self._destinations = destinations
        self._local_destinations = local_destinations
        self._next_hops = next_hops
        self._peers = peers
        self._speakers = speakers
        self._for = services.settings.routing.relay_for
        self._to = services.settings.routing.relay_to
        self.enabled = bool(self._for)
        self._names: dict[bytes, DirectName | None] = {}
        self._avoided_until: dict[tuple[OutgoingQueue, bytes], float] = {}

    def destination_of(
        self, connection: PeerConnection, message: UserMessage
    ) -> DirectName | PrivateName | PublicName | None:
        """Return the destination of a message that is for another computer, else None."""
        user = message.user
        address, destination = user.queue_manager_address, user.destination_queue
        if address not in (NULL_GUID, self._services.id):
            if isinstance(destination, int):
                return PrivateName(address, destination)
            if isinstance(destination, bytes):
                return PublicName(destination)
            if isinstance(destination, DirectQueueName):
                with contextlib.suppress(InvalidName):
                    name = parse_wire_name(destination.name)
                    return name if isinstance(name, DirectName) else None
            return None
        if type(destination) is not DirectQueueName or not self._to:
            return None
        try:
            found = self._names[destination.name]
        except KeyError:
            found = self._direct(destination.name)
        if found is None or found.host.casefold() == connection.own_host:
            return None
        if self._local_destinations.find_internal(message) is not None:
            return None  # this queue manager answers such messages itself
        return found

    def refusal(self, connection: PeerConnection, message: UserMessage) -> Decision | None:
        """Return the decision to refuse a message for another computer, None if it is relayed."""
        if not self._is_allowed(connection, message):
            return refused(
                MessageClass.NACK_BAD_DESTINATION_QUEUE,
                detail=f"this queue manager relays no messages from {connection.host}",
                for_others=True,
            )
        if self._only_states_its_guid(connection, message):
            return refused(
                MessageClass.NACK_ACCESS_DENIED,
                detail=f"another machine than {connection.host} is known as queue manager"
                f" {guid_text(message.user.source_queue_manager)}",
                for_others=True,
            )
        is_own = message.user.source_queue_manager == self._services.id
        if is_own or message.user.flags & _HOPS >= HOPS_MAX:
            return refused(
                MessageClass.NACK_HOP_COUNT_EXCEEDED,
                detail="it is a message of this queue manager, and came back"
                if is_own
                else f"{HOPS_MAX} queue managers have relayed it",
                for_others=True,
            )
        return None

    def passes_on_for(self, connection: PeerConnection) -> bool:
        """Return whether [routing] relay_for names the address of a connection."""
        return self._peers.hosts.is_listed(connection.host, self._for)

    def leads_on(self, queue: OutgoingQueue, remote: bytes, now: float) -> bool:
        """Return whether an outgoing queue has a way that does not lead back to `remote`."""
        if queue.link.guid == remote:
            return True
        until = self._avoided_until.get((queue, remote), 0.0)
        if until > now:
            return True
        if not queue.link.avoid(remote):
            # Without any way the destination may still connect; one that leads back is a loop.
            return not queue.link.has_carrier
        if len(self._avoided_until) >= AVOIDED_MAX:
            self._avoided_until.clear()
        self._avoided_until[queue, remote] = now + AVOIDED_RENEWED_S
        return True

    def forget_avoided(self) -> None:
        """Forget which ways lead back: the routes have changed."""
        self._avoided_until.clear()

    def _direct(self, wire_name: bytes) -> DirectName | None:
        """Return a direct name of a packet if [routing] relay_to covers it."""
        found = None
        try:
            name = parse_wire_name(wire_name)
        except ProtocolError:
            name = None
        if (
            isinstance(name, DirectName)
            and name.transport in ("TCP", "OS")
            and not self._destinations.is_local(name)
            and name.host.casefold()
            not in map(str.casefold, self._services.settings.queue_manager.aliases)
            and any(pattern.has_host(name.host) for pattern in self._to)
        ):
            found = name
        if len(self._names) >= NAMES_MAX:
            self._names.clear()
        self._names[wire_name] = found
        return found

    def _only_states_its_guid(self, connection: PeerConnection, message: UserMessage) -> bool:
        """Return whether the next queue manager would take the message for one of another machine.

        It believes this relay.
        """
        session = connection.session
        if session is None or session.remote_id != message.user.source_queue_manager:
            return False
        if self.passes_on_for(connection):
            return self._speakers.is_disproven(connection)
        return self._speakers.is_contradicted(connection)

    def _is_allowed(self, connection: PeerConnection, message: UserMessage) -> bool:
        """Return whether [routing] allows to relay a message.

        Acknowledgments of messages that were relayed before always find their way back.
        """
        if self.passes_on_for(connection):
            return True
        return is_acknowledgment(message) and self._next_hops.has_way_back(
            message.user.queue_manager_address
        )


def is_acknowledgment(message: UserMessage) -> bool:
    """Return whether a message is an order ack or a final ack, of any queue manager."""
    return classify(message, message.user.queue_manager_address) is not MessageKind.ORDINARY
