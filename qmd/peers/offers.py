"""Offers to a peer that lacks room: one message, and the others when it has taken that one.

A peer without room ends the session, and gets all messages in flight again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from qmd.core.peer_instance import Lack
    from qmd.core.window import SendWindow


class Offers:
    """The messages of outgoing queues that a session may carry.

    `lack` is the room that the peer lacks by its handshake, or None.
    """

    __slots__ = ("_offered", "lack")

    def __init__(self, lack: Lack | None) -> None:
        self.lack = lack
        self._offered = 0

    def limit(self, room: int, window: SendWindow) -> int:
        """Return how many messages may be sent now, of those for which the session has room."""
        if self.lack is None or window.was_useful:
            return room
        return min(room, 1 - self._offered)

    def count(self, messages: int) -> None:
        """Count messages that were given to the session."""
        self._offered += messages

    def explain(self, reason: str) -> str:
        """Return the reason why the peer has closed the session, with its want of room."""
        return reason if self.lack is None else f"{reason}: {self.lack.sentence}"
