"""Received acknowledgments: order acks and final acks of messages that were sent from here.

[MS-MQQB] 3.1.5.6, 3.1.5.7
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from protocol import FinalAckBody, MessageKind, UserMessage, final_ack_body, order_ack_body
from protocol.errors import ProtocolError
from qmd.outcomes.promises import Promise

if TYPE_CHECKING:
    from qmd.outcomes.promises import Promises
    from qmd.peers.connection import PeerConnection
    from qmd.runtime.services import Services
    from qmd.transfer.confirmation import Confirmations
    from qmd.transfer.release import OutgoingRelease


class ReceivedAcks:
    """Applies acknowledgments of peers to the outgoing queues that they are about."""

    def __init__(
        self,
        services: Services,
        confirmations: Confirmations,
        outgoing_release: OutgoingRelease,
        promises: Promises,
    ) -> None:
        self._services = services
        self._confirmations = confirmations
        self._outgoing_release = outgoing_release
        self._promises = promises

    def apply(
        self,
        connection: PeerConnection,
        received: list[tuple[MessageKind, UserMessage, int]],
        now: float,
    ) -> None:
        """Apply the final acks of a turn; the order acks were applied as they came.

        Their numbers in the session (0: it needs none) are acknowledged when the consequences are
        on disk.
        """
        numbers: list[int] = []
        final_numbers: list[int] = []
        understood: list[tuple[UserMessage, FinalAckBody]] = []
        has_final_acks = False
        for kind, message, number in received:
            if kind is not MessageKind.FINAL_ACK:
                if number:
                    numbers.append(number)
                continue
            has_final_acks = True
            if number:
                final_numbers.append(number)
            try:
                understood.append((message, final_ack_body(message)))
            except ProtocolError as error:
                self._not_understood(connection, error)
        if has_final_acks:
            self._confirmations.final_acknowledged(connection, understood, final_numbers, now)
        if numbers:
            promise = Promise(connection, numbers)
            self._outgoing_release.when_released(partial(self._promises.keep, promise))

    def order_ack(self, connection: PeerConnection, message: UserMessage, now: float) -> None:
        """Release the messages up to the position of an order ack."""
        try:
            body = order_ack_body(message)
        except ProtocolError as error:
            self._not_understood(connection, error)
        else:
            self._outgoing_release.order_acknowledged(connection, message, body, now)

    def _not_understood(self, connection: PeerConnection, error: ProtocolError) -> None:
        connection.count_useless()
        self._services.log_limited(
            "acknowledgment_not_understood", connection.host, reason=str(error)
        )
