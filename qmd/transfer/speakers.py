"""Speakers: the queue managers that may acknowledge messages of an outgoing queue."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from protocol import UserMessage
    from qmd.queues.outgoing_queue import OutgoingQueue
    from qmd.queues.peer_session import PeerSession


def speaks_for(connection: PeerSession, message: UserMessage, queue: OutgoingQueue) -> bool:
    """Return whether an acknowledgment comes from the queue manager that the queue leads to."""
    assert connection.session is not None
    speakers = (message.user.source_queue_manager, connection.session.remote_id)
    return queue.link.may_acknowledge([each for each in speakers if each is not None])
