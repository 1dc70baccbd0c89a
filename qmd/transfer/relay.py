"""The relay: takes messages for other computers, and passes them on.  [MS-MQQB] 3.1.5.8.2

    peer ──session──► not for us? ──► row in "NAME for others" ──(commit)──► session ack
                                             └──► next session ──session ack──► (commit) gone

A relay takes part in session acknowledgments only.  Sequences, order acks and final acks are
between source and destination; the relay changes only the hop count of a message.  The source keeps
a transactional message until the destination has it: a relay that refuses one sends the source a
final ack and keeps nothing.  Of a plain message the relay has the only copy, and keeps it as a dead
letter.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from protocol import UserMessage, patch_hops
from protocol.identifiers import guid_text
from protocol.message_class import MessageClass
from protocol.names.direct_name import DirectName
from protocol.names.format_name import PrivateName, PublicName
from qmd.core.packet_fields import reach_time_s, time_left_s
from qmd.core.peer_instance import Lack
from qmd.errors import Refusal
from qmd.transfer.decision import RELAYED, Decision, no_room, refused
from qmd.transfer.relay_rules import is_acknowledgment

if TYPE_CHECKING:
    from qmd.outcomes.reports import Reports
    from qmd.peers.connection import PeerConnection
    from qmd.peers.next_hop import NextHops
    from qmd.peers.shortage import Shortage
    from qmd.queues.outgoing_queue import OutgoingQueue
    from qmd.queues.outgoing_queues import OutgoingQueues
    from qmd.runtime.services import Services
    from qmd.transfer.relay_rules import RelayRules
    from qmd.transfer.relay_store import RelayStore
    from qmd.transfer.relayed_acks import RelayedAcks

log = structlog.get_logger()

_HOPS = 0x1F
_TRACING_BIT = 0x01  # TR of BaseHeader.Flags, in its second byte


class Relay:
    """Takes messages for other computers."""

    def __init__(
        self,
        services: Services,
        next_hops: NextHops,
        outgoing: OutgoingQueues,
        relayed_acks: RelayedAcks,
        reports: Reports,
        rules: RelayRules,
        store: RelayStore,
        shortage: Shortage,
    ) -> None:
        self._services = services
        self._next_hops = next_hops
        self._outgoing = outgoing
        self._relayed_acks = relayed_acks
        self._reports = reports
        self._rules = rules
        self._store = store
        self._shortage = shortage
        self.enabled = rules.enabled

    def take(
        self,
        connection: PeerConnection,
        message: UserMessage,
        packet: bytes,
        wall_ms: int,
        now: float,
    ) -> Decision | None:
        """Put a message for another computer into an outgoing queue, with the open batch.

        Returns None for a message that is for this computer.
        """
        name = self._rules.destination_of(connection, message)
        if name is None:
            return None
        refusal = self._rules.refusal(connection, message)
        if refusal is not None:
            return refusal
        left_s = time_left_s(packet, reach_time_s(packet), wall_ms // 1000)
        if left_s is not None and left_s < 0:
            return refused(MessageClass.NACK_REACH_QUEUE_TIMEOUT, for_others=True)
        if not self._has_room(message, len(packet)):
            self._shortage.note(Lack.RELAY, now)
            return no_room("no room for messages to others")
        queue = self._queue_for(connection, message, name, now)
        if isinstance(queue, Decision):
            return queue
        user, transaction = message.user, message.transaction
        connection.note_accepted()
        if connection.session is not None and connection.session.remote_id is not None:
            self._next_hops.learn_way_back(user.source_queue_manager, connection)
        if transaction is not None:
            self._relayed_acks.remember(transaction.sequence_id, user.source_queue_manager)
            if not self._store.hold(queue, message, connection):
                return RELAYED
        copy = bytearray(packet)
        patch_hops(copy, (user.flags & _HOPS) + 1)
        self._store.put(queue, bytes(copy), message, connection, left_s)
        if packet[3] & _TRACING_BIT:
            self._reports.arrived(message, packet, self._services.storage.batch, connection)
        return RELAYED

    def _has_room(self, message: UserMessage, size: int) -> bool:
        """Return whether [routing] relay_bytes_max leaves room for a message; log if not.

        Acknowledgments may use as much again.  A destination may send the final ack of a message
        before the session ack of it.  If the final ack found no room, the session would end before
        the session ack, the message would stay here, and each next session would end the same way.
        """
        used = self._store.usage.bytes
        if used + size <= self._services.settings.routing.relay_bytes_max:
            return True
        if used + size <= 2 * self._services.settings.routing.relay_bytes_max and is_acknowledgment(
            message
        ):
            return True
        self._services.log_limited(
            "no_room_for_others",
            "relay",
            bytes=used,
            remedy="See relay_bytes_max in the section [routing] of the configuration.",
        )
        return False

    def _queue_for(
        self,
        connection: PeerConnection,
        message: UserMessage,
        name: DirectName | PrivateName | PublicName,
        now: float,
    ) -> OutgoingQueue | Decision:
        """Return the outgoing queue for a destination, or the reason why there is none."""
        via = message.user.queue_manager_address if isinstance(name, PublicName) else None
        try:
            queue = self._outgoing.queue_for(
                name, for_acknowledgments=True, via=via, for_others=True
            )
        except Refusal as refusal:
            return refused(
                MessageClass.NACK_BAD_DESTINATION_QUEUE, detail=refusal.text, for_others=True
            )
        remote = connection.session.remote_id if connection.session is not None else None
        if remote is not None and not self._rules.leads_on(queue, remote, now):
            return refused(
                MessageClass.NACK_HOP_COUNT_EXCEEDED,
                detail=f"the only route from here leads back to {guid_text(remote)} at"
                f" {connection.host}, where it came from",
                for_others=True,
            )
        return queue
