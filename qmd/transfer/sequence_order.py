"""Sequence order: transactional messages are accepted once, and in the order of their sequence.

A message that is not accepted, and does not belong to a stream of its origin, leaves no trace: no
row, and no order ack, which would disclose a sequence id to a program that only states a GUID.

[MS-MQQB] 3.1.5.8.6
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

from protocol import DirectQueueName, UserMessage
from protocol.identifiers import guid_text
from protocol.message_class import MessageClass
from qmd.core.sequence import is_plausible
from qmd.queues.incoming_stream import NO_BEGINNING, Beginning
from qmd.transfer.decision import Decision, Verdict

if TYPE_CHECKING:
    from qmd.peers.connection import PeerConnection
    from qmd.peers.identity_conflicts import IdentityConflicts
    from qmd.queues.incoming_sequences import IncomingStreams
    from qmd.queues.incoming_stream import IncomingStream
    from qmd.queues.local_queue import LocalQueue
    from qmd.queues.stream_names import Name
    from qmd.runtime.services import Services


DIGEST_BYTES_MAX = 1024  # of a body: large ones would take too long


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
        transaction, number = message.transaction, message.user.message_number
        assert transaction is not None
        position = transaction.sequence_id, transaction.sequence_number
        if not is_plausible(position[0], self._services.environment.time()):
            return self._reject(
                connection, message, queue, "sequence_id_implausible", sequence_id=position[0]
            )
        source = message.user.source_queue_manager
        name, origin = _name_of(message), connection.origin_for(source)
        streams = self._incoming_streams
        beginning = None
        if connection.peer_key is None and not transaction.previous_number:
            beginning = Beginning(position[1], number, _digest(message))
        stream = streams.find(source, queue, name, origin, position[0], beginning)
        is_new = stream is None or stream.sequence.accepted_id != position[0]
        if is_new and streams.is_held(source, queue, origin, position[0], beginning):
            return self._reject(
                connection, message, queue, "sequence_held", sequence_id=position[0]
            )
        if stream is None:
            return self._begin(
                connection, message, queue, name, now, beginning, can_be_taken=can_be_taken
            )
        self._return_over(connection, stream, message)
        sequence = stream.sequence
        if not can_be_taken and sequence.is_next(*position, transaction.previous_number):
            return Decision(Verdict.ACCEPTED, queue, stream)
        before = sequence.accepted_id, sequence.accepted_number
        if sequence.offer(*position, transaction.previous_number, now):
            if is_new:
                stream.beginning, stream.gaps = beginning or NO_BEGINNING, []
            elif connection.peer_key is None and position[1] > before[1] + 1:
                stream.skipped(before[1] + 1, position[1] - 1)
            return Decision(Verdict.ACCEPTED, queue, stream)
        begins_otherwise = (
            beginning is not None
            and position[0] == sequence.accepted_id
            and stream.beginning.contradicts(beginning)
        )
        if begins_otherwise or stream.contradicts(*position, number):
            stream.contradictions += 1
            detail = self._identities.contradiction(
                connection, stream.source, stream.queue.name, stream.last_host
            )
            nack = MessageClass.NACK_DELETED
            return Decision(Verdict.CONTRADICTION, stream.queue, stream, nack, detail)
        accepted = sequence.accepted_id, sequence.accepted_number
        verdict = Verdict.DUPLICATE if position <= accepted else Verdict.OUT_OF_ORDER
        return Decision(verdict, stream.queue, stream)

    def _begin(
        self,
        connection: PeerConnection,
        message: UserMessage,
        queue: LocalQueue,
        name: Name,
        now: float,
        beginning: Beginning | None,
        *,
        can_be_taken: bool,
    ) -> Decision:
        """Begin a stream if its first message is accepted; else nothing of the message is kept."""
        transaction, source = message.transaction, message.user.source_queue_manager
        assert transaction is not None
        streams, origin = self._incoming_streams, connection.origin_for(source)
        if (
            transaction.previous_number
            or not transaction.sequence_number
            or streams.may_be_old(source, queue, name, transaction.sequence_id)
        ):
            return Decision(Verdict.OUT_OF_ORDER, queue)
        if not can_be_taken:
            return Decision(Verdict.ACCEPTED, queue)
        limit = streams.limit(source, queue, origin)
        if limit is not None:
            return self._reject(
                connection, message, queue, limit.event, limit=limit.allowed, reason=limit.reason
            )
        stream = streams.begin(source, queue, name, origin, connection.host)
        accepted = stream.sequence.offer(
            transaction.sequence_id, transaction.sequence_number, 0, now
        )
        assert accepted, "it is the first message"
        stream.beginning = beginning or NO_BEGINNING
        self._return_over(connection, stream, message)
        return Decision(Verdict.ACCEPTED, queue, stream)

    def _return_over(
        self, connection: PeerConnection, stream: IncomingStream, message: UserMessage
    ) -> None:
        """Send the order acks of a stream over the session of its last message."""
        if stream.return_path is not connection:
            stream.return_path = connection
            connection.streams[stream] = None
        stream.by_direct_name = type(message.user.destination_queue) is DirectQueueName

    def _reject(
        self,
        connection: PeerConnection,
        message: UserMessage,
        queue: LocalQueue,
        event: str,
        **facts: int | str,
    ) -> Decision:
        """Reject a message alone: it belongs to no stream, and its sender keeps it."""
        self._services.log_limited(
            event,
            connection.host,
            address=connection.host,
            source=guid_text(message.user.source_queue_manager),
            queue=queue.name,
            **facts,
        )
        return Decision(Verdict.OUT_OF_ORDER, queue)


def _digest(message: UserMessage) -> int:
    """Return a digest of the content of a message, which a program cannot guess with its number."""
    properties = message.properties
    content = hashlib.blake2b(properties.label, digest_size=7)
    content.update(properties.correlation_id)
    content.update(properties.body[:DIGEST_BYTES_MAX])
    content.update(b"%d %d" % (len(properties.body), message.user.sent_time))
    return int.from_bytes(content.digest(), "big")


def _name_of(message: UserMessage) -> Name:
    """Return the name of our queue in a packet."""
    destination: Any = message.user.destination_queue
    return message.user.flags >> 10 & 7, getattr(destination, "name", destination)
