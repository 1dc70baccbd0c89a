"""Post: how acknowledgments and reports of this queue manager are sent."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from protocol.names.format_name import FormatName
    from qmd.queues.local_queue import LocalQueue
    from qmd.queues.outgoing_queue import OutgoingQueue
    from storage.engine.batch import Batch


class Post(Protocol):
    """`PacketSender` of qmd/operations."""

    def send_packet(
        self, name: FormatName, packet: bytes, batch: Batch, *, via: bytes | None = None
    ) -> str:
        """Send it; why it cannot be sent and is dropped, "" when it is on its way."""

    def record_sent(self, route: LocalQueue | OutgoingQueue, packet: bytes, place: int) -> None:
        """Record that it was sent."""
