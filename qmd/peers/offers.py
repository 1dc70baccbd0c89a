"""Offers to a peer that lacks room: one message, and the others when it has taken that one.

A peer without room ends the session, and gets all messages in flight again.  Before that, the
session belongs to the messages of the peer, which give it room when they are acknowledged: the
offer waits until none has come for a while, and until all are acknowledged (docs/decisions/0087).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from qmd.core.peer_instance import Lack
    from qmd.core.session import Session
    from qmd.core.window import SendWindow

QUIET_S = 1.0  # without a message of the peer, before one is offered to it
QUIET_WAIT_S_MAX = 10.0  # for that, from the beginning of the session


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

    def begin_at(self, session: Session) -> float:
        """Return when a message may be offered, by the clock of the loop; 0: now."""
        opened_at = session.opened_at
        if self.lack is None or self._offered or opened_at is None:
            return 0.0
        last = max(opened_at, session.last_active or opened_at)
        return min(last + QUIET_S, opened_at + QUIET_WAIT_S_MAX)

    def count(self, messages: int) -> None:
        """Count messages that were given to the session."""
        self._offered += messages

    def explain(self, reason: str) -> str:
        """Return the reason why the peer has closed the session, with its want of room."""
        return reason if self.lack is None else f"{reason}: {self.lack.sentence}"
