"""The way to another queue manager, as outgoing queues see it: a link of qmd/peers."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from qmd.core.retry import QueueState, Retry
    from qmd.queues.outgoing_queue import OutgoingQueue
    from qmd.queues.peer_session import PeerSession


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

    def may_acknowledge(self, guids: Collection[bytes]) -> bool:
        """Whether one of these queue managers can know the ends of messages of this way."""

    def add_acknowledger(self, guid: bytes) -> None:
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
