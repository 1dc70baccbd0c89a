"""Sequence order: transactional messages are accepted once, and in the order of their sequence.

[MS-MQQB] 3.1.5.8.6
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from protocol import DirectQueueName, UserMessage
from protocol.identifiers import guid_text
from protocol.message_class import MessageClass
from qmd.transfer.decision import Decision, Verdict, no_room

if TYPE_CHECKING:
    from qmd.peers.connection import PeerConnection
    from qmd.peers.identity_conflicts import IdentityConflicts
    from qmd.queues.incoming_sequences import IncomingStream, IncomingStreams
    from qmd.queues.local_queue import LocalQueue
    from qmd.runtime.services import Services


class SequenceOrder:
    """Compares the position of a message with that of its sequence."""

    def __init__(
        self,
        services: Services,
        incoming_streams: IncomingStreams,
        identities: IdentityConflicts,
    ) -> None:
        self._services = services
        self._incoming_streams = incoming_streams
        self._identities = identities

    def check(
        self,
        connection: PeerConnection,
        message: UserMessage,
        queue: LocalQueue,
        now: float,
        *,
        can_be_taken: bool,
    ) -> Decision:
        """Decide about a transactional message by its position alone.

        ACCEPTED if it is the next one of its sequence; if also `can_be_taken`, its position counts
        as accepted from now on.  A duplicate is one however late it is, and whether or not there is
        room for it.
        """
        stream = self._stream_of(connection, message, queue)
        if isinstance(stream, Decision):
            return stream
        transaction, number = message.transaction, message.user.message_number
        assert transaction is not None
        position = transaction.sequence_id, transaction.sequence_number
        sequence = stream.sequence
        if not can_be_taken and sequence.is_next(*position, transaction.previous_number):
            return Decision(Verdict.ACCEPTED, queue, stream)
        if sequence.offer(*position, transaction.previous_number, now):
            return Decision(Verdict.ACCEPTED, queue, stream)
        if stream.contradicts(*position, number):
            stream.contradictions += 1
            detail = self._identities.contradiction(
                connection, stream.source, stream.queue.name, stream.last_host
            )
            nack = MessageClass.NACK_DELETED
            return Decision(Verdict.CONTRADICTION, stream.queue, stream, nack, detail)
        accepted = sequence.accepted_id, sequence.accepted_number
        verdict = Verdict.DUPLICATE if position <= accepted else Verdict.OUT_OF_ORDER
        return Decision(verdict, stream.queue, stream)

    def _stream_of(
        self, connection: PeerConnection, message: UserMessage, queue: LocalQueue
    ) -> IncomingStream | Decision:
        """Return the stream of a message, a new one if needed; or NO_ROOM at a limit."""
        streams = self._incoming_streams
        assert message.transaction is not None
        source, destination = message.user.source_queue_manager, message.user.destination_queue
        name: Any = (message.user.flags >> 10 & 7, getattr(destination, "name", destination))
        stream = streams.find(source, queue, name)
        if stream is None:
            limit = streams.limit(source, queue)
            if limit is not None:
                self._services.log_limited(
                    limit.event,
                    connection.host,
                    address=connection.host,
                    source=guid_text(source),
                    queue=queue.name,
                    limit=limit.allowed,
                )
                return no_room(limit.reason)
            stream = streams.begin(source, queue, name, message.transaction.sequence_id)
        if stream.return_path is not connection:
            stream.return_path = connection
            connection.streams[stream] = None
        stream.by_direct_name = type(destination) is DirectQueueName
        return stream
