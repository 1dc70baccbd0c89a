"""Admission: the places for connections that other queue managers have opened.

A connection needs a place among the handshakes, and a session needs one among the sessions. When
all are taken, another connection gives its place up:

    no message of it was useful yet ──► the address with the most such sessions gives up its oldest
    the others                      ──► the address with the most sessions, if it has more than the
                                        new one would have; otherwise one without messages for a
                                        minute, of the network with the most sessions, once a second

Sessions of known hosts never give up their places to others while they have messages. A host is
known if it is configured, if this queue manager has connected to it, or if one of its sessions was
useful (`KnownHosts`). Sessions that this queue manager has opened need no place. postscreen of
Postfix and the reserved connections of PostgreSQL solve the same problem.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from qmd.runtime.shares import Shares, owner_of

if TYPE_CHECKING:
    from qmd.core.session import Session
    from qmd.peers.known_hosts import KnownHosts
    from qmd.runtime.services import Services

# A session without a useful message is safe for this time from connections with an equal share: a
# host that connects has messages, and sends them at once.
PROVES_ITSELF_S = 5.0
# A session without messages for so long gives its place up if none is left: it has nothing to lose,
# and its host connects again when it has a message. Looked for once in `LOOK_AGAIN_S`.
SILENT_S, LOOK_AGAIN_S = 60.0, 1.0


class Place(Protocol):
    """A connection that another queue manager has opened: `PeerConnection`."""

    host: str
    opened_at: float  # loop time
    session: Session | None

    def close(self, reason: str) -> None: ...


class Admission:
    """The connections that other queue managers have opened, and their places."""

    def __init__(self, services: Services, known_hosts: KnownHosts) -> None:
        self._services = services
        self._known_hosts = known_hosts
        # Accepted connections with an incomplete handshake, the oldest first. A host that is known
        # gives up its place last.
        self._handshakes: Shares[Place] = Shares()
        self._known_handshakes: Shares[Place] = Shares()
        # Sessions of which no message was useful yet, of hosts that are not known; and the others.
        self._unproven: Shares[Place] = Shares()
        self._proven: Shares[Place] = Shares()
        self._connections: Shares[Place] = Shares()  # all of them
        self._look_again_at = float("-inf")

    def may_connect(self, host: str) -> bool:
        """Return whether the address has few enough connections to open another one."""
        limit = 2 * self._services.settings.peers.sessions_per_peer_max
        return self._connections.of(owner_of(host)) < limit

    def begin(self, connection: Place) -> bool:
        """Give a new connection a place; return False if there is no place for its session.

        Then the connection has a place for its handshake only, which refuses the session.
        """
        self._begin_handshake(connection)
        has_room = self._make_room(connection)
        owner = owner_of(connection.host)
        self._connections.add(connection, owner)
        if has_room:
            is_known = self._known_hosts.has(connection.host)
            (self._proven if is_known else self._unproven).add(connection, owner)
        else:
            self._services.log_limited(
                "session_refused",
                connection.host,
                address=connection.host,
                reason="limit reached",
            )
        return has_room

    def opened(self, connection: Place) -> None:
        """Record that the handshake is complete."""
        self._handshakes.remove(connection)
        self._known_handshakes.remove(connection)

    def proved_useful(self, connection: Place) -> None:
        """Record that a session has sent useful messages; its host is known from now on."""
        self._known_hosts.add(connection.host)
        if connection in self._unproven:
            self._unproven.remove(connection)
            self._proven.add(connection, owner_of(connection.host))

    def closed(self, connection: Place) -> None:
        """Free the places of a connection that has ended."""
        for shares in (self._connections, self._unproven, self._proven):
            shares.remove(connection)
        self.opened(connection)

    def has_room_for(self, host: str) -> bool:
        """Return whether a session with that address would get a place now."""
        limits = self._services.settings.peers
        owner = owner_of(host)
        if self._unproven.of(owner) + self._proven.of(owner) >= limits.sessions_per_peer_max:
            return False
        return self._has_free_place or self._victim(host) is not None

    @property
    def _has_free_place(self) -> bool:
        return len(self._unproven) + len(self._proven) < self._services.settings.peers.sessions_max

    def _begin_handshake(self, connection: Place) -> None:
        """Close the handshake that has taken the longest, if there are too many.

        A handshake takes milliseconds. One that has taken longer than hundreds of others will
        hardly be completed.
        """
        handshakes, known = self._handshakes, self._known_handshakes
        if len(handshakes) + len(known) >= self._services.settings.peers.handshakes_max:
            oldest = handshakes.candidate() or known.candidate()
            assert oldest is not None
            self._services.log_limited("too_many_handshakes", oldest.host, address=oldest.host)
            oldest.close("too many connections have not finished their handshake")
        is_known = self._known_hosts.has(connection.host)
        (known if is_known else handshakes).add(connection, owner_of(connection.host))

    def _make_room(self, connection: Place) -> bool:
        """Return whether there is a place for one more session; end another one if necessary."""
        if not self.has_room_for(connection.host):
            return False
        if self._has_free_place:
            return True
        victim = self._victim(connection.host)
        assert victim is not None
        self._services.log_limited("session_made_room", victim.host, address=victim.host)
        if victim in self._proven:
            self._look_again_at = self._services.loop.time() + LOOK_AGAIN_S
        victim.close("another host needs its place")
        return True

    def _victim(self, host: str) -> Place | None:
        """Return the session that has to give its place to one of `host`, or None."""
        owner, is_known = owner_of(host), self._known_hosts.has(host)
        now = self._services.loop.time()
        unproven, proven = self._unproven.candidate(), self._proven.candidate()
        if unproven is not None and (
            is_known
            or now - unproven.opened_at > PROVES_ITSELF_S
            or self._unproven.is_smaller(owner, unproven)
        ):
            return unproven
        if proven is not None and is_known and self._proven.is_smaller(owner, proven):
            return proven
        return self._silent(now)

    def _silent(self, now: float) -> Place | None:
        """Return a session of the largest network that had no message for a long time, or None."""
        if now < self._look_again_at:
            return None
        self._look_again_at = now + LOOK_AGAIN_S
        longest = min(self._proven.largest_group(), key=_active_at, default=None)
        if longest is not None and now - _active_at(longest) > SILENT_S:
            self._look_again_at = now  # `has_room_for` asks before the place is needed
            return longest
        return None


def _active_at(place: Place) -> float:
    """Return the loop time of its last message in either direction, or of its begin."""
    active_at = None if place.session is None else place.session.last_active
    return place.opened_at if active_at is None else active_at
