"""A session with another queue manager, as its messages see it: a connection of qmd/peers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from qmd.core.session import Session
    from qmd.queues.incoming_sequences import IncomingStream


class PeerSession(Protocol):
    """A connection with another queue manager."""

    host: str
    port: int
    peer: str  # the GUID of the queue manager, or its address while that is not known
    is_qmd: bool
    own_host: str  # the address of this computer, as the other side uses it
    packet_bytes_max: int
    session: Session | None
    streams: dict[IncomingStream, None]
    owed_order_acks: dict[IncomingStream, None]

    def count_useless(self, weight: int = 1) -> None:
        """Count a message that was of no use: its sender gets less of the time."""

    def close(self, reason: str) -> None:
        """End the session."""

    def owe_express(self, packet: bytes) -> None:
        """Send it with what is owed next; it may get lost."""

    def mark_stored(self, numbers: list[int]) -> None:
        """Acknowledge recoverable messages of the session: they are durable."""

    def owe_final_ack(self, packet: bytes) -> None:
        """Send it with what is owed next."""

    def flush_soon(self) -> None:
        """Write what is owed, in the next turn of the loop."""
