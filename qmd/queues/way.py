"""Way: the interface of a link to another queue manager (qmd/peers), for outgoing queues."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from qmd.core.retry import QueueState, Retry
    from qmd.queues.outgoing_queue import OutgoingQueue
    from qmd.queues.peer_session import PeerSession


class Way(Protocol):
    """A link. It sends the messages of several queues over one session at a time."""

    #: Queue managers that have acknowledged its messages.
    acknowledgers: dict[bytes, None]
    resolved: frozenset[str]  # the addresses to which its name was resolved for the last attempt

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
        """Send the waiting messages."""

    def kick(self) -> None:
        """Try to connect at once, without regard to the back-off."""

    def connect(self) -> None:
        """Begin to establish a session."""

    def avoid(self, guid: bytes) -> bool:
        """Send nothing over a queue manager for some time; return False if no other way is left."""

    def leaves_over(self, connection: Any) -> bool:
        """Return whether messages of this link leave over the other end of a session."""

    def add_acknowledger(self, guid: bytes) -> None:
        """Remember a queue manager that has acknowledged messages of this link."""

    def state(self, queue: OutgoingQueue) -> QueueState:
        """Return the state of one of its queues."""


class Ways(Protocol):
    """The links: `Peers` of qmd/peers."""

    def link_to_address(self, host: str, port: int) -> Way:
        """Return the link to an address; create it if there is none."""

    def link_to_queue_manager(self, guid: bytes, address: tuple[str, int] | None = None) -> Way:
        """Return the link to a queue manager, over any present or later session; create it."""

    def forget_link(self, link: Way) -> None:
        """Forget a link that no queue uses any more."""
