"""Messages of others for others: taken into an outgoing queue, and passed on.  [MS-MQQB] 3.1.5.8.2

    peer ──session──► not for us? ──► row in "NAME for others" ──(commit)──► session ack
                                             └──► next session ──session ack──► (commit) gone

A relay takes part in session acknowledgments only.  Sequences, order acks and final acks are
between source and destination; of what it passes on it changes the hop count.  A transactional
message is with its source until the destination has it, so that a relay which ends one tells the
source by a final ack and keeps nothing; of a plain one it has the only copy, and keeps it as a dead
letter.

What is for others is told by the queue manager's address in the packet.  Direct names bear none,
and are ours whatever their host part says (decision 0005): only those that [routing] relay_to names
are passed on.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING

import structlog

from protocol import (
    ORDER_QUEUE_NUMBER,
    DirectQueueName,
    FinalAckBody,
    MessageKind,
    OrderAckBody,
    PrivateQueueName,
    UserMessage,
    build_final_ack,
    build_order_ack,
    classify,
    patch_hops,
    transaction_offset,
)
from protocol.errors import InvalidName, MalformedPacket, ProtocolError
from protocol.headers import HOPS_MAX
from protocol.identifiers import NULL_GUID, guid_text
from protocol.message_class import MessageClass
from protocol.names.direct_name import DirectName, parse_wire_name
from protocol.names.format_name import PrivateName, PublicName
from protocol.patching import SEQUENCE_ID_IN_TRANSACTION, SEQUENCE_STRUCT
from qmd.core.disposition import reason_text
from qmd.core.number_ranges import HeldNumbers
from qmd.core.packet_fields import is_express, reach_time_s, source_of, time_left_s
from qmd.errors import Refusal
from qmd.events.recorder import DELIVERIES, Kind
from qmd.message.build import PRIORITY_MAX
from qmd.queues.outgoing_queue import OutgoingQueue
from storage.errors import StorageError
from storage.tables import outgoing as outgoing_rows

if TYPE_CHECKING:
    import sqlite3

    from qmd.events.recorder import Recorder
    from qmd.naming.destinations import Destinations
    from qmd.outcomes.nack import Nacks
    from qmd.outcomes.reports import Reports
    from qmd.outcomes.undeliverable import Undeliverable
    from qmd.peers.connection import PeerConnection
    from qmd.peers.link import Link
    from qmd.peers.next_hop import NextHops
    from qmd.peers.sessions import Peers
    from qmd.queues.message_id_history import KnownMessages
    from qmd.queues.outgoing_queues import Appended, OutgoingQueues
    from qmd.runtime.services import Services
    from qmd.transfer.internal_queues import InternalQueue
    from storage.engine.batch import Batch

log = structlog.get_logger()

STREAMS_MAX = 100_000  # others' sequences that are remembered with their sources
NAMES_MAX = 10_000  # destinations as peers spell them
AVOIDED_RENEWED_S = 60.0

_HOPS = 0x1F

#: OutgoingQueues queue, source, sequence id.
_Stream = tuple[OutgoingQueue, bytes, int]


class Taken(Enum):
    NOT_FOR_OTHERS = 0
    DONE = 1
    NO_ROOM = 2  # the session has to end, and the sender keeps it


class Relay:
    """What others send to others over us."""

    def __init__(
        self,
        services: Services,
        known_messages: KnownMessages,
        outgoing: OutgoingQueues,
        peers: Peers,
        recorder: Recorder,
        nacks: Nacks,
        destinations: Destinations,
        next_hops: NextHops,
        reports: Reports,
        undeliverable: Undeliverable,
    ) -> None:
        self._services = services
        self._known_messages = known_messages
        self._outgoing = outgoing
        self._peers = peers
        self._recorder = recorder
        self._nacks = nacks
        self._destinations = destinations
        self._next_hops = next_hops
        self._reports = reports
        self._undeliverable = undeliverable
        self._for = services.settings.routing.relay_for
        self._to = services.settings.routing.relay_to
        self.enabled = bool(self._for)
        self._names: dict[bytes, DirectName | None] = {}
        self._held: dict[_Stream, HeldNumbers] = {}
        self._sources: OrderedDict[int, dict[bytes, None]] = OrderedDict()  # by sequence id
        self._avoided_until: dict[tuple[OutgoingQueue, bytes], float] = {}
        self._ending: dict[OutgoingQueue, asyncio.Task[None]] = {}
        self._batch: Batch | None = None
        self._waiting: dict[OutgoingQueue, list[Appended]] = {}  # for the commit of that
        self.usage = outgoing.others_usage
        self.relayed_count = 0

    def connect(self, history_queue: InternalQueue) -> None:
        """Name the collaborators that are made after it."""
        self._history_queue = history_queue

    async def restore(self) -> None:
        """Which messages of others' sequences are here.  Before the first session."""
        for queue in self._outgoing.queues:
            if queue.for_others and queue.messages:
                for source, sequence_id, number in await self._services.storage.read(
                    partial(_positions, outgoing_id=queue.id)
                ):
                    self._hold(queue, source, sequence_id).add(number)

    # Taking in.

    def take(
        self,
        connection: PeerConnection,
        message: UserMessage,
        packet: bytes,
        wall_ms: int,
        now: float,
    ) -> Taken:
        """A message that came, if it is for others; with the open batch."""
        name = self._elsewhere(connection, message)
        if name is None:
            return Taken.NOT_FOR_OTHERS
        user, transaction = message.user, message.transaction
        source = user.source_queue_manager
        remote = connection.session.remote_id if connection.session is not None else None
        if not self._is_allowed(connection, message):
            self._refuse(
                connection,
                message,
                packet,
                wall_ms,
                MessageClass.NACK_BAD_DESTINATION_QUEUE,
                f"this queue manager passes on nothing from {connection.host}",
            )
            return Taken.DONE
        hops = user.flags & _HOPS
        if hops >= HOPS_MAX or source == self._services.id:
            came_back = "it is one of ours, and came back"
            self._refuse(
                connection,
                message,
                packet,
                wall_ms,
                MessageClass.NACK_HOP_COUNT_EXCEEDED,
                f"{HOPS_MAX} queue managers have passed it on"
                if source != self._services.id
                else came_back,
            )
            return Taken.DONE
        wall_s = wall_ms // 1000
        left_s = time_left_s(packet, reach_time_s(packet), wall_s)
        if left_s is not None and left_s < 0:
            self._refuse(
                connection, message, packet, wall_ms, MessageClass.NACK_REACH_QUEUE_TIMEOUT, ""
            )
            return Taken.DONE
        if self.usage.bytes + len(packet) > self._services.settings.routing.relay_bytes_max:
            self._services.log_limited(
                "no_room_for_others",
                "relay",
                bytes=self.usage.bytes,
                remedy="See relay_bytes_max in the section [routing] of the configuration.",
            )
            return Taken.NO_ROOM
        via = user.queue_manager_address if isinstance(name, PublicName) else None
        try:
            queue = self._outgoing.queue_for(
                name, for_acknowledgments=True, via=via, for_others=True
            )
        except Refusal as refusal:
            self._refuse(
                connection,
                message,
                packet,
                wall_ms,
                MessageClass.NACK_BAD_DESTINATION_QUEUE,
                refusal.text,
            )
            return Taken.DONE
        if remote is not None and not self._leads_on(queue, remote, now):
            self._refuse(
                connection,
                message,
                packet,
                wall_ms,
                MessageClass.NACK_HOP_COUNT_EXCEEDED,
                f"the only way from here leads back to {guid_text(remote)} at {connection.host},"
                " where it came from",
            )
            return Taken.DONE
        if remote is not None:
            self._next_hops.came(source, connection)
        if transaction is not None:
            self._remember(transaction.sequence_id, source)
            held = self._hold(queue, source, transaction.sequence_id)
            if not held.add(transaction.sequence_number):
                self._recorder.provoked(
                    Kind.DUPLICATE,
                    source,
                    user.message_number,
                    queue=queue.destination,
                    peer=connection.peer,
                )
                return Taken.DONE
        copy = bytearray(packet)
        patch_hops(copy, hops + 1)
        self._append(queue, bytes(copy), message, connection.peer, left_s)
        if transaction is None:
            self._known_messages.add(connection, source, user.message_number)
        if packet[3] & 1:
            self._reports.arrived(message, packet, self._services.storage.batch)
        return Taken.DONE

    def _append(
        self,
        queue: OutgoingQueue,
        packet: bytes,
        message: UserMessage,
        peer: str,
        left_s: int | None,
    ) -> None:
        transaction, number = message.transaction, message.user.message_number
        priority = 0 if transaction is not None else packet[2] & 7
        key = self._services.ids.next_lookup_id(PRIORITY_MAX - priority)
        batch = self._services.storage.batch
        appended = self._outgoing.append(
            queue, key, packet, batch, deadline_s=self._services.clock.deadline_s(left_s)
        )
        self.relayed_count += 1
        recorder = self._recorder
        if recorder.enabled:
            event = recorder.group(
                Kind.RELAYED,
                source_of(packet),
                queue=queue.destination,
                peer=peer,
                sequence_id=transaction.sequence_id if transaction is not None else 0,
                delivery=DELIVERIES[
                    2 if transaction is not None else 0 if is_express(packet) else 1
                ],
            )
            event.numbers.append(number)
            event.places.append(key)
            event.sizes.append(len(packet))
            if transaction is not None:
                event.positions.append(transaction.sequence_number)
        if is_express(packet):
            self._outgoing.appended(queue, [appended])
            return
        if batch is not self._batch:
            self._batch, self._waiting = batch, {}
            batch.when_durable(partial(self._durable, self._waiting))
        self._waiting.setdefault(queue, []).append(appended)

    def _durable(self, waiting: dict[OutgoingQueue, list[Appended]]) -> None:
        for queue, appended in waiting.items():
            self._outgoing.appended(queue, appended)

    def gone(self, queue: OutgoingQueue, packet: bytes) -> None:
        """A message for others has left here: it was passed on, or ended."""
        position = _position(packet)
        if position is None:
            return
        source, sequence_id, number = position
        held = self._held.get((queue, source, sequence_id))
        if held is not None:
            held.discard(number)
            if not held:
                del self._held[queue, source, sequence_id]

    def forget_avoided(self) -> None:
        """Ways back are found anew."""
        self._avoided_until.clear()

    def start(self) -> None:
        """Seek out once whom messages were passed on to: their acknowledgments may wait for us."""
        for queue in self._outgoing.queues:
            if queue.for_others:
                queue.link.connect()

    def ways_lead_back(self, link: Link) -> None:
        """Whoever could be the next hop has sent us what is for there: it goes in a circle."""
        if not self._next_hops.carriers(link):
            return  # somebody may come to us
        for queue in link.queues:
            if queue.for_others and queue.messages and queue not in self._ending:
                reason = reason_text(
                    MessageClass.NACK_HOP_COUNT_EXCEEDED,
                    queue=queue.destination,
                    detail="every way from here leads back to where it came from",
                )
                self._ending[queue] = self._services.loop.create_task(self._end_all(queue, reason))

    async def _end_all(self, queue: OutgoingQueue, reason: str) -> None:
        try:
            await self._undeliverable.end_all(
                queue, MessageClass.NACK_HOP_COUNT_EXCEEDED, reason, Kind.UNROUTABLE
            )
        except StorageError:
            pass  # the daemon stops
        finally:
            del self._ending[queue]

    def stop(self) -> None:
        for task in list(self._ending.values()):
            task.cancel()

    # Acknowledgments that were sent to us instead of to their sources.

    def pass_back(
        self,
        connection: PeerConnection,
        message: UserMessage,
        body: OrderAckBody | FinalAckBody,
        own: OutgoingQueue | None = None,
    ) -> bool:
        """An order ack or final ack of a sequence that we relay; False: it is of none.

        Who does not know of relays answers to the address that messages of direct names came from,
        and that is ours (another qmd names the source; but a final ack that it has made for an
        address may take the way over us).  A final ack tells the source; an order ack
        tells its sequence only, and where two sources, perhaps one of them we with the queue `own`,
        have one of the same number nobody is told: a wrong one would release what has not arrived.
        """
        if not self.enabled or (connection.is_qmd and isinstance(body, OrderAckBody)):
            return False
        sources = self._sources.get(body.sequence_id, {})
        if isinstance(body, FinalAckBody):
            # qmd says where to when it makes one; a moment later that may be over us.
            is_meant = connection.is_qmd and self._passes_on_for(connection)
            if body.source_queue_manager not in sources and not is_meant:
                return False
            source = body.source_queue_manager
        elif not sources:
            return False
        elif len(sources) == 1 and (own is None or own.sequence.sequence_id != body.sequence_id):
            source = next(iter(sources))
        else:
            self._services.log_limited(
                "order_ack_of_two_sources",
                connection.host,
                address=connection.host,
                sources=[guid_text(each) for each in sources],
            )
            return True
        user = message.user
        destination = PrivateQueueName(source, ORDER_QUEUE_NUMBER)
        if isinstance(body, FinalAckBody):
            packet = build_final_ack(
                source_queue_manager=user.source_queue_manager,
                destination=destination,
                message_number=user.message_number,
                sent_time=user.sent_time,
                message_class=message.properties.message_class,
                body=body,
            )
        else:
            packet = build_order_ack(
                source_queue_manager=user.source_queue_manager,
                destination=destination,
                message_number=user.message_number,
                sent_time=user.sent_time,
                body=body,
            )
        if self._known_messages.has(user.source_queue_manager, user.message_number):
            return True
        queue = self._outgoing.queue_for(
            PrivateName(source, ORDER_QUEUE_NUMBER), for_acknowledgments=True, for_others=True
        )
        left_s = int(self._services.settings.delivery.time_to_reach_queue_s)
        self._append(queue, packet, message, connection.peer, left_s)
        self._known_messages.add(connection, user.source_queue_manager, user.message_number)
        return True

    # Within.

    def _elsewhere(
        self, connection: PeerConnection, message: UserMessage
    ) -> DirectName | PrivateName | PublicName | None:
        """The destination, if it is another computer's."""
        user = message.user
        address, destination = user.queue_manager_address, user.destination_queue
        if address not in (NULL_GUID, self._services.id):
            if isinstance(destination, int):
                return PrivateName(address, destination)
            if isinstance(destination, bytes):
                return PublicName(destination)
            if isinstance(destination, DirectQueueName):
                with contextlib.suppress(InvalidName):
                    name = parse_wire_name(destination.name)
                    return name if isinstance(name, DirectName) else None
            return None
        if type(destination) is not DirectQueueName or not self._to:
            return None
        try:
            found = self._names[destination.name]
        except KeyError:
            found = self._direct(destination.name)
        if found is None or found.host.casefold() == connection.own_host:
            return None
        if self._history_queue.is_meant(message):
            return None  # we tell what we know ourselves
        return found

    def _direct(self, wire_name: bytes) -> DirectName | None:
        """A direct name, if it is for others."""
        found = None
        try:
            name = parse_wire_name(wire_name)
        except ProtocolError:
            name = None
        if (
            isinstance(name, DirectName)
            and name.transport in ("TCP", "OS")
            and not self._destinations.is_local(name)
            and name.host.casefold()
            not in map(str.casefold, self._services.settings.queue_manager.aliases)
            and any(pattern.has_host(name.host) for pattern in self._to)
        ):
            found = name
        if len(self._names) >= NAMES_MAX:
            self._names.clear()
        self._names[wire_name] = found
        return found

    def _passes_on_for(self, connection: PeerConnection) -> bool:
        return self._peers.is_listed(connection.host, self._for)

    def _is_allowed(self, connection: PeerConnection, message: UserMessage) -> bool:
        """Whether we pass on for whom it comes from; acknowledgments of what we passed on always
        find back."""
        if self._passes_on_for(connection):
            return True
        source = message.user.queue_manager_address
        kind = classify(message, source)
        return kind is not MessageKind.ORDINARY and self._next_hops.knows(source)

    def _leads_on(self, queue: OutgoingQueue, remote: bytes, now: float) -> bool:
        """Whether there is a way for it that does not lead back to `remote`."""
        if queue.link.guid == remote:
            return True
        until = self._avoided_until.get((queue, remote), 0.0)
        if until > now:
            return True
        if not queue.link.avoid(remote):
            # Without any way somebody may come to us; with one that leads back it is a loop.
            return not queue.link.has_carrier
        if len(self._avoided_until) >= STREAMS_MAX:
            self._avoided_until.clear()
        self._avoided_until[queue, remote] = now + AVOIDED_RENEWED_S
        return True

    def _refuse(
        self,
        connection: PeerConnection,
        message: UserMessage,
        packet: bytes,
        wall_ms: int,
        message_class: MessageClass,
        detail: str,
    ) -> None:
        self._nacks.refuse(
            connection, message, packet, message_class, wall_ms, detail=detail, for_others=True
        )

    def _hold(self, queue: OutgoingQueue, source: bytes, sequence_id: int) -> HeldNumbers:
        stream = queue, source, sequence_id
        held = self._held.get(stream)
        if held is None:
            held = self._held[stream] = HeldNumbers()
        return held

    def _remember(self, sequence_id: int, source: bytes) -> None:
        sources = self._sources.get(sequence_id)
        if sources is None:
            if len(self._sources) >= STREAMS_MAX:
                self._sources.popitem(last=False)
            sources = self._sources[sequence_id] = {}
        sources[source] = None


def _position(packet: bytes) -> tuple[bytes, int, int] | None:
    """Source, sequence id and number of a transactional message."""
    try:
        at = transaction_offset(packet)
    except MalformedPacket:
        return None  # the head of one with very long names: it may be taken twice
    if at is None:
        return None
    sequence_id, number, _ = SEQUENCE_STRUCT.unpack_from(packet, at + SEQUENCE_ID_IN_TRANSACTION)
    return source_of(packet), sequence_id, number


def _positions(db: sqlite3.Connection, outgoing_id: int) -> list[tuple[bytes, int, int]]:
    found = map(_position, outgoing_rows.heads(db, outgoing_id))
    return [each for each in found if each is not None]
