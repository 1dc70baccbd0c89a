"""What arrives from peers: accepted, refused, or known already.  [MS-MQQB] 3.1.5.8

The order of the steps is that of chapter 3.1.5.8 as `docs/protocol-notes.md`
reads it.  Whatever becomes of a message, its number is acknowledged only when
the disk holds the decision:

    decide ──► rows into the open batch ──► (commit) ──► acknowledge, wake readers
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import structlog

from protocol import (
    DirectQueueName,
    FinalAckBody,
    MessageKind,
    UserMessage,
    classify,
    final_ack_body,
    order_ack_body,
)
from protocol.errors import ProtocolError
from protocol.headers import HOPS_MAX
from protocol.identifiers import NULL_GUID, guid_text
from protocol.message_class import MessageClass
from qmd.control_protocol.messages import StoredMessage
from qmd.core.acknowledgment import POSITIVE_ARRIVAL
from qmd.core.packet_fields import reach_time_s, receive_time_s, time_left_s
from qmd.core.session import MessageReceived
from qmd.events.recorder import Kind, bear_correlation
from qmd.outcomes.nack import why_not
from qmd.outcomes.promises import Promise
from qmd.queues.incoming_sequences import IncomingStream
from qmd.transfer.relay import Taken
from storage.tables.keys import LOOKUP_BITS

if TYPE_CHECKING:
    from qmd.events.recorder import Recorder
    from qmd.naming.destinations import Destinations
    from qmd.outcomes.acknowledgments import Acknowledgments
    from qmd.outcomes.nack import Nacks
    from qmd.outcomes.promises import Promises
    from qmd.outcomes.reports import Reports
    from qmd.peers.connection import PeerConnection
    from qmd.peers.identity_conflicts import IdentityConflicts
    from qmd.peers.next_hop import NextHops
    from qmd.peers.pending_acks import OwedAcks
    from qmd.queues.incoming_sequences import IncomingStreams
    from qmd.queues.local_queue import LocalQueue
    from qmd.queues.message_id_history import KnownMessages
    from qmd.queues.quotas import Admission
    from qmd.queues.registry import LocalQueues
    from qmd.runtime.services import Services
    from qmd.transfer.confirmation import Confirmations
    from qmd.transfer.internal_queues import InternalQueue
    from qmd.transfer.relay import Relay
    from qmd.transfer.release import OutgoingRelease
    from storage.engine.batch import Batch
    from storage.tables.events import Event

log = structlog.get_logger()

WIRE_NAMES_MAX = 10_000  # destinations as peers spell them, remembered with their queue

_PRIVATE = 3
_TRANSACTIONAL_LEVEL = 7  # they have no priority
_NO_CORRELATION = bytes(20)
_EXPRESS_BITS = 0x60
_HOPS = 0x1F
_JOURNALED_BITS = 0x300  # UserHeader.Flags.JN, JP: its source waits to hear of its receipt
_TRACING_BIT = 0x01  # TR of BaseHeader.Flags, in its second byte


class _EndsSession(Exception):
    """A message can be neither taken nor refused: its sender keeps it, and sends it again."""


class _Turn:
    """Messages of one session that were read at once: what they lead to goes to disk at once."""

    __slots__ = (
        "accepted",
        "arrivals",
        "connection",
        "decided",
        "final_acks",
        "heard",
        "now",
        "rejected",
        "remote_id",
        "told",
        "told_of",
        "wall_ms",
        "wall_s",
    )

    def __init__(self, connection: PeerConnection, now: float, wall: float) -> None:
        assert connection.session is not None
        self.connection = connection
        self.remote_id = connection.session.remote_id
        self.now = now
        self.wall_s, self.wall_ms = int(wall), int(wall * 1000)
        self.decided: list[int] = []  # recoverable numbers of this session
        self.heard: list[int] = []  # those of order acks
        self.final_acks: list[tuple[UserMessage, int]] = []  # with those that they have
        self.arrivals: dict[LocalQueue, list[StoredMessage]] = {}
        self.accepted: dict[IncomingStream, tuple[int, int]] = {}
        self.rejected: dict[IncomingStream, None] = {}  # whose counts have to be stored
        self.told: Event | None = None  # with messages that are alike: an event for all of them
        self.told_of: tuple[Any, ...] = ()


class Incoming:
    """Takes over what peers send."""

    def __init__(
        self,
        services: Services,
        acknowledgments: Acknowledgments,
        admission: Admission,
        confirmations: Confirmations,
        identities: IdentityConflicts,
        incoming_streams: IncomingStreams,
        known_messages: KnownMessages,
        owed_acks: OwedAcks,
        promises: Promises,
        queues: LocalQueues,
        recorder: Recorder,
        nacks: Nacks,
        relay: Relay,
        outgoing_release: OutgoingRelease,
        destinations: Destinations,
        next_hops: NextHops,
        reports: Reports,
    ) -> None:
        self._services = services
        self._acknowledgments = acknowledgments
        self._admission = admission
        self._confirmations = confirmations
        self._identities = identities
        self._incoming_streams = incoming_streams
        self._known_messages = known_messages
        self._owed_acks = owed_acks
        self._promises = promises
        self._queues = queues
        self._recorder = recorder
        self._nacks = nacks
        self._relay = relay
        self._outgoing_release = outgoing_release
        self._destinations = destinations
        self._next_hops = next_hops
        self._reports = reports
        # Direct names bear no address, [MS-MQQB] 3.1.5.8.5.
        self._our_addresses = (NULL_GUID, services.id)
        self._queues_by_wire_name: dict[bytes, LocalQueue] = {}
        self._waiting_for_disk: dict[PeerConnection, None] = {}
        self._asked: Batch | None = None  # the last one after whose commit those may go on
        self.received_count = 0
        self.duplicate_count = 0
        self.rejected_count = 0

    def connect(self, history_queue: InternalQueue) -> None:
        """Name the collaborators that are made after it."""
        self._history_queue = history_queue

    def queues_changed(self) -> None:
        """A queue came or went: what names stand for has to be found out anew."""
        self._queues_by_wire_name.clear()

    # The hot path.

    def receive(
        self, connection: PeerConnection, messages: list[MessageReceived], now: float
    ) -> None:
        """Messages of one session, in the order of their arrival."""
        own_id = self._services.id
        turn = _Turn(connection, now, self._services.environment.time())
        self.received_count += len(messages)
        try:
            for message, packet, number in messages:
                if message.properties.message_class:
                    kind = classify(message, own_id)
                    if kind is not MessageKind.ORDINARY:
                        self._acknowledged(turn, kind, message, number)
                        continue
                self._decide(turn, message, packet)
                if number:
                    turn.decided.append(number)
        except _EndsSession as error:
            self._finish(turn)
            connection.drop(str(error))
            return
        if turn.final_acks:
            self._final_acks(turn)
        if turn.heard:
            promise = Promise(connection, turn.heard)
            self._outgoing_release.when_released(partial(self._promises.keep, promise))
        self._finish(turn)
        if self._services.storage.congested:
            # Who waits for no answer, as with express messages that are refused, waits here too.
            connection.pause_reading()
            self._waiting_for_disk[connection] = None
            self._ask_the_disk()

    def _decide(self, turn: _Turn, message: UserMessage, packet: bytes) -> None:
        """A message is stored, passed on, refused, or was here before."""
        connection = turn.connection
        user, is_transactional = message.user, message.transaction is not None
        source = user.source_queue_manager
        if not is_transactional and self._known_messages.is_duplicate(
            connection, source, user.message_number
        ):
            self.duplicate_count += 1
            connection.sends_in_vain()
            self._recorder.provoked(
                Kind.DUPLICATE, source, user.message_number, peer=connection.peer
            )
            return
        size = len(packet)
        full = self._admission.is_full(size, express=not user.flags & _EXPRESS_BITS)
        if full is not None:
            if self._history_queue.is_meant(message):  # it needs no room
                self._history_queue.received(connection, message)
                return
            # The sender keeps what is not acknowledged: [MS-MQQB] 3.1.5.8.8.
            self._services.log_limited("session_closed_for_lack_of_room", "room", reason=full.text)
            raise _EndsSession(f"no room for messages: {full.text}")
        left_s = time_left_s(packet, reach_time_s(packet), turn.wall_s)
        too_late = left_s is not None and left_s < 0
        if too_late and not is_transactional:
            self._refuse(turn, message, packet, MessageClass.NACK_REACH_QUEUE_TIMEOUT)
            return
        if self._relay.enabled:
            taken = self._relay.take(connection, message, packet, turn.wall_ms, turn.now)
            if taken is Taken.DONE:
                return
            if taken is Taken.NO_ROOM:
                raise _EndsSession("no room for messages to others")
        if source != turn.remote_id:
            self._next_hops.came(source, connection)
        queue = self._queue_of(message)
        if queue is None:
            self._decide_without_queue(turn, message, packet)
            return
        refusal = why_not(queue, message)
        if refusal is not None:
            self._refuse(turn, message, packet, refusal, queue)
            return
        has_room = queue.has_room(size)
        if is_transactional:
            # A duplicate is one, however late, and whether or not there is room.
            stream = self._stream_of(turn, queue, message)
            can_be_taken = has_room and not too_late
            if not self._is_next(turn, stream, message, packet, can_be_taken=can_be_taken):
                return
            if too_late:
                self._refuse(turn, message, packet, MessageClass.NACK_REACH_QUEUE_TIMEOUT)
                return
        if not has_room:
            self._refuse(turn, message, packet, MessageClass.NACK_QUEUE_EXCEED_QUOTA, queue)
            return
        if is_transactional:
            self._accept(turn, stream, message, packet)
        self._store(turn, queue, message, packet)

    def _queue_of(self, message: UserMessage) -> LocalQueue | None:
        """Where it goes, if that is a queue of ours, and one to which others may send."""
        user = message.user
        if user.queue_manager_address not in self._our_addresses:
            return None  # we are no routing server
        destination = user.destination_queue
        if type(destination) is DirectQueueName:
            try:
                queue: LocalQueue | None = self._queues_by_wire_name[destination.name]
            except KeyError:
                queue = self._find_direct(destination.name)
        elif user.flags >> 10 & 7 == _PRIVATE and isinstance(destination, int):
            queue = self._queues.by_id.get(destination)
        elif isinstance(destination, bytes):  # a public queue, by its GUID
            queue = self._destinations.queue_by_guid(destination)
        else:
            queue = None
        return None if queue is None or queue.is_read_only else queue

    def _find_direct(self, wire_name: bytes) -> LocalQueue | None:
        queue = self._destinations.queue_by_wire_name(wire_name)
        if queue is not None:  # names of nothing may be long, and there is no end of them
            if len(self._queues_by_wire_name) >= WIRE_NAMES_MAX:
                self._queues_by_wire_name.clear()
            self._queues_by_wire_name[wire_name] = queue
        return queue

    def _stream_of(self, turn: _Turn, queue: LocalQueue, message: UserMessage) -> IncomingStream:
        """The stream of a transactional message; a new one is begun, if there is room for it."""
        connection = turn.connection
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
                raise _EndsSession(limit.reason)
            stream = streams.begin(source, queue, name, message.transaction.sequence_id)
        if stream.return_path is not connection:
            stream.return_path = connection
            connection.streams[stream] = None
        stream.by_direct_name = type(destination) is DirectQueueName
        return stream

    def _is_next(
        self,
        turn: _Turn,
        stream: IncomingStream,
        message: UserMessage,
        packet: bytes,
        *,
        can_be_taken: bool,
    ) -> bool:
        """Whether it is the next one of its stream; then, and if it can be taken, it counts."""
        transaction, number = message.transaction, message.user.message_number
        assert transaction is not None
        position = transaction.sequence_id, transaction.sequence_number
        sequence = stream.sequence
        if not can_be_taken and sequence.is_next(*position, transaction.previous_number):
            return True
        if sequence.offer(*position, transaction.previous_number, turn.now):
            return True
        connection = turn.connection
        self.rejected_count += 1
        connection.sends_in_vain()
        accepted = sequence.accepted_id, sequence.accepted_number
        if stream.contradicts(*position, number):
            stream.contradictions += 1
            detail = self._identities.contradiction(
                connection, stream.source, stream.queue.name, stream.last_host
            )
            nack = MessageClass.NACK_DELETED
            self._refuse(turn, message, packet, nack, stream.queue, detail=detail)
        else:  # it was here, or it came too early
            self._recorder.provoked(
                Kind.DUPLICATE if position <= accepted else Kind.OUT_OF_ORDER,
                stream.source,
                number,
                queue=stream.queue.name,
                peer=connection.peer,
            )
        turn.rejected[stream] = None
        self._owed_acks.arm_order_ack(stream)
        return False

    def _accept(
        self, turn: _Turn, stream: IncomingStream, message: UserMessage, packet: bytes
    ) -> None:
        """The next one of its stream."""
        assert message.transaction is not None
        turn.accepted[stream] = (
            message.transaction.sequence_id,
            message.transaction.sequence_number,
        )
        host = turn.connection.host
        self._incoming_streams.accepted(stream, message.user.message_number, host)
        if message.user.flags & _JOURNALED_BITS:
            self._acknowledgments.expect_final_ack(packet)

    def _store(self, turn: _Turn, queue: LocalQueue, message: UserMessage, packet: bytes) -> None:
        """It gets its place in its queue, and goes to disk with the open batch."""
        batch = self._services.storage.batch
        user, is_transactional = message.user, message.transaction is not None
        lookup_id = self._services.ids.next_lookup_id(
            _TRANSACTIONAL_LEVEL if is_transactional else 7 - (message.base.flags & 7)
        )
        left_s = time_left_s(packet, receive_time_s(packet), turn.wall_s)
        expires_at_s = self._services.clock.deadline_s(left_s)
        stored = StoredMessage(lookup_id, turn.wall_ms, packet, expires_at_s=expires_at_s)
        queue.messages += 1
        queue.grow(len(packet))
        if self._recorder.enabled:
            self._tell_accepted(turn, queue, message, lookup_id, len(packet))
        if not is_transactional:
            # Those of express ones are not waited for: a reader's removal is a later commit, and
            # holds this row too.
            self._known_messages.add(
                turn.connection, user.source_queue_manager, user.message_number
            )
        if user.flags & _EXPRESS_BITS:
            batch.insert_message(
                queue.id << LOOKUP_BITS | lookup_id, packet, turn.wall_ms, expires_at_s
            )
            arrivals = turn.arrivals.get(queue)
            if arrivals is None:
                turn.arrivals[queue] = [stored]
            else:
                arrivals.append(stored)
        else:
            queue.deliver_express(stored)
        if packet[3] & _TRACING_BIT:
            self._reports.arrived(message, packet, batch)
        if message.properties.flags & POSITIVE_ARRIVAL:
            self._acknowledgments.to_application(message, MessageClass.ACK_REACH_QUEUE, batch)

    def _tell_accepted(
        self, turn: _Turn, queue: LocalQueue, message: UserMessage, lookup_id: int, size: int
    ) -> None:
        """In one event with those before it, as long as they are alike."""
        user, transaction = message.user, message.transaction
        source, is_recoverable = user.source_queue_manager, user.flags & _EXPRESS_BITS
        sequence_id = 0 if transaction is None else transaction.sequence_id
        of = (queue, source, sequence_id, is_recoverable)
        told = turn.told
        if told is None or of != turn.told_of:
            turn.told_of = of
            told = turn.told = self._recorder.group(
                Kind.ACCEPTED,
                source,
                queue=queue.name,
                peer=turn.connection.peer,
                sequence_id=sequence_id,
                delivery="transactional"
                if transaction is not None
                else "recoverable"
                if is_recoverable
                else "express",
            )
        told.numbers.append(user.message_number)
        told.places.append(lookup_id)
        told.sizes.append(size)
        if transaction is not None:
            told.positions.append(transaction.sequence_number)
        if message.properties.correlation_id != _NO_CORRELATION:
            bear_correlation(told, message.properties.correlation_id)

    # When the disk has it.

    def _finish(self, turn: _Turn) -> None:
        """Hand over to the disk; acknowledge and deliver when it has spoken."""
        if not (turn.decided or turn.arrivals or turn.accepted or turn.rejected):
            return
        batch = self._services.storage.batch
        for stream in turn.rejected | dict.fromkeys(turn.accepted):
            batch.incoming.set_sequence(stream.id, *stream.state(turn.wall_s))
        promise = Promise(turn.connection, turn.decided, turn.accepted, turn.arrivals)
        batch.when_durable(partial(self._durable, promise))

    def _durable(self, promise: Promise) -> None:
        """The commit has returned: now, and only now, is anything acknowledged."""
        self._promises.keep(promise)
        if self._waiting_for_disk:
            self._go_on_reading()

    def _go_on_reading(self) -> None:
        """Those that wait for the disk; or, if it is still behind, after its next commit."""
        storage = self._services.storage
        if not storage.congested:
            waiting, self._waiting_for_disk = self._waiting_for_disk, {}
            for connection in waiting:
                connection.resume_reading()
        else:
            self._ask_the_disk()

    def _ask_the_disk(self) -> None:
        """To be told of the commit of the open batch."""
        batch = self._services.storage.batch
        if self._asked is not batch:
            self._asked = batch
            batch.when_durable(self._go_on_reading)

    # The rarer turns.

    def _refuse(
        self,
        turn: _Turn,
        message: UserMessage,
        packet: bytes,
        message_class: MessageClass,
        queue: LocalQueue | None = None,
        *,
        detail: str = "",
    ) -> None:
        self._nacks.refuse(
            turn.connection, message, packet, message_class, turn.wall_ms, queue, detail=detail
        )

    def _decide_without_queue(self, turn: _Turn, message: UserMessage, packet: bytes) -> None:
        """Another queue manager asks us something, or there is no such queue."""
        user = message.user
        if self._history_queue.is_meant(message):
            self._history_queue.received(turn.connection, message)
            return
        refusal = MessageClass.NACK_BAD_DESTINATION_QUEUE
        if user.queue_manager_address not in self._our_addresses and user.flags & _HOPS == HOPS_MAX:
            # [MS-MQQB] 3.1.5.8.2: whoever would pass it on must not.
            refusal = MessageClass.NACK_HOP_COUNT_EXCEEDED
        self._refuse(turn, message, packet, refusal)

    def _acknowledged(
        self, turn: _Turn, kind: MessageKind, message: UserMessage, number: int
    ) -> None:
        """A queue manager speaks of what we have sent."""
        if kind is MessageKind.FINAL_ACK:
            turn.final_acks.append((message, number))
            return
        try:
            body = order_ack_body(message)
        except ProtocolError as error:
            self._not_understood(turn.connection, error)
        else:
            self._outgoing_release.order_acknowledged(turn.connection, message, body, turn.now)
        if number:
            turn.heard.append(number)

    def _final_acks(self, turn: _Turn) -> None:
        """They are acknowledged when what they lead to is on disk."""
        understood: list[tuple[UserMessage, FinalAckBody]] = []
        for message, _ in turn.final_acks:
            try:
                understood.append((message, final_ack_body(message)))
            except ProtocolError as error:
                self._not_understood(turn.connection, error)
        numbers = [number for _, number in turn.final_acks if number]
        self._confirmations.final_acknowledged(turn.connection, understood, numbers, turn.now)

    def _not_understood(self, connection: PeerConnection, error: ProtocolError) -> None:
        connection.sends_in_vain()
        self._services.log_limited(
            "acknowledgment_not_understood", connection.host, reason=str(error)
        )
