"""Internal queues: names that packets are addressed to, and that are no queues of applications."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from protocol import UserMessage
    from qmd.queues.peer_session import PeerSession


class InternalQueue(Protocol):
    """One of them."""

    def is_meant(self, message: UserMessage) -> bool:
        """Whether the message is for it."""

    def received(self, connection: PeerSession, message: UserMessage) -> None:
        """Handle a message for it.  It needs no room, and nothing of it is stored."""
