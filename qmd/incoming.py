"""What arrives from peers: accepted, refused, or known already.  [MS-MQQB] 3.1.5.8

The order of the steps is that of chapter 3.1.5.8 as `docs/protocol-notes.md`
reads it.  Whatever becomes of a message, its number is acknowledged only when
the disk holds the decision:

    decide ──► rows into the open batch ──► (commit) ──► acknowledge, wake readers
"""

from __future__ import annotations

from collections import OrderedDict
from functools import partial
from typing import TYPE_CHECKING, Any

import structlog

from protocol import (
    ORDER_QUEUE_NUMBER,
    DirectQueueName,
    FinalAckBody,
    MessageKind,
    PrivateQueueName,
    UserMessage,
    classify,
    final_ack_body,
    order_ack_body,
    order_queue_name,
)
from protocol.errors import ProtocolError
from protocol.headers import HOPS_MAX
from protocol.identifiers import NULL_GUID, guid_text, message_id_text
from protocol.message_class import MessageClass
from qmd.core.acknowledgment import POSITIVE_ARRIVAL, order_ack_packet
from qmd.core.fate import consequences, reason_text
from qmd.core.sequence import IncomingSequence, OrderAckSettings
from qmd.core.session import MessageReceived
from qmd.core.stored_packet import reach_time_s, receive_time_s, time_left_s
from qmd.frames import StoredMessage
from qmd.recorder import Kind, bear_correlation
from qmd.relaying import Taken
from storage import sequences as sequence_rows
from storage.keys import LOOKUP_BITS

if TYPE_CHECKING:
    from qmd.connection import PeerConnection
    from qmd.local_queue import LocalQueue
    from qmd.manager import QueueManager
    from storage.batch import Batch
    from storage.events import Event

log = structlog.get_logger()

STREAMS_MAX = 100_000  # (source, queue) whose sequences are remembered
NAMES_MAX = 100  # by which one source knows one queue
REFUSED_VAIN = 8  # a refusal is worth as many duplicates: it is written to disk
WIRE_NAMES_MAX = 10_000  # destinations as peers spell them, remembered with their queue

_PRIVATE = 3
_NO_CORRELATION = bytes(20)
_EXPRESS_BITS = 0x60
_HOPS = 0x1F
_JOURNALED_BITS = 0x300  # UserHeader.Flags.JN, JP: its source waits to hear of its receipt
_TRACING_BIT = 0x01  # TR of BaseHeader.Flags, in its second byte


#: By which a source knows our queue, as its packets say it: the type of the format name, and the
#: bytes of a direct name, a GUID, or the number of a private queue.
_Name = tuple[int, bytes | int]
_NOT_KNOWN: _Name = (0, b"")  # of a stream that an older version has begun


class IncomingStream:
    """A transactional sequence from one source to one of our queues, by one name of that.

    Whoever sends to a queue by two names has two outgoing queues for it, and a sequence for each:
    they know nothing of each other.  [MS-MQDMPR] 3.1.1.5  One sequence is one stream, however often
    its source spells the name anew.
    """

    __slots__ = (
        "by_direct_name",
        "id",
        "last_host",
        "last_message",
        "name",
        "queue",
        "return_path",
        "sequence",
        "source",
    )

    def __init__(
        self, id: int, source: bytes, queue: LocalQueue, name: _Name, sequence: IncomingSequence
    ) -> None:
        self.id = id
        self.source = source
        self.queue = queue
        self.name = name
        self.sequence = sequence
        self.return_path: PeerConnection | None = None  # where its last message came from
        self.last_message = 0  # the number of the message that was accepted last; 0: not known
        self.last_host = ""  # and where that came from
        self.by_direct_name = True  # so order acks have one as well, [MS-MQQB] 3.1.7.17


class Incoming:
    """Takes over what peers send."""

    def __init__(self, manager: QueueManager) -> None:
        self._manager = manager
        delivery = manager.settings.delivery
        self._history_max = delivery.message_id_history_entries
        self._history_age_s = delivery.message_id_history_age_s
        self._history: OrderedDict[tuple[bytes, int], float] = OrderedDict()
        self._queues_by_wire_name: dict[bytes, LocalQueue] = {}
        self._streams: dict[tuple[bytes, int, _Name], IncomingStream] = {}
        self._names: dict[tuple[bytes, int], list[_Name]] = {}  # that a source has for a queue
        self._next_stream_id = 1
        self._waiting_for_disk: dict[PeerConnection, None] = {}
        self._asked: Batch | None = None  # the last one after whose commit those may go on
        self.sequence_settings = OrderAckSettings(
            timeout_s=delivery.order_ack_timeout_s,
            delay_max_s=delivery.order_ack_delay_max_s,
            at_once=delivery.acknowledge_at_once,
        )
        self.received_count = 0
        self.duplicate_count = 0
        self.rejected_count = 0
        self.refused_count = 0

    @property
    def streams(self) -> list[IncomingStream]:
        return list(dict.fromkeys(self._streams.values()))

    # Start-up.

    def restore_stream(
        self,
        id: int,
        source: bytes,
        queue: LocalQueue,
        stored_name: bytes,
        sequence_id: int,
        number: int,
    ) -> None:
        sequence = IncomingSequence(sequence_id, number, settings=self.sequence_settings)
        name = _read_name(stored_name)
        self._know(source, queue, name, IncomingStream(id, source, queue, name, sequence))
        self._next_stream_id = max(self._next_stream_id, id + 1)

    def reserve_stream_id(self, id: int) -> None:
        """A stream to a queue that is no more: its row stays, and so does its id."""
        self._next_stream_id = max(self._next_stream_id, id + 1)

    def restore_history(self, source: bytes, number: int, at_s: float) -> None:
        self._history[source, number] = at_s

    def queues_changed(self) -> None:
        """A queue came or went: what names stand for has to be found out anew."""
        self._queues_by_wire_name.clear()

    def forget_connection(self, connection: PeerConnection) -> None:
        """It has ended: acknowledgments find another way, and nothing keeps it in memory."""
        for stream in connection.streams:
            if stream.return_path is connection:
                stream.return_path = None

    def forget_queue(self, queue: LocalQueue) -> None:
        for key in [key for key in self._streams if key[1] == queue.id]:
            del self._streams[key]
        for source_and_queue in [key for key in self._names if key[1] == queue.id]:
            del self._names[source_and_queue]

    # The hot path.

    def receive(
        self, connection: PeerConnection, messages: list[MessageReceived], now: float
    ) -> None:
        """Messages of one session, in the order of their arrival."""
        manager = self._manager
        storage = manager.storage
        batch = storage.batch
        wall = manager.environment.time()
        wall_s, wall_ms = int(wall), int(wall * 1000)
        now_s = manager.clock.now_s
        own_id, by_wire_name = manager.id, self._queues_by_wire_name
        ours = (NULL_GUID, own_id)  # direct names bear no address, [MS-MQQB] 3.1.5.8.5
        decided: list[int] = []  # recoverable numbers of this session
        heard: list[int] = []  # those of order acks
        final_acks: list[tuple[UserMessage, int]] = []  # with those that they have
        arrivals: dict[LocalQueue, list[StoredMessage]] = {}
        accepted: dict[IncomingStream, tuple[int, int]] = {}
        self.received_count += len(messages)
        recorder = manager.recorder
        recording, peer = recorder.enabled, connection.peer
        told: Event | None = None
        told_queue: LocalQueue | None = None
        told_source, told_sequence, told_stored = b"", 0, 0
        relaying = manager.relaying if manager.relaying.enabled else None
        assert connection.session is not None
        remote_id = connection.session.remote_id

        for message, packet, recoverable_number in messages:
            if recoverable_number:
                decided.append(recoverable_number)
            user = message.user
            message_class = message.properties.message_class
            if message_class and (kind := classify(message, own_id)) is not MessageKind.ORDINARY:
                if recoverable_number:
                    decided.pop()
                if kind is MessageKind.FINAL_ACK:
                    final_acks.append((message, recoverable_number))
                    continue
                self._order_ack(connection, message, now)
                if recoverable_number:
                    heard.append(recoverable_number)
                continue

            transaction = message.transaction
            source, flags = user.source_queue_manager, user.flags
            if transaction is None and self._is_duplicate(source, user.message_number, now):
                self.duplicate_count += 1
                connection.sends_in_vain()
                recorder.provoked(Kind.DUPLICATE, source, user.message_number, peer=peer)
                continue
            size = len(packet)
            if (full := manager.is_full(size, express=not flags & _EXPRESS_BITS)) is not None:
                if manager.asking.is_meant(message):  # it needs no room
                    manager.asking.received(connection, message)
                    continue
                # The sender keeps what is not acknowledged: [MS-MQQB] 3.1.5.8.8.
                manager.log_limited("session_closed_for_lack_of_room", "room", reason=full.text)
                if recoverable_number:
                    decided.pop()
                self._finish(connection, decided, arrivals, accepted, wall_s)
                connection.drop(f"no room for messages: {full.text}")
                return
            left_s = time_left_s(packet, reach_time_s(packet), wall_s)
            too_late = left_s is not None and left_s < 0
            if too_late and transaction is None:
                self.refuse(
                    connection, message, packet, MessageClass.NACK_REACH_QUEUE_TIMEOUT, wall_ms
                )
                continue

            if relaying is not None:
                taken = relaying.take(connection, message, packet, wall_ms, now)
                if taken is Taken.DONE:
                    continue
                if taken is Taken.NO_ROOM:
                    if recoverable_number:
                        decided.pop()
                    self._finish(connection, decided, arrivals, accepted, wall_s)
                    connection.drop("no room for messages to others")
                    return
            if source != remote_id:
                manager.routing.came(source, connection)
            destination = user.destination_queue
            if user.queue_manager_address not in ours:
                queue = None  # we are no routing server
            elif type(destination) is DirectQueueName:
                try:
                    queue = by_wire_name[destination.name]
                except KeyError:
                    queue = self._find_direct(destination.name)
            else:
                queue = self._find(message)
            if queue is None or queue.is_read_only:
                if manager.asking.is_meant(message):
                    manager.asking.received(connection, message)
                    continue
                refusal = MessageClass.NACK_BAD_DESTINATION_QUEUE
                if user.queue_manager_address not in ours and flags & _HOPS == HOPS_MAX:
                    # [MS-MQQB] 3.1.5.8.2: whoever would pass it on must not.
                    refusal = MessageClass.NACK_HOP_COUNT_EXCEEDED
                self.refuse(connection, message, packet, refusal, wall_ms)
                continue
            if message.security is not None and message.security.flags.body_encrypted:
                # [MS-MQQB] 3.1.5.8.3: we have no key that anybody could have encrypted it with.
                self.refuse(
                    connection,
                    message,
                    packet,
                    MessageClass.NACK_BAD_ENCRYPTION,
                    wall_ms,
                    queue,
                )
                continue
            if transaction is not None:
                if not queue.transactional:
                    self.refuse(
                        connection,
                        message,
                        packet,
                        MessageClass.NACK_NOT_TRANSACTIONAL_QUEUE,
                        wall_ms,
                        queue,
                    )
                    continue
            elif queue.transactional:
                self.refuse(
                    connection,
                    message,
                    packet,
                    MessageClass.NACK_NOT_TRANSACTIONAL_MESSAGE,
                    wall_ms,
                    queue,
                )
                continue
            has_room = queue.has_room(size)
            if transaction is not None:
                name: Any = (flags >> 10 & 7, getattr(destination, "name", destination))
                known = self._streams.get((source, queue.id, name))
                if known is None and (reached := self._too_many(source, queue)) is not None:
                    event, limit = reached
                    manager.log_limited(
                        event,
                        connection.host,
                        address=connection.host,
                        source=guid_text(source),
                        queue=queue.name,
                        limit=limit,
                    )
                    decided.pop()
                    self._finish(connection, decided, arrivals, accepted, wall_s)
                    connection.drop(
                        f"too many names of {queue.name} by one source"
                        if limit == NAMES_MAX
                        else "too many sources of transactional messages"
                    )
                    return
                stream = known or self._new_stream(source, queue, name, transaction.sequence_id)
                if stream.return_path is not connection:
                    stream.return_path = connection
                    connection.streams[stream] = None
                stream.by_direct_name = type(destination) is DirectQueueName
                sequence = stream.sequence
                position = (
                    transaction.sequence_id,
                    transaction.sequence_number,
                    transaction.previous_number,
                )
                # A duplicate is one, however late, and whether or not there is room.
                is_taken = has_room and not too_late
                if (is_taken or not sequence.is_next(*position)) and not sequence.offer(
                    *position, now
                ):
                    self.rejected_count += 1
                    connection.sends_in_vain()
                    if stream.last_message not in (0, user.message_number) and position[:2] == (
                        sequence.accepted_id,
                        sequence.accepted_number,
                    ):
                        reason = manager.identities.contradiction(
                            connection, source, queue.name, stream.last_host
                        )
                        if recoverable_number:
                            decided.pop()
                        self._finish(connection, decided, arrivals, accepted, wall_s)
                        connection.drop(reason)
                        return
                    self._tell_rejected(stream, position, user.message_number, peer)
                    self.arm_order_ack(stream)
                    continue
                if too_late:
                    self.refuse(
                        connection, message, packet, MessageClass.NACK_REACH_QUEUE_TIMEOUT, wall_ms
                    )
                    continue
            if not has_room:
                self.refuse(
                    connection,
                    message,
                    packet,
                    MessageClass.NACK_QUEUE_EXCEED_QUOTA,
                    wall_ms,
                    queue,
                )
                continue
            if transaction is not None:
                accepted[stream] = (transaction.sequence_id, transaction.sequence_number)
                stream.last_message, stream.last_host = user.message_number, connection.host
                if flags & _JOURNALED_BITS:
                    manager.acknowledging.expect_final_ack(packet)
                level = 7
            else:
                level = 7 - (message.base.flags & 7)

            lookup_id = manager.next_lookup_id(level)
            left_s = time_left_s(packet, receive_time_s(packet), wall_s)
            expires_at_s = manager.clock.deadline_s(left_s)
            stored = StoredMessage(lookup_id, wall_ms, packet, expires_at_s=expires_at_s)
            queue.messages += 1
            queue.grow(size)
            if recording:
                sequence_id = transaction.sequence_id if transaction is not None else 0
                is_stored = flags & _EXPRESS_BITS
                if (
                    told is None
                    or told_queue is not queue
                    or told_source != source
                    or told_sequence != sequence_id
                    or told_stored != is_stored
                ):
                    told_queue, told_source = queue, source
                    told_sequence, told_stored = sequence_id, is_stored
                    told = recorder.group(
                        Kind.ACCEPTED,
                        source,
                        queue=queue.name,
                        peer=peer,
                        sequence_id=sequence_id,
                        delivery="transactional"
                        if transaction is not None
                        else "recoverable"
                        if is_stored
                        else "express",
                    )
                told.numbers.append(user.message_number)
                told.places.append(lookup_id)
                told.sizes.append(size)
                if transaction is not None:
                    told.positions.append(transaction.sequence_number)
                if message.properties.correlation_id != _NO_CORRELATION:
                    bear_correlation(told, message.properties.correlation_id)
            if flags & _EXPRESS_BITS:
                batch.insert_message(
                    queue.id << LOOKUP_BITS | lookup_id, packet, wall_ms, expires_at_s
                )
                if transaction is None:
                    self._remember(source, user.message_number, now)
                    batch.remember_message_id(source, user.message_number, now_s)
                queue_arrivals = arrivals.get(queue)
                if queue_arrivals is None:
                    arrivals[queue] = [stored]
                else:
                    queue_arrivals.append(stored)
            else:
                self._remember(source, user.message_number, now)
                # Not waited for: a reader's removal is a later commit, and holds this row too.
                batch.remember_message_id(source, user.message_number, now_s)
                queue.express_arrived(stored)
                manager.reading.serve(queue)
            if packet[3] & _TRACING_BIT:
                manager.tracing.arrived(message, packet, batch)
            if message.properties.flags & POSITIVE_ARRIVAL:
                manager.acknowledging.to_application(message, MessageClass.ACK_REACH_QUEUE, batch)
        if final_acks:
            self._final_acks(connection, final_acks, now)
        if heard:
            manager.releasing.when_released(partial(connection.mark_stored, heard))
        self._finish(connection, decided, arrivals, accepted, wall_s)
        if storage.congested:
            # Who waits for no answer, as with express messages that are refused, waits here too.
            connection.pause_reading()
            self._waiting_for_disk[connection] = None
            self._ask_the_disk()

    def _finish(
        self,
        connection: PeerConnection,
        decided: list[int],
        arrivals: dict[LocalQueue, list[StoredMessage]],
        accepted: dict[IncomingStream, tuple[int, int]],
        wall_s: int,
    ) -> None:
        """Hand over to the disk; acknowledge and deliver when it has spoken."""
        if not (decided or arrivals or accepted):
            return
        batch = self._manager.storage.batch
        for stream, (sequence_id, number) in accepted.items():
            batch.set_incoming_sequence(stream.id, sequence_id, number, wall_s)
        batch.when_durable(partial(self._durable, connection, decided, arrivals, accepted))

    def _durable(
        self,
        connection: PeerConnection,
        decided: list[int],
        arrivals: dict[LocalQueue, list[StoredMessage]],
        accepted: dict[IncomingStream, tuple[int, int]],
    ) -> None:
        """The commit has returned: now, and only now, is anything acknowledged."""
        manager = self._manager
        now = manager.loop.time()
        if decided:
            connection.mark_stored(decided)
        for stream, (sequence_id, number) in accepted.items():
            if stream.sequence.mark_durable(sequence_id, number, now):
                self._owe_order_ack(stream)
            else:
                self.arm_order_ack(stream)
        for queue, messages in arrivals.items():
            queue.arrived(messages)
            manager.reading.serve(queue)
        if self._waiting_for_disk:
            self._go_on_reading()

    def _go_on_reading(self) -> None:
        """Those that wait for the disk; or, if it is still behind, after its next commit."""
        storage = self._manager.storage
        if not storage.congested:
            waiting, self._waiting_for_disk = self._waiting_for_disk, {}
            for connection in waiting:
                connection.resume_reading()
        else:
            self._ask_the_disk()

    def _ask_the_disk(self) -> None:
        """To be told of the commit of the open batch."""
        batch = self._manager.storage.batch
        if self._asked is not batch:
            self._asked = batch
            batch.when_durable(self._go_on_reading)

    # Order acks.

    def _owe_order_ack(self, stream: IncomingStream) -> None:
        connection = stream.return_path or self._manager.routing.session_towards(stream.source)
        if connection is None:
            return  # the sender sends again, and is answered then
        connection.owed_order_acks[stream] = None
        connection.flush_soon()

    def send_owed_acks(self, connection: PeerConnection) -> None:
        """As many as the window lets through; only the newest position of a stream counts."""
        manager = self._manager
        session, now = connection.session, manager.loop.time()
        assert session is not None
        owed = connection.owed_order_acks
        while owed and connection.room > 0:
            stream = next(iter(owed))
            del owed[stream]
            packet = order_ack_packet(
                stream.sequence.durable,
                destination=order_queue_name(connection.host)
                if stream.by_direct_name and stream.source == session.remote_id
                # Over others it finds back by the GUID of the source.
                else PrivateQueueName(stream.source, ORDER_QUEUE_NUMBER),
                own_id=manager.id,
                message_number=manager.next_message_number(),
                sent_time=int(manager.environment.time()),
            )
            session.send(packet, recoverable=True, token=None, now=now)
        final_acks = connection.owed_final_acks
        while final_acks and connection.room > 0:
            session.send(final_acks.popleft(), recoverable=True, token=None, now=now)
        express = connection.owed_express
        while express and connection.room > 0:
            session.send(express.popleft(), recoverable=False, token=None, now=now)

    def arm_order_ack(self, stream: IncomingStream) -> None:
        wake_at = stream.sequence.next_timer()
        if wake_at is not None:
            self._manager.timers.at(wake_at, stream, self._order_ack_due)

    def _order_ack_due(self, stream: IncomingStream) -> None:
        if stream.sequence.handle_timer(self._manager.loop.time()):
            self._owe_order_ack(stream)
        self.arm_order_ack(stream)

    # The rarer turns.

    def _order_ack(self, connection: PeerConnection, message: UserMessage, now: float) -> None:
        """For what we have sent."""
        try:
            body = order_ack_body(message)
        except ProtocolError as error:
            self._not_understood(connection, error)
        else:
            self._manager.releasing.order_acknowledged(connection, message, body, now)

    def _final_acks(
        self, connection: PeerConnection, messages: list[tuple[UserMessage, int]], now: float
    ) -> None:
        """Likewise; they are acknowledged when what they lead to is on disk."""
        understood: list[tuple[UserMessage, FinalAckBody]] = []
        for message, _ in messages:
            try:
                understood.append((message, final_ack_body(message)))
            except ProtocolError as error:
                self._not_understood(connection, error)
        numbers = [number for _, number in messages if number]
        self._manager.confirmations.final_acknowledged(connection, understood, numbers, now)

    def _not_understood(self, connection: PeerConnection, error: ProtocolError) -> None:
        connection.sends_in_vain()
        self._manager.log_limited(
            "acknowledgment_not_understood", connection.host, reason=str(error)
        )

    def is_known(self, source: bytes, number: int) -> bool:
        """Whether a plain message is in the history."""
        return (source, number) in self._history

    def remember(self, source: bytes, number: int, now: float) -> None:
        """A plain message was taken, with the open batch."""
        self._remember(source, number, now)
        self._manager.storage.batch.remember_message_id(source, number, self._manager.clock.now_s)

    def _is_duplicate(self, source: bytes, number: int, now: float) -> bool:
        """[MS-MQQB] 3.1.5.8.1; a duplicate keeps its entry young."""
        key = (source, number)
        if key not in self._history:
            return False
        self._history[key] = now
        self._history.move_to_end(key)
        return True

    def _remember(self, source: bytes, number: int, now: float) -> None:
        history = self._history
        history[source, number] = now
        if len(history) > self._history_max:
            history.popitem(last=False)

    def forget_old(self, now: float) -> None:
        """[MS-MQQB] 3.1.6.7: entries that are old enough are dropped."""
        history = self._history
        while history and next(iter(history.values())) < now - self._history_age_s:
            history.popitem(last=False)

    def _find_direct(self, wire_name: bytes) -> LocalQueue | None:
        queue = self._manager.routes.queue_by_wire_name(wire_name)
        if queue is not None:  # names of nothing may be long, and there is no end of them
            if len(self._queues_by_wire_name) >= WIRE_NAMES_MAX:
                self._queues_by_wire_name.clear()
            self._queues_by_wire_name[wire_name] = queue
        return queue

    def _find(self, message: UserMessage) -> LocalQueue | None:
        """A destination that is no direct name: a queue's number or GUID here, or nothing."""
        user = message.user
        if user.flags >> 10 & 7 == _PRIVATE and isinstance(user.destination_queue, int):
            return self._manager.queues_by_id.get(user.destination_queue)
        if isinstance(user.destination_queue, bytes):  # a public queue, by its GUID
            return self._manager.routes.queue_by_guid(user.destination_queue)
        return None

    def _too_many(self, source: bytes, queue: LocalQueue) -> tuple[str, int] | None:
        """Which limit keeps a further stream from being remembered."""
        if len(self._names.get((source, queue.id), ())) >= NAMES_MAX:
            return "too_many_names_of_a_queue", NAMES_MAX
        return ("too_many_streams", STREAMS_MAX) if len(self._streams) >= STREAMS_MAX else None

    def _know(self, source: bytes, queue: LocalQueue, name: _Name, stream: IncomingStream) -> None:
        self._streams[source, queue.id, name] = stream
        self._names.setdefault((source, queue.id), []).append(name)

    def _new_stream(
        self, source: bytes, queue: LocalQueue, name: _Name, sequence_id: int
    ) -> IncomingStream:
        batch = self._manager.storage.batch
        names = self._names.get((source, queue.id), ())
        others = list(dict.fromkeys(self._streams[source, queue.id, each] for each in names))
        nameless = next((each for each in others if each.name == _NOT_KNOWN), None)
        for stream in others:
            if stream.sequence.accepted_id == sequence_id:  # it is spelled anew
                self._know(source, queue, name, stream)
                if stream is nameless:
                    self._name(stream, name)
                return stream
        if nameless is not None:
            if nameless.sequence.accepted_id < sequence_id:
                self._know(source, queue, name, nameless)
                self._name(nameless, name)
            # An earlier sequence may be what an older version has taken under another name, before
            # this one: as long as that is open, it is no new one, and is rejected as then.
            return nameless
        sequence = IncomingSequence(settings=self.sequence_settings)
        stream = IncomingStream(self._next_stream_id, source, queue, name, sequence)
        self._next_stream_id += 1
        self._know(source, queue, name, stream)
        batch.add_incoming_sequence(
            stream.id,
            source,
            queue.id,
            _write_name(name),
            int(self._manager.environment.time()),
        )
        return stream

    def _name(self, stream: IncomingStream, name: _Name) -> None:
        """A stream that an older version has begun: now it is known by what its source knows it."""
        stream.name = name
        self._manager.storage.batch.run(
            partial(sequence_rows.set_name, incoming_id=stream.id, name=_write_name(name))
        )

    def _tell_rejected(
        self, stream: IncomingStream, position: tuple[int, int, int], number: int, peer: str
    ) -> None:
        """A transactional message that is not the next one: it was here, or it came too early."""
        sequence_id, sequence_number, _ = position
        sequence = stream.sequence
        accepted = (sequence.accepted_id, sequence.accepted_number)
        was_here = (sequence_id, sequence_number) <= accepted
        self._manager.recorder.provoked(
            Kind.DUPLICATE if was_here else Kind.OUT_OF_ORDER,
            stream.source,
            number,
            queue=stream.queue.name,
            peer=peer,
        )

    def refuse(
        self,
        connection: PeerConnection,
        message: UserMessage,
        packet: bytes,
        message_class: MessageClass,
        wall_ms: int,
        queue: LocalQueue | None = None,
        *,
        detail: str = "",
        for_others: bool = False,
    ) -> None:
        """The message ends here; its sender and our dead-letter queue are told why.

        `for_others`: it was to be passed on; the source of a transactional one keeps it then.
        """
        manager = self._manager
        source, number = message.user.source_queue_manager, message.user.message_number
        self.refused_count += 1
        connection.sends_in_vain(REFUSED_VAIN)
        result = consequences(
            message,
            message_class,
            at_source=False,
            insecure_nacks=manager.settings.delivery.insecure_nacks,
        )
        if for_others and message.transaction is not None:
            result = result._replace(dead_letter=None)
        target = queue.format_name if queue is not None else manager.routes.describe(message)
        if queue is not None and message_class == MessageClass.NACK_QUEUE_EXCEED_QUOTA:
            detail = f"{queue.bytes} of {queue.quota_bytes} bytes are used, it needs {len(packet)}"
        reason = reason_text(message_class, queue=target, detail=detail)
        batch = manager.storage.batch
        # A refusal is final: the same message again is neither kept nor answered a second time.
        # Only its sending queue manager, which may not have heard of it, is told again.
        known = (source, number) in self._history
        if not known:
            self._remember(source, number, manager.loop.time())
            batch.remember_message_id(source, number, manager.clock.now_s)
            manager.recorder.record(
                Kind.REFUSED,
                [packet],
                queue=target if queue is None else queue.name,
                peer=connection.peer,
                message_class=message_class,
                reason=reason,
            )
        else:
            manager.recorder.provoked(Kind.DUPLICATE, source, number, peer=connection.peer)
        if result.dead_letter is not None and not known:
            manager.endings.dead_letter(
                packet,
                message_class,
                f"{reason} It came from {guid_text(source)} at {connection.host}.",
                wall_ms,
                target if queue is None else queue.name,
            )
        if result.acknowledgment is not None and not known:
            manager.acknowledging.to_application(message, result.acknowledgment, batch)
        if result.final_ack is not None:
            final_ack = manager.acknowledging.final_ack(
                message,
                result.final_ack,
                address=connection.host,
                is_beside=connection.session is not None and connection.session.remote_id == source,
            )
            if not known:
                manager.recorder.record(
                    Kind.FINAL_ACK_SENT,
                    [packet],
                    queue=target if queue is None else queue.name,
                    peer=connection.peer,
                    message_class=result.final_ack,
                )
            # Not before the disk holds what was kept of the message.
            batch.when_durable(partial(connection.owe_final_ack, final_ack))
        manager.log_limited(
            "message_refused",
            connection.host,
            message_id=message_id_text(source, number),
            address=connection.host,
            reason=reason,
            code=MessageClass.name_of(message_class),
        )


def _write_name(name: _Name) -> bytes:
    """As it is stored: a byte with its type, and what follows."""
    kind, what = name
    return bytes([kind]) + (what if isinstance(what, bytes) else b"%d" % what)


def _read_name(stored: bytes) -> _Name:
    if not stored:
        return _NOT_KNOWN
    kind, what = stored[0], stored[1:]
    return kind, int(what) if kind == _PRIVATE else what
