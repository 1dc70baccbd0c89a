"""Arrivals: accepted messages get their places in local queues, with the open batch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from protocol import UserMessage
from protocol.message_class import MessageClass
from qmd.control_protocol.messages import StoredMessage
from qmd.core.acknowledgment import POSITIVE_ARRIVAL
from qmd.core.packet_fields import receive_time_s, time_left_s
from qmd.events.header import EventHeader, Kind
from qmd.events.recorder import add_correlation, add_trace
from qmd.properties.trace import trace_of
from qmd.queues.put import put, put_all, put_express

if TYPE_CHECKING:
    from collections.abc import Sequence

    from protocol.like_packets import Run
    from qmd.events.recorder import Recorder
    from qmd.outcomes.acknowledgments import Acknowledgments
    from qmd.outcomes.reports import Reports
    from qmd.queues.incoming_sequences import IncomingStreams
    from qmd.queues.incoming_stream import IncomingStream
    from qmd.queues.local_queue import LocalQueue
    from qmd.queues.message_id_history import KnownMessages
    from qmd.runtime.services import Services
    from qmd.transfer.turn import Turn

_TRANSACTIONAL_LEVEL = 7  # transactional messages have no priority
_NO_CORRELATION = bytes(20)
_EXPRESS_BITS = 0x60
_JOURNALED_BITS = 0x300  # UserHeader.Flags.JN, JP: the source waits for a final ack of the receipt
_TRACING_BIT = 0x01  # TR of BaseHeader.Flags, in its second byte


class Arrivals:
    """Stores accepted messages."""

    def __init__(
        self,
        services: Services,
        acknowledgments: Acknowledgments,
        incoming_streams: IncomingStreams,
        known_messages: KnownMessages,
        recorder: Recorder,
        reports: Reports,
    ) -> None:
        self._services = services
        self._acknowledgments = acknowledgments
        self._incoming_streams = incoming_streams
        self._known_messages = known_messages
        self._recorder = recorder
        self._reports = reports

    def accept(
        self,
        turn: Turn,
        queue: LocalQueue,
        stream: IncomingStream | None,
        message: UserMessage,
        packet: bytes,
    ) -> None:
        """Store an accepted message; `stream` is the sequence of a transactional one."""
        turn.connection.note_accepted()
        if stream is not None:
            assert message.transaction is not None
            number = message.transaction.sequence_number
            self._advance(turn, stream, number, (message.user.message_number,))
            if message.user.flags & _JOURNALED_BITS:
                self._acknowledgments.expect_final_ack(packet)
        self._store(turn, queue, message, packet)

    def accept_run(
        self,
        turn: Turn,
        queue: LocalQueue,
        stream: IncomingStream | None,
        message: UserMessage,
        run: Run,
    ) -> None:
        """Store accepted messages that follow `message`, which was accepted in this turn."""
        packets, numbers, first = run
        count = len(packets)
        if stream is not None:
            self._advance(turn, stream, first + count - 1, numbers)
        else:
            source = message.user.source_queue_manager
            self._known_messages.add_run(turn.connection, source, numbers[0], numbers[-1])
        batch, wall_ms = self._services.storage.batch, turn.wall_ms
        lookup_ids = self._services.ids.next_lookup_ids(_level(message), count)
        expires_at_s = self._expiry(turn, packets[0])
        stored = [
            StoredMessage(lookup_id, wall_ms, packet, expires_at_s=expires_at_s)
            for lookup_id, packet in zip(lookup_ids, packets, strict=True)
        ]
        if self._recorder.enabled:
            self._record_run(turn, message, run, lookup_ids)
        put_all(queue, stored, batch)
        turn.arrivals[queue] += stored

    def _advance(
        self, turn: Turn, stream: IncomingStream, number: int, messages: Sequence[int]
    ) -> None:
        """Move a sequence on to its accepted messages; `number` is the position of the last."""
        turn.accepted[stream] = stream.sequence.accepted_id, number
        self._incoming_streams.accepted(stream, messages, turn.connection.host)

    def _expiry(self, turn: Turn, packet: bytes) -> int | None:
        """Return the last second of a message's lifetime, by the queue manager's own clock."""
        left_s = time_left_s(packet, receive_time_s(packet), turn.wall_s)
        return self._services.clock.deadline_s(left_s)

    def _store(self, turn: Turn, queue: LocalQueue, message: UserMessage, packet: bytes) -> None:
        """Add a message to its queue; a recoverable one is delivered after the commit."""
        batch = self._services.storage.batch
        user = message.user
        lookup_id = self._services.ids.next_lookup_id(_level(message))
        expires_at_s = self._expiry(turn, packet)
        stored = StoredMessage(lookup_id, turn.wall_ms, packet, expires_at_s=expires_at_s)
        if self._recorder.enabled:
            self._record(turn, queue, message, lookup_id, len(packet))
        if message.transaction is None:
            # A reader of an express message does not wait for this row: its receive is a later
            # commit, which holds this row too.
            self._known_messages.add(
                turn.connection, user.source_queue_manager, user.message_number
            )
        if user.flags & _EXPRESS_BITS:
            ahead = turn.connection.ahead.part
            part_id = None if ahead is None else ahead.id_for(packet)
            put(queue, stored, batch, part_id=part_id)
            if ahead is not None and part_id is not None:
                ahead.use(batch)
            arrivals = turn.arrivals.get(queue)
            if arrivals is None:
                turn.arrivals[queue] = [stored]
            else:
                arrivals.append(stored)
        else:
            put_express(queue, stored)
        if packet[3] & _TRACING_BIT:
            self._reports.arrived(message, packet, batch, turn.connection)
        if message.properties.flags & POSITIVE_ARRIVAL:
            self._acknowledgments.to_application(
                message, MessageClass.ACK_REACH_QUEUE, batch, turn.connection
            )

    def _record(
        self, turn: Turn, queue: LocalQueue, message: UserMessage, lookup_id: int, size: int
    ) -> None:
        """Record the message in the event of the messages before it, while they are alike."""
        user, transaction = message.user, message.transaction
        source, is_recoverable = user.source_queue_manager, user.flags & _EXPRESS_BITS
        sequence_id = 0 if transaction is None else transaction.sequence_id
        signer = "" if message.security is None else _signer(message)
        key = (queue, source, sequence_id, is_recoverable, signer)
        event = turn.event
        if event is None or key != turn.event_key:
            turn.event_key = key
            event = turn.event = self._recorder.group(
                EventHeader(
                    Kind.ACCEPTED,
                    queue=queue.name,
                    peer=turn.connection.peer,
                    sequence_id=sequence_id,
                    reason=signer,
                    delivery="transactional"
                    if transaction is not None
                    else "recoverable"
                    if is_recoverable
                    else "express",
                ),
                source,
            )
        event.numbers.append(user.message_number)
        event.places.append(lookup_id)
        event.sizes.append(size)
        if transaction is not None:
            event.positions.append(transaction.sequence_number)
        if message.properties.correlation_id != _NO_CORRELATION:
            add_correlation(event, message.properties.correlation_id)
        extension = message.properties.extension
        if extension and (trace := trace_of(extension)):
            add_trace(event, trace)

    def _record_run(
        self, turn: Turn, message: UserMessage, run: Run, lookup_ids: list[int]
    ) -> None:
        """Record messages that follow `message`, in its event."""
        event, count = turn.event, len(lookup_ids)
        assert event is not None, "the message before the run was recorded in this turn"
        event.numbers += run.message_numbers
        event.places += lookup_ids
        event.sizes += map(len, run.packets)
        if run.first_position:
            event.positions += range(run.first_position, run.first_position + count)
        properties = message.properties
        if properties.correlation_id != _NO_CORRELATION:
            add_correlation(event, properties.correlation_id, count)
        if properties.extension and (trace := trace_of(properties.extension)):
            add_trace(event, trace, count)


def _level(message: UserMessage) -> int:
    """Return the priority level of a message among the lookup ids."""
    if message.transaction is not None:
        return _TRANSACTIONAL_LEVEL
    return 7 - (message.base.flags & 7)


def _signer(message: UserMessage) -> str:
    """Return a sentence about the verified signer of a message, or ""."""
    from qmd.message_security.signer_facts import signer_facts, signer_sentence

    facts = signer_facts(message)
    return "" if facts is None else signer_sentence(facts)
