"""Peer session: the interface of a connection with another queue manager (qmd/peers)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from qmd.core.principals import Principal
    from qmd.core.session import Session
    from qmd.queues.incoming_stream import IncomingStream
    from qmd.queues.parts_ahead import PartAhead


class StoredAhead(Protocol):
    """The stored end of the large packet that is decided about."""

    part: PartAhead | None


class PeerSession(Protocol):
    """A connection with another queue manager, as the components of its messages use it."""

    host: str
    #: What is known about the other end: its address, or more if that is proven (decision 0031).
    origin: str
    has_proof: bool  # it has proven a key or a certificate itself
    #: Those that a door has proven which has opened the session for the host: announced.py.
    principals: frozenset[Principal]
    port: int
    peer: str  # the GUID of the queue manager; its address while that is not known
    is_qmd: bool
    own_host: str  # the address of this computer that the peer uses
    packet_bytes_max: int
    session: Session | None
    streams: dict[IncomingStream, None]
    owed_order_acks: dict[IncomingStream, None]

    @property
    def ahead(self) -> StoredAhead: ...
    def origin_for(self, source: bytes) -> str:
        """Return the origin for which a message of a source counts that this session brings.

        It is that of the session for messages of its own queue manager. A relay speaks for the
        primary origin of the source; "" if none is known.
        """

    def note_accepted(self) -> None:
        """Record that a message of the session was accepted: the open batch contains it."""

    def count_useless(self, weight: int = 1) -> None:
        """Count a useless message: its sender gets a smaller share of the time."""

    def close(self, reason: str) -> None:
        """End the session."""

    def owe_express(self, packet: bytes) -> None:
        """Send a packet with the next acknowledgments; it may get lost."""

    def mark_stored(self, numbers: list[int]) -> None:
        """Acknowledge recoverable messages of the session, after their commit."""

    def owe_final_ack(self, packet: bytes) -> None:
        """Send a final ack with the next acknowledgments."""

    def flush_soon(self) -> None:
        """Write all pending packets in the next turn of the loop."""
