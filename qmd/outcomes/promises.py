"""Promises: the acknowledgments and deliveries that a commit allows.

`Promises.keep` is the only way from durable to acknowledged. Session acks, order acks, the final
acks of refused messages and the delivery to readers go through it, after the commit that contains
the messages.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from qmd.message.shared_packet import Held
    from qmd.queues.incoming_stream import IncomingStream
    from qmd.queues.local_queue import LocalQueue
    from qmd.queues.peer_session import PeerSession
    from qmd.runtime.services import Services

_NO_POSITIONS: dict[IncomingStream, tuple[int, int]] = {}
_NO_ARRIVALS: dict[LocalQueue, Sequence[Held]] = {}


@dataclass(slots=True)
class Promise:
    """The acknowledgments and deliveries that one commit allows, for messages of one session."""

    connection: PeerSession
    #: Numbers in the session of recoverable messages.
    stored: list[int] = field(default_factory=list)
    #: The last accepted position of each sequence: (sequence id, number).
    accepted: Mapping[IncomingStream, tuple[int, int]] = field(
        default_factory=lambda: _NO_POSITIONS
    )
    #: Messages for readers.
    arrivals: Mapping[LocalQueue, Sequence[Held]] = field(default_factory=lambda: _NO_ARRIVALS)
    #: Packets for the sources of refused messages.
    final_acks: Sequence[bytes] = ()


class Promises:
    """Acknowledges and delivers messages after their commit."""

    def __init__(self, services: Services) -> None:
        self._services = services

    def connect(
        self,
        owe_order_ack: Callable[[IncomingStream], None],
        arm_order_ack: Callable[[IncomingStream], None],
    ) -> None:
        """Set the functions that send the order ack of a sequence: at once, or by its timer."""
        self._owe_order_ack = owe_order_ack
        self._arm_order_ack = arm_order_ack

    def repeat_order_ack(self, stream: IncomingStream) -> None:
        """Send the order ack of a sequence again: its source has sent a message again.

        It states the position that is durable, so it waits for no commit.
        """
        self._arm_order_ack(stream)

    def keep(self, promise: Promise) -> None:
        """Acknowledge and deliver the messages of a promise. Call it only after their commit."""
        connection = promise.connection
        # First: an application waits for them, and nothing waits for the acknowledgments.
        for queue, messages in promise.arrivals.items():
            queue.deliver(messages)
        if promise.stored:
            connection.mark_stored(promise.stored)
        if promise.accepted:
            now = self._services.loop.time()
            for stream, (sequence_id, number) in promise.accepted.items():
                if stream.sequence.mark_durable(sequence_id, number, now):
                    self._owe_order_ack(stream)
                else:
                    self._arm_order_ack(stream)
        for final_ack in promise.final_acks:
            connection.owe_final_ack(final_ack)
