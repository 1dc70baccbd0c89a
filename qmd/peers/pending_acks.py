"""Pending acknowledgments: order acks and final acks that wait for the window of a session.

An order ack is delayed, and contains only the newest position of its stream. A final ack is sent
for each message that was refused, received or has expired.  [MS-MQQB] 3.1.1.6.2, 3.1.6.9
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from protocol import ORDER_QUEUE_NUMBER, PrivateQueueName, order_queue_name
from qmd.core.acknowledgment import order_ack_packet

if TYPE_CHECKING:
    from collections.abc import Callable

    from qmd.peers.connection import PeerConnection
    from qmd.queues.incoming_stream import IncomingStream
    from qmd.runtime.services import Services


class PendingAcks:
    """Sends the acknowledgments that are owed to peers."""

    def __init__(
        self, services: Services, session_towards: Callable[[bytes, str], PeerConnection | None]
    ) -> None:
        self._services = services
        self._session_towards = session_towards

    def owe_order_ack(self, stream: IncomingStream) -> None:
        """Send the position of a stream over its return path, as soon as the window permits.

        Without one it goes to the origin of the stream only: it discloses the sequence id.
        """
        connection = stream.return_path or self._session_towards(stream.source, stream.origin)
        if connection is None:
            return  # the sender will send again, and gets the order ack then
        connection.owed_order_acks[stream] = None
        connection.flush_soon()

    def send(self, connection: PeerConnection) -> None:
        """Send what a connection owes, as far as its window permits.

        Of each stream only the newest position is sent.
        """
        session, now = connection.session, self._services.loop.time()
        assert session is not None
        owed = connection.owed_order_acks
        if connection.offers.lack is not None and (owed or connection.owed_final_acks):
            # The peer may end the session for want of room: its messages are acknowledged first.
            session.incoming.acknowledge_with_next(now)
        while owed and connection.room > 0:
            stream = next(iter(owed))
            del owed[stream]
            packet = order_ack_packet(
                stream.sequence.durable,
                destination=order_queue_name(connection.host)
                if stream.by_direct_name and stream.source == session.remote_id
                # Relays route it by the GUID of the source.
                else PrivateQueueName(stream.source, ORDER_QUEUE_NUMBER),
                own_id=self._services.id,
                message_number=self._services.ids.next_message_number(),
                sent_time=int(self._services.environment.time()),
            )
            session.send(packet, recoverable=True, token=None, now=now)
        final_acks = connection.owed_final_acks
        while final_acks and connection.room > 0:
            session.send(final_acks.popleft(), recoverable=True, token=None, now=now)
        express = connection.owed_express
        while express and connection.room > 0:
            session.send(express.popleft(), recoverable=False, token=None, now=now)

    def arm_order_ack(self, stream: IncomingStream) -> None:
        """Set the timer of a stream's next order ack."""
        wake_at = stream.sequence.next_timer()
        if wake_at is not None:
            self._services.timers.at(wake_at, stream, self._due)

    def _due(self, stream: IncomingStream) -> None:
        if stream.sequence.handle_timer(self._services.loop.time()):
            self.owe_order_ack(stream)
        self.arm_order_ack(stream)
