"""Acknowledgments of messages that are owed to peers, until a session's window lets them through.

How far a stream has come is said with a delay and by its newest position only; what was refused,
received or expired is said one by one.  [MS-MQQB] 3.1.1.6.2, 3.1.6.9
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from protocol import ORDER_QUEUE_NUMBER, PrivateQueueName, order_queue_name
from qmd.core.acknowledgment import order_ack_packet

if TYPE_CHECKING:
    from collections.abc import Callable

    from qmd.peers.connection import PeerConnection
    from qmd.queues.incoming_sequences import IncomingStream
    from qmd.runtime.services import Services


class OwedAcks:
    """Sends them."""

    def __init__(
        self, services: Services, session_towards: Callable[[bytes], PeerConnection | None]
    ) -> None:
        self._services = services
        self._session_towards = session_towards

    def owe_order_ack(self, stream: IncomingStream) -> None:
        connection = stream.return_path or self._session_towards(stream.source)
        if connection is None:
            return  # the sender sends again, and is answered then
        connection.owed_order_acks[stream] = None
        connection.flush_soon()

    def send(self, connection: PeerConnection) -> None:
        """As many as the window lets through; only the newest position of a stream counts."""
        session, now = connection.session, self._services.loop.time()
        assert session is not None
        owed = connection.owed_order_acks
        while owed and connection.room > 0:
            stream = next(iter(owed))
            del owed[stream]
            packet = order_ack_packet(
                stream.sequence.durable,
                destination=order_queue_name(connection.host)
                if stream.by_direct_name and stream.source == session.remote_id
                # Over others it finds back by the GUID of the source.
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
        wake_at = stream.sequence.next_timer()
        if wake_at is not None:
            self._services.timers.at(wake_at, stream, self._due)

    def _due(self, stream: IncomingStream) -> None:
        if stream.sequence.handle_timer(self._services.loop.time()):
            self.owe_order_ack(stream)
        self.arm_order_ack(stream)
