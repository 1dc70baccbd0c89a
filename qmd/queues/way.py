"""The way to another queue manager, as outgoing queues and incoming sequences see it.

The links and connections of qmd/peers are such ways and sessions.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from qmd.core.retry import QueueState, Retry
    from qmd.core.session import Session
    from qmd.queues.incoming_sequences import IncomingStream
    from qmd.queues.outgoing_queue import OutgoingQueue


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

    def sends_in_vain(self, worth: int = 1) -> None:
        """Count a message that was of no use: its sender gets less of the time."""

    def close(self, reason: str) -> None:
        """End the session."""

    def owe_express(self, packet: bytes) -> None:
        """Send it with what is owed next; it may get lost."""

    def owe_final_ack(self, packet: bytes) -> None:
        """Send it with what is owed next."""

    def flush_soon(self) -> None:
        """Write what is owed, in the next turn of the loop."""


class Way(Protocol):
    """Messages of several queues go it, over one session at a time."""

    @property
    def name(self) -> str: ...
    @property
    def peer(self) -> str: ...
    @property
    def hosts(self) -> tuple[str, ...]: ...
    @property
    def via(self) -> str: ...
    @property
    def is_reachable(self) -> bool: ...
    @property
    def may_dial(self) -> bool: ...
    @property
    def has_carrier(self) -> bool: ...
    @property
    def guid(self) -> bytes | None: ...
    @property
    def remote_id(self) -> bytes | None: ...
    @property
    def connection(self) -> PeerSession | None: ...
    @property
    def retry(self) -> Retry: ...
    @property
    def queues(self) -> dict[OutgoingQueue, None]: ...

    def wake(self) -> None:
        """Send what is there."""

    def kick(self) -> None:
        """Try at once, whatever the back-off says."""

    def connect(self) -> None:
        """See that a session comes about."""

    def avoid(self, guid: bytes) -> bool:
        """Send nothing over that queue manager for a time; False when no other way is left."""

    def may_speak(self, guids: Collection[bytes]) -> bool:
        """Whether one of these queue managers can know the ends of messages of this way."""

    def spoke(self, guid: bytes) -> None:
        """Remember a queue manager that has acknowledged messages of this way."""

    def state(self, queue: OutgoingQueue) -> QueueState:
        """That of a queue of it."""


class Ways(Protocol):
    """All of them."""

    def link_to_address(self, host: str, port: int) -> Way:
        """The way to an address, made when it is the first queue there."""

    def link_to_queue_manager(self, guid: bytes, address: tuple[str, int] | None = None) -> Way:
        """The way over whatever session with that queue manager there is, or will be."""

    def forget_link(self, link: Way) -> None:
        """No queue needs it any more."""
