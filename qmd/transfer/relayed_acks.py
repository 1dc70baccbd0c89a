"""Relayed acknowledgments: order acks and final acks that reach a relay instead of the source.

A queue manager that does not know of relays answers to the address that a message with a direct
name came from, and that is the relay's.  (Another qmd names the source; but a final ack that it has
made for an address may take the way over this computer.)
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

from protocol import (
    ORDER_QUEUE_NUMBER,
    FinalAckBody,
    OrderAckBody,
    PrivateQueueName,
    UserMessage,
    build_final_ack,
    build_order_ack,
)
from protocol.identifiers import guid_text
from protocol.names.format_name import PrivateName

if TYPE_CHECKING:
    from qmd.peers.connection import PeerConnection
    from qmd.queues.message_id_history import KnownMessages
    from qmd.queues.outgoing_queue import OutgoingQueue
    from qmd.queues.outgoing_queues import OutgoingQueues
    from qmd.runtime.services import Services
    from qmd.transfer.relay_rules import RelayRules
    from qmd.transfer.relay_store import RelayStore
    from qmd.transfer.speakers import Speakers

STREAMS_MAX = 100_000  # relayed sequences that are remembered with their sources


class RelayedAcks:
    """Passes acknowledgments on to the sources of relayed sequences."""

    def __init__(
        self,
        services: Services,
        known_messages: KnownMessages,
        outgoing: OutgoingQueues,
        rules: RelayRules,
        speakers: Speakers,
        store: RelayStore,
    ) -> None:
        self._services = services
        self._known_messages = known_messages
        self._outgoing = outgoing
        self._rules = rules
        self._speakers = speakers
        self._store = store
        self._sources: OrderedDict[int, dict[bytes, None]] = OrderedDict()  # by sequence id

    def remember(self, sequence_id: int, source: bytes) -> None:
        """Remember the source of a sequence of which a message was relayed."""
        sources = self._sources.get(sequence_id)
        if sources is None:
            if len(self._sources) >= STREAMS_MAX:
                self._sources.popitem(last=False)
            sources = self._sources[sequence_id] = {}
        sources[source] = None

    def pass_back(
        self,
        connection: PeerConnection,
        message: UserMessage,
        body: OrderAckBody | FinalAckBody,
        own: OutgoingQueue | None = None,
    ) -> bool:
        """Pass on an order ack or final ack of a relayed sequence; return False for others.

        A final ack names its source.  An order ack names its sequence only: where two sources have
        a sequence of the same number (perhaps one of them is this computer, with the queue `own`),
        it is dropped, because a wrong one would release messages that have not arrived.
        """
        if not self._rules.enabled or (connection.is_qmd and isinstance(body, OrderAckBody)):
            return False
        if not self._speakers.speaks_for(
            connection, message.user.source_queue_manager
        ) or self._speakers.is_contradicted(connection):
            return False  # it only states the GUID of the queue manager that acknowledges
        sources = self._sources.get(body.sequence_id, {})
        if isinstance(body, FinalAckBody):
            # qmd addresses a final ack when it makes it; by the time it is sent, the way to the
            # source may lead over this computer.
            is_meant = connection.is_qmd and self._rules.passes_on_for(connection)
            if body.source_queue_manager not in sources and not is_meant:
                return False
            source = body.source_queue_manager
        elif not sources:
            return False
        elif len(sources) == 1 and (own is None or own.sequence.sequence_id != body.sequence_id):
            source = next(iter(sources))
        else:
            self._services.log_limited(
                "order_ack_of_two_sources",
                connection.host,
                address=connection.host,
                sources=[guid_text(each) for each in sources],
            )
            return True
        user = message.user
        if self._known_messages.has(
            user.source_queue_manager,
            user.message_number,
            connection.origin_for(user.source_queue_manager),
        ):
            return True
        queue = self._outgoing.queue_for(
            PrivateName(source, ORDER_QUEUE_NUMBER), for_acknowledgments=True, for_others=True
        )
        left_s = int(self._services.settings.delivery.time_to_reach_queue_s)
        self._store.put(queue, _addressed(message, body, source), message, connection, left_s)
        return True


def _addressed(message: UserMessage, body: OrderAckBody | FinalAckBody, source: bytes) -> bytes:
    """Return the packet of an acknowledgment for the queue manager `source`."""
    user = message.user
    destination = PrivateQueueName(source, ORDER_QUEUE_NUMBER)
    if isinstance(body, FinalAckBody):
        return build_final_ack(
            source_queue_manager=user.source_queue_manager,
            destination=destination,
            message_number=user.message_number,
            sent_time=user.sent_time,
            message_class=message.properties.message_class,
            body=body,
        )
    return build_order_ack(
        source_queue_manager=user.source_queue_manager,
        destination=destination,
        message_number=user.message_number,
        sent_time=user.sent_time,
        body=body,
    )
