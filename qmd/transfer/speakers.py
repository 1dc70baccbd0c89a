"""Speakers: the queue managers that a session speaks for (docs/decisions/0031).

A session speaks for the queue manager at its other end. Only a relay speaks for others as well:
their messages are refused from every other session, and their acknowledgments change nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from protocol.identifiers import guid_text
from protocol.message_class import MessageClass
from qmd.transfer.decision import Decision, no_room, refused

if TYPE_CHECKING:
    from protocol import UserMessage
    from qmd.peers.connection import PeerConnection
    from qmd.peers.origins import Origins
    from qmd.peers.relays import Relays
    from qmd.queues.outgoing_queue import OutgoingQueue
    from qmd.queues.way import Way


class Speakers:
    """Decides for which queue managers a session may speak."""

    def __init__(self, origins: Origins, relays: Relays) -> None:
        self._origins = origins
        self._relays = relays

    def refusal(self, connection: PeerConnection, source: bytes) -> Decision | None:
        """Return the decision to refuse a message of this source, None if the session may bring it.

        While it is not known yet whether the peer is a relay, the session ends, and the peer sends
        the message again.
        """
        if self.speaks_for(connection, source):
            return None
        if self._relays.is_undecided(connection):
            return no_room("it is not known yet whether this peer is a relay ([peers] relays)")
        return refused(
            MessageClass.NACK_ACCESS_DENIED,
            detail=f"{connection.host} is no relay, and brings messages of"
            f" {guid_text(source)}: [peers] relays does not list it",
            is_foreign=True,
        )

    def speaks_for(self, connection: PeerConnection, source: bytes) -> bool:
        """Return whether a session may bring messages of a queue manager."""
        assert connection.session is not None
        return source == connection.session.remote_id or self._relays.is_relay(connection)

    def is_contradicted(self, connection: PeerConnection) -> bool:
        """Return whether another origin is the primary one of the GUID that a session states."""
        assert connection.session is not None
        primary = self._origins.primary(connection.session.remote_id or b"")
        return primary is not None and primary != connection.origin

    def is_disproven(self, connection: PeerConnection) -> bool:
        """Return whether the primary origin has proven a key that a session has not proven."""
        assert connection.session is not None
        guid = connection.session.remote_id or b""
        primary = self._origins.primary(guid)
        return (
            primary is not None
            and primary != connection.origin
            and self._origins.is_proven(guid, primary)
        )

    def may_acknowledge(
        self, connection: PeerConnection, message: UserMessage, queue: OutgoingQueue
    ) -> bool:
        """Return whether an acknowledgment counts for the messages of an outgoing queue.

        It does from the queue manager that the queue leads to, over a session with its primary
        origin or the one that carries the messages; and from a relay over which they leave.
        """
        acker, link = message.user.source_queue_manager, queue.link
        if not self.speaks_for(connection, acker):
            return False
        if link.connection is connection:
            return True
        known = {link.remote_id, queue.known_peer, *link.acknowledgers} - {None}
        assert connection.session is not None
        if acker != connection.session.remote_id:
            # The relay that carries the messages may bring the acknowledgments of a destination
            # that lost its disk and has another GUID, over any of its sessions: it chooses them.
            return (
                acker in known
                or _is_carried_by(link, connection)
                or (not known and link.leaves_over(connection))
            )
        primary = self._origins.primary(acker)
        if not known and link.remote_id is None:
            # Relays carry the messages, and this run does not know yet where they lead. Besides the
            # relays only the destination knows the id of the sequence.
            return primary == connection.origin
        if acker not in known:
            return False
        if primary == connection.origin:
            return True
        # A host with several addresses may answer from another one than was dialled.
        return not self._origins.is_proven(acker, primary or "") and (
            connection.host in link.resolved
        )


def _is_carried_by(link: Way, connection: PeerConnection) -> bool:
    """Return whether the other end of a session is the one that the messages of a link go to now.

    That may be over another session: each of two hosts may have begun one.
    """
    used = link.connection
    if used is None or used.session is None or connection.session is None:
        return False
    there = (connection.session.remote_id, connection.origin)
    return (used.session.remote_id, used.origin) == there
