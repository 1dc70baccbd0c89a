"""Internal queues: destinations of packets between queue managers, not of applications."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from protocol import UserMessage
    from qmd.queues.peer_session import PeerSession


class InternalQueue(Protocol):
    """An internal queue."""

    def is_meant(self, message: UserMessage) -> bool:
        """Return whether a message is for this queue."""

    def received(self, connection: PeerSession, message: UserMessage) -> None:
        """Handle a message for this queue.  Nothing of the message is stored."""
