"""Reputation of a connection: whether it is trusted, and whether it sends useless packets."""

from __future__ import annotations

# Useless packets within a window of time that have no consequence. After a lost session a peer
# sends a window of messages again, so that as many have to be permitted.
USELESS_MAX, USELESS_WINDOW_S = 64, 1.0
FLOOD_S = 0.1  # time for which a connection that sends too much is served after all others
TRUST = 8  # useful messages that make an accepted connection trusted


class Reputation:
    """Reputation of one connection, from the packets that it has sent.

    A packet is useless if it changes nothing: a refused message, a duplicate, an acknowledgment of
    nothing.
    """

    __slots__ = ("_useful", "_useless_since", "floods_until", "is_trusted", "useless")

    def __init__(self, *, is_trusted: bool) -> None:
        self.is_trusted = is_trusted
        #: Loop time until which the connection is served after all others.
        self.floods_until = 0.0
        #: Weight of the useless packets in the current window of time.
        self.useless = 0
        self._useless_since = 0.0  # begin of that window
        self._useful = 0

    def count_useless(self, weight: int, now: float) -> None:
        """Count a useless packet; a connection that sends too many is flooding for a while."""
        if now > self._useless_since + USELESS_WINDOW_S:
            self.useless, self._useless_since = 0, now
        self.useless += weight
        if self.useless > USELESS_MAX:
            self.count_flood(now)

    def count_flood(self, now: float) -> None:
        """Record that the connection sends too much."""
        self.floods_until = now + FLOOD_S

    def count_useful(self, messages: int) -> None:
        """Count messages of an untrusted connection, or acknowledged by it.

        Enough of them make it trusted. Other packets, such as acknowledgments of nothing, do not.
        """
        self._useful += messages
        self.is_trusted = self._useful >= TRUST
