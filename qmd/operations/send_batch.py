"""Messages of one request in the open batch: rows, sequence states and events.

    one, copies ──► end ──► (commit) ──► answer the application, then deliver and transmit

The copies of a message to several queues (`send_copies.py`) are in the batch of the other messages:
no commit has only some of them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from qmd.control_protocol.messages import EXPRESS, TRANSACTIONAL, NewMessage, StoredMessage
from qmd.core.acknowledgment import POSITIVE_ARRIVAL
from qmd.core.packet_fields import receive_time_s
from qmd.events.recorder import add_correlation, add_trace
from qmd.message.limits import PRIORITY_MAX
from qmd.message.prepared import UNPLACED, placed
from qmd.message.shared_packet import Held, Packet, SharedMessage, SharedPacket, head_of
from qmd.operations.packet_composer import Deadlines
from qmd.properties.trace import trace_of
from qmd.queues.local_queue import LocalQueue
from qmd.queues.outgoing_queue import OutgoingQueue
from qmd.queues.outgoing_queues import Appended
from qmd.queues.put import put, put_express

if TYPE_CHECKING:
    from qmd.naming.destinations import Route
    from qmd.operations.packet_composer import Bounds, PacketComposer, Position
    from qmd.operations.send_outcomes import SendOutcomes
    from qmd.operations.sent_events import SentEvents
    from qmd.queues.outgoing_queues import OutgoingQueues
    from qmd.runtime.services import Services


class BatchSender:
    """The messages of one request, on their way into the open batch."""

    def __init__(
        self,
        services: Services,
        composer: PacketComposer,
        outcomes: SendOutcomes,
        outgoing: OutgoingQueues,
        events: SentEvents,
        token: bytes,
        authenticated: Callable[[bytes], bytes],
        verified_style: Callable[[NewMessage, LocalQueue, int], int],
    ) -> None:
        """`authenticated` marks the signed packet of a message to a queue of this host.

        `verified_style(new, queue, delivery)` returns the style of a signature that was verified
        just now, 0 if it was not.
        """
        self._services = services
        self._composer = composer
        self._outcomes = outcomes
        self._outgoing = outgoing
        self.events = events
        self._token = token
        self._authenticated = authenticated
        self._verified_style = verified_style
        self.batch = services.storage.batch
        wall = services.environment.time()
        self.wall_s, self.wall_ms = int(wall), int(wall * 1000)
        #: Messages that are delivered, or transmitted, after the commit.
        self.to_queues: dict[LocalQueue, list[Held]] = {}
        self.to_send: dict[OutgoingQueue, list[Appended]] = {}
        self.in_sequences: dict[OutgoingQueue, None] = {}  # those with transactional messages
        self.has_delayed = False  # the batch stores messages that are sent later
        #: The numbers of messages of which another part sends the acknowledgment of arrival.
        self.answered: Collection[int] = ()
        self._express: dict[OutgoingQueue, list[Appended]] = {}
        self._timed: NewMessage | None = None  # the message that `deadlines` are about
        #: Of the last message that went to a queue elsewhere, and of all of its copies.
        self.deadlines = Deadlines(None, None, discard=False)

    def one(
        self,
        new: NewMessage,
        route: Route,
        delivery: int,
        number: int,
        bounds: Bounds,
        prepared: bytes | None = None,
    ) -> None:
        """Put a message to one queue into the batch; `prepared` is its packet, without a place."""
        key, position = self.position(new, route, delivery)
        packet = (
            self.packet(new, route, delivery, number, bounds, position)
            if prepared is None
            else placed(prepared, position)
        )
        self.put(new, route, delivery, number, packet, key, position)

    def prepared(
        self, new: NewMessage, route: Route, delivery: int, number: int, bounds: Bounds
    ) -> bytes:
        """Return the packet of a message to one queue, which gets its place later."""
        position: Position | None = None
        if delivery == TRANSACTIONAL:
            position = UNPLACED if isinstance(route, OutgoingQueue) else (0, 0)
        return self.packet(new, route, delivery, number, bounds, position)

    def packet(
        self,
        new: NewMessage,
        route: Route,
        delivery: int,
        number: int,
        bounds: Bounds,
        position: Position | None,
    ) -> bytes:
        """Return the packet of a message to one queue."""
        style = 0
        if new.signature and isinstance(route, LocalQueue):
            style = self._verified_style(new, route, delivery)
        packet = self._composer.compose(
            *(new, self.wall_s, route.address, number, delivery, position, bounds),
            signature_type=style,
        )
        return packet if style else self.marked(new, route, packet)

    def marked(self, new: NewMessage, route: Route, packet: bytes) -> bytes:
        """Return a packet with the mark of its verified signature, if its queue is one of here."""
        is_marked = bool(new.signature) and isinstance(route, LocalQueue)
        return self._authenticated(packet) if is_marked else packet

    def position(self, new: NewMessage, route: Route, delivery: int) -> tuple[int, Position | None]:
        """Allocate the place of a message in its queue: its key, and its place in the sequence."""
        if delivery != TRANSACTIONAL:
            return self._services.ids.next_lookup_id(PRIORITY_MAX - new.priority), None
        if isinstance(route, OutgoingQueue):
            sequence_number, key = route.next_key()
            self.in_sequences[route] = None
            return key, (route.sequence.sequence_id, sequence_number)
        return self._services.ids.next_lookup_id(PRIORITY_MAX), (0, 0)

    def put(
        self,
        new: NewMessage,
        route: Route,
        delivery: int,
        number: int,
        packet: Packet,
        key: int,
        position: Position | None,
        *,
        is_copy: bool = False,
    ) -> None:
        """Put a packet into its queue with the open batch, and record that it was sent."""
        batch = self.batch
        if isinstance(route, OutgoingQueue):
            if new is not self._timed:
                self._timed, self.deadlines = new, self._composer.deadlines(new, packet)
            reach_by_s, confirm_by_s, discard = self.deadlines
            if delivery != TRANSACTIONAL:
                confirm_by_s, discard = None, False
            appended = self._outgoing.add(
                route, key, packet, batch, reach_by_s, confirm_by_s, discard=discard
            )
            kind = self._express if delivery == EXPRESS else self.to_send
            waiting = kind.get(route)
            if waiting is None:
                kind[route] = [appended]
            else:
                waiting.append(appended)
        else:
            self._put_here(route, delivery, packet, key)
        if new.dead_letter_queue:
            self._outcomes.name_dead_letter_queue(new, route, number, delivery, key, batch)
        events = self.events
        if events.enabled:
            event = events.of_copy(route, delivery) if is_copy else events.of(route, delivery)
            event.numbers.append(number)
            event.sizes.append(len(packet))
            event.places.append(key)
            if position is not None and position[0]:
                event.positions.append(position[1])
            if new.correlation_id:
                add_correlation(event, new.correlation_id)
            if new.extension and (trace := trace_of(new.extension)):
                add_trace(event, trace)
        if (
            (new.report_queue or new.acknowledge & POSITIVE_ARRIVAL)
            and isinstance(route, LocalQueue)
            and number not in self.answered
        ):
            self._outcomes.arrived(new, packet, batch)

    def _put_here(self, queue: LocalQueue, delivery: int, packet: Packet, key: int) -> None:
        head = head_of(packet)
        expires_at_s = self._services.clock.deadline_s(receive_time_s(head))
        stored = StoredMessage(key, self.wall_ms, head, expires_at_s=expires_at_s)
        held = SharedMessage(stored, packet) if isinstance(packet, SharedPacket) else stored
        if delivery == EXPRESS:
            put_express(queue, held)
            return
        put(queue, held, self.batch)
        waiting = self.to_queues.get(queue)
        if waiting is None:
            self.to_queues[queue] = [held]
        else:
            waiting.append(held)

    def end(self, ids: list[object], numbers: object, done: Callable[[list[object]], None]) -> None:
        """End the request: `done(ids)` is called when its messages are durable, or at once if all
        of them are express and there is no token.

        `numbers` are the ids in the form that is stored under the token of the request.
        """
        batch = self.batch
        if self.in_sequences:
            self._outgoing.save(self.in_sequences, batch)
        for queue, packets in self._express.items():
            if self._token:
                # A client may ask for the outcome by this token: the messages must not leave
                # before the outcome is stored.
                self.to_send.setdefault(queue, []).extend(packets)
            else:
                self._outgoing.appended(queue, packets)
        if self._token:
            result = msgspec.msgpack.encode(numbers)
            batch.record_outcome(self._token, result, self._services.clock.now_s)
        if self.to_queues or self.to_send or self._token or self.has_delayed:
            batch.when_durable(partial(self._durable, ids, done))
        else:
            done(ids)

    def _durable(self, ids: list[object], done: Callable[[list[object]], None]) -> None:
        """Answer the application after the commit, then deliver and transmit the messages."""
        done(ids)
        for queue, messages in self.to_queues.items():
            queue.deliver(messages)
        if self.to_send:
            self._outgoing.all_appended(self.to_send)
