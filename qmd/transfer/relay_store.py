"""Relay store: the messages that this queue manager holds for other computers.

They wait in outgoing queues of their own ("NAME for others").  Of transactional ones the sequence
numbers are known here, so that a message that comes twice is held once.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from protocol import UserMessage, transaction_offset
from protocol.errors import MalformedPacket
from protocol.patching import SEQUENCE_ID_IN_TRANSACTION, SEQUENCE_STRUCT
from qmd.core.number_ranges import HeldNumbers
from qmd.core.packet_fields import is_express, source_of
from qmd.events.header import DELIVERIES, EventHeader, Kind
from qmd.message.limits import PRIORITY_MAX
from storage.tables import outgoing as outgoing_rows

if TYPE_CHECKING:
    import sqlite3

    from qmd.events.recorder import Recorder
    from qmd.peers.connection import PeerConnection
    from qmd.queues.message_id_history import KnownMessages
    from qmd.queues.outgoing_queue import OutgoingQueue
    from qmd.queues.outgoing_queues import Appended, OutgoingQueues
    from qmd.runtime.services import Services
    from storage.engine.batch import Batch


class RelayStore:
    """Puts messages for other computers into outgoing queues, and remembers which it holds."""

    def __init__(
        self,
        services: Services,
        known_messages: KnownMessages,
        outgoing: OutgoingQueues,
        recorder: Recorder,
    ) -> None:
        self._services = services
        self._known_messages = known_messages
        self._outgoing = outgoing
        self._recorder = recorder
        #: By outgoing queue, source and sequence id.
        self._held: dict[tuple[OutgoingQueue, bytes, int], HeldNumbers] = {}
        self._batch: Batch | None = None
        self._waiting: dict[OutgoingQueue, list[Appended]] = {}  # for the commit of that batch
        self.usage = outgoing.others_usage  # of all messages for other computers
        self.relayed_count = 0

    async def restore(self) -> None:
        """Read which messages of others' sequences are held.  Call it before the first session."""
        for queue in self._outgoing.queues:
            if queue.for_others and queue.messages:
                for source, sequence_id, number in await self._services.storage.read(
                    partial(_positions, outgoing_id=queue.id)
                ):
                    self._numbers(queue, source, sequence_id).add(number)

    def start(self) -> None:
        """Connect once to each destination: it may hold acknowledgments for this computer."""
        for queue in self._outgoing.queues:
            if queue.for_others:
                queue.link.connect()

    def hold(self, queue: OutgoingQueue, message: UserMessage, connection: PeerConnection) -> bool:
        """Count a transactional message as held; return False if it was held already."""
        transaction, user = message.transaction, message.user
        assert transaction is not None
        held = self._numbers(queue, user.source_queue_manager, transaction.sequence_id)
        if not held.add(transaction.sequence_number):
            self._recorder.provoked(
                EventHeader(Kind.DUPLICATE, queue=queue.destination, peer=connection.peer),
                user.source_queue_manager,
                user.message_number,
                host=connection.origin,
            )
            return False
        return True

    def put(
        self,
        queue: OutgoingQueue,
        packet: bytes,
        message: UserMessage,
        connection: PeerConnection,
        left_s: int | None,
    ) -> None:
        """Add a packet to an outgoing queue with the open batch; send it after the commit.

        `message` is the packet as it was received; left_s: the time it has to reach its queue.
        """
        transaction, number = message.transaction, message.user.message_number
        priority = 0 if transaction is not None else packet[2] & 7
        key = self._services.ids.next_lookup_id(PRIORITY_MAX - priority)
        batch = self._services.storage.batch
        appended = self._outgoing.append(
            queue, key, packet, batch, deadline_s=self._services.clock.deadline_s(left_s)
        )
        self.relayed_count += 1
        self._record(queue, packet, message, connection.peer, key)
        if is_express(packet):
            self._outgoing.appended(queue, [appended])
        else:
            if batch is not self._batch:
                self._batch, self._waiting = batch, {}
                batch.when_durable(partial(self._durable, self._waiting))
            self._waiting.setdefault(queue, []).append(appended)
        if transaction is None:
            self._known_messages.add(connection, message.user.source_queue_manager, number)

    def gone(self, queue: OutgoingQueue, packet: bytes) -> None:
        """Forget a message for another computer: it was passed on, or has become a dead letter."""
        position = _position(packet)
        if position is None:
            return
        source, sequence_id, number = position
        held = self._held.get((queue, source, sequence_id))
        if held is not None:
            held.discard(number)
            if not held:
                del self._held[queue, source, sequence_id]

    def _durable(self, waiting: dict[OutgoingQueue, list[Appended]]) -> None:
        for queue, appended in waiting.items():
            self._outgoing.appended(queue, appended)

    def _record(
        self, queue: OutgoingQueue, packet: bytes, message: UserMessage, peer: str, key: int
    ) -> None:
        recorder, transaction = self._recorder, message.transaction
        if not recorder.enabled:
            return
        event = recorder.group(
            EventHeader(
                Kind.RELAYED,
                queue=queue.destination,
                peer=peer,
                sequence_id=transaction.sequence_id if transaction is not None else 0,
                delivery=DELIVERIES[
                    2 if transaction is not None else 0 if is_express(packet) else 1
                ],
            ),
            source_of(packet),
        )
        event.numbers.append(message.user.message_number)
        event.places.append(key)
        event.sizes.append(len(packet))
        if transaction is not None:
            event.positions.append(transaction.sequence_number)

    def _numbers(self, queue: OutgoingQueue, source: bytes, sequence_id: int) -> HeldNumbers:
        stream = queue, source, sequence_id
        held = self._held.get(stream)
        if held is None:
            held = self._held[stream] = HeldNumbers()
        return held


def _position(packet: bytes) -> tuple[bytes, int, int] | None:
    """Return source, sequence id and number of a transactional message."""
    try:
        at = transaction_offset(packet)
    except MalformedPacket:
        return None  # the head of a packet with very long names: it may be held twice
    if at is None:
        return None
    sequence_id, number, _ = SEQUENCE_STRUCT.unpack_from(packet, at + SEQUENCE_ID_IN_TRANSACTION)
    return source_of(packet), sequence_id, number


def _positions(db: sqlite3.Connection, outgoing_id: int) -> list[tuple[bytes, int, int]]:
    found = map(_position, outgoing_rows.heads(db, outgoing_id))
    return [each for each in found if each is not None]
