"""Post: the interface through which acknowledgments and reports are sent."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from protocol.names.format_name import FormatName
    from qmd.message.shared_packet import SharedEnd
    from qmd.queues.answer_limits import AskedFor
    from qmd.queues.local_queue import LocalQueue
    from qmd.queues.outgoing_queue import OutgoingQueue
    from storage.engine.batch import Batch


class Post(Protocol):
    """The sender of this queue manager's own messages: `MessageSender` of qmd/operations."""

    def send_packet(
        self,
        name: FormatName,
        packet: bytes,
        batch: Batch,
        *,
        via: bytes | None = None,
        asked: AskedFor | None = None,
        shared: SharedEnd | None = None,
    ) -> str:
        """Send a packet with the open batch; return "", or why it was dropped."""

    def record_sent(self, route: LocalQueue | OutgoingQueue, packet: bytes, place: int) -> None:
        """Record in the event log that a packet was sent, with its lookup id or key."""

    def record_all_sent(
        self, route: LocalQueue | OutgoingQueue, packets: Sequence[bytes], places: Sequence[int]
    ) -> None:
        """Record that packets, one at least and all of one delivery, were sent to one queue."""

    def route_of(
        self, name: FormatName, *, via: bytes | None = None, asked: AskedFor | None = None
    ) -> LocalQueue | OutgoingQueue | str:
        """Return the queue that takes a packet, or why none does."""
