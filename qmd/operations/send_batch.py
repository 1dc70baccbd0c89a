"""What was checked goes into the open batch: rows, states of sequences, and word of it.

    one, copies ──► end ──► (commit) ──► answer, then move them on

A message to several queues is handed over as its copies (copies.py), all of them in the batch of
the others: there is no commit that has some of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from protocol import parse_user_message
from protocol.message_class import MessageClass
from qmd.control_protocol.messages import EXPRESS, TRANSACTIONAL, NewMessage, StoredMessage
from qmd.core.acknowledgment import POSITIVE_ARRIVAL
from qmd.core.packet_fields import is_express, reach_time_s, receive_time_s
from qmd.errors import Refusal
from qmd.events.recorder import DELIVERIES, Kind, bear_correlation
from qmd.message.build import PRIORITY_MAX, QueueAddress, compose, multi_queue_size
from qmd.message.shared_packet import (
    Held,
    Packet,
    Part,
    SharedMessage,
    SharedPacket,
    head_of,
    part_of,
    split,
    whole,
)
from qmd.naming.fan_out import (
    SHARED_BYTES_MIN,
    Copies,
    Heads,
    Several,
    with_multi_queue_header,
)
from qmd.queues.local_queue import LocalQueue
from qmd.queues.outgoing_queue import OutgoingQueue
from qmd.queues.outgoing_queues import Appended
from storage.tables.keys import LOOKUP_BITS

if TYPE_CHECKING:
    from qmd.events.recorder import Recorder
    from qmd.message.shared_packet import Parts
    from qmd.naming.destinations import Destinations
    from qmd.outcomes.acknowledgments import Acknowledgments
    from qmd.outcomes.dead_letter import DeadLetters
    from qmd.outcomes.reports import Reports
    from qmd.queues.named_dead_letter_queue import NamedDeadLetterQueues
    from qmd.queues.outgoing_queues import OutgoingQueues
    from qmd.runtime.services import Services
    from qmd.transfer.confirmation import Confirmations
    from storage.engine.batch import Batch
    from storage.tables.events import Event

Route = LocalQueue | OutgoingQueue

#: Number of the transaction, and whether the message is its first and its last.
Bounds = tuple[int, bool, bool]
#: Sequence id and number of a transactional message; zeros in a queue of ours.
Position = tuple[int, int]


class BatchSender:
    """One request's messages, on their way into the batch that is open."""

    def __init__(
        self,
        services: Services,
        acknowledgments: Acknowledgments,
        confirmations: Confirmations,
        dead_letters: DeadLetters,
        outgoing: OutgoingQueues,
        own_dead_letters: NamedDeadLetterQueues,
        parts: Parts,
        recorder: Recorder,
        destinations: Destinations,
        reports: Reports,
        token: bytes,
        transaction: str,
    ) -> None:
        self._services = services
        self._acknowledgments = acknowledgments
        self._confirmations = confirmations
        self._dead_letters = dead_letters
        self._outgoing = outgoing
        self._own_dead_letters = own_dead_letters
        self._parts = parts
        self._recorder = recorder
        self._destinations = destinations
        self._reports = reports
        self._token = token
        self._transaction = transaction
        self._batch = services.storage.batch
        wall = services.environment.time()
        self._wall_s, self._wall_ms = int(wall), int(wall * 1000)
        self._to_queues: dict[LocalQueue, list[Held]] = {}
        self._to_send: dict[OutgoingQueue, list[Appended]] = {}
        self._in_sequences: dict[OutgoingQueue, None] = {}  # those with transactional messages
        self._express: dict[OutgoingQueue, list[Appended]] = {}
        self._recording = recorder.enabled
        self._told: Event | None = None
        self._told_route: Route | None = None
        self._told_copies: dict[tuple[int, bool], Event] = {}  # by delivery, and if in sequences
        self._in_copies = False
        self._times_of: NewMessage | None = None
        self._reach_by_s: int | None = None
        self._confirmation: tuple[int | None, bool] = None, False
        self._told_delivery = 0

    def one(
        self, new: NewMessage, route: Route, delivery: int, number: int, bounds: Bounds
    ) -> None:
        """A message to one queue."""
        key, position = self._position(new, route, delivery)
        packet = self._compose(new, route.address, number, delivery, position, bounds, ())
        self._put(new, route, delivery, number, packet, key, position)

    def copies(
        self, new: NewMessage, copies: Copies, numbers: Sequence[int], bounds: Bounds
    ) -> None:
        """A message to several queues: to each its copy, with a number of its own."""
        heads: dict[int, Heads] = {}  # by delivery
        self._told, self._in_copies = None, True
        self._told_copies.clear()
        part: Part | None = None
        shares = False
        routes, alike = copies.routes, copies.alike
        for index in (*copies.others, *(each[0] for each in alike)):
            route, delivery, number = routes[index], copies.deliveries[index], numbers[index]
            key, position = self._position(new, route, delivery)
            if delivery in heads:
                head = heads[delivery].head(route.address, number, position)
            else:
                packet = self._compose_first(
                    new, copies.several, route.address, number, delivery, position, bounds
                )
                heads[delivery] = Heads(packet, route.address)
                head = packet[: split(packet)]
                if part is None:
                    size = len(packet) - len(head)
                    # Those that are refused here are dead letters, and have it themselves.
                    taken = len(numbers) - len(copies.misfits)
                    shares = taken > 1 and size >= SHARED_BYTES_MIN
                    part = self._part(packet[len(head) :], copies if shares else None)
            assert part is not None
            copy: Packet = SharedPacket(head, part) if shares else head + part.packet
            if index in copies.misfits:
                self._refuse(new, route, number, whole(copy), key)
            else:
                self._put(new, route, delivery, number, copy, key, position)
        for first, *rest in alike:
            if rest:
                assert part is not None
                delivery = copies.deliveries[first]
                is_here = isinstance(routes[first], LocalQueue)
                put = self._put_alike_here if is_here else self._put_alike
                put(
                    new,
                    [(routes[index], numbers[index]) for index in rest],
                    delivery,
                    heads[delivery],
                    part,
                    shares=shares,
                )
        self._told, self._in_copies = None, False

    def end(self, ids: list[object], numbers: object, done: Callable[[list[object]], None]) -> None:
        """All was handed over: `done(ids)` once it is durable, or at once if nothing has to be.

        `numbers`: the ids as they are kept for who asks by the token.
        """
        batch = self._batch
        self._outgoing.save(self._in_sequences, batch)
        for queue, packets in self._express.items():
            if self._token:
                # It will be asked for by its token: it must not leave before that is known.
                self._to_send.setdefault(queue, []).extend(packets)
            else:
                self._outgoing.appended(queue, packets)
        if self._token:
            result = msgspec.msgpack.encode(numbers)
            batch.record_outcome(self._token, result, self._services.clock.now_s)
        if self._to_queues or self._to_send or self._token:
            batch.when_durable(partial(self._durable, ids, done))
        else:
            done(ids)

    def _durable(self, ids: list[object], done: Callable[[list[object]], None]) -> None:
        """The commit has returned: tell the application, and move the messages on."""
        done(ids)
        for queue, messages in self._to_queues.items():
            queue.deliver(messages)
        self._outgoing.all_appended(self._to_send)

    # Within.

    def _position(
        self, new: NewMessage, route: Route, delivery: int
    ) -> tuple[int, Position | None]:
        """Where the message stands in its queue: its key, and its place in the sequence."""
        if delivery != TRANSACTIONAL:
            return self._services.ids.next_lookup_id(PRIORITY_MAX - new.priority), None
        if isinstance(route, OutgoingQueue):
            sequence_number, key = route.next_key()
            self._in_sequences[route] = None
            return key, (route.sequence.sequence_id, sequence_number)
        return self._services.ids.next_lookup_id(PRIORITY_MAX), (0, 0)

    def _compose_first(
        self,
        new: NewMessage,
        several: Several,
        destination: QueueAddress,
        number: int,
        delivery: int,
        position: Position | None,
        bounds: Bounds,
    ) -> bytes:
        """The packet that others are copies of: it lists all of the queues."""
        compose = partial(self._compose, new, destination, number, delivery, position, bounds)
        queues = new.admin_queue, new.response_queue
        header = several.headers.get(queues)
        if header is not None:
            return with_multi_queue_header(compose(()), header)
        packet = compose(several.addresses)
        admin, response = map(self._destinations.reply_address, queues)
        if not (admin.several or response.several):  # then they have such a header anyhow
            size = multi_queue_size(several.addresses, admin, response)
            several.keep(queues, packet[-size:])
        return packet

    def _compose(
        self,
        new: NewMessage,
        destination: QueueAddress,
        number: int,
        delivery: int,
        position: Position | None,
        bounds: Bounds,
        destinations: tuple[QueueAddress, ...],
    ) -> bytes:
        index, is_first, is_last = bounds
        return compose(
            new,
            source=self._services.id,
            destination=destination,
            admin=self._destinations.reply_address(new.admin_queue),
            response=self._destinations.reply_address(new.response_queue),
            message_number=number,
            sent_time_s=self._wall_s,
            delivery=delivery,
            position=None if position is None else (*position, index),
            dead_letter=self._confirmations.asks(new)
            if delivery == TRANSACTIONAL
            else new.dead_letter is not False,
            is_first=is_first,
            is_last=is_last,
            time_to_reach_queue_s=int(self._services.settings.delivery.time_to_reach_queue_s),
            report_queue=(
                self._destinations.report_queue(new.report_queue) if new.report_queue else None
            ),
            destinations=destinations,
        )

    def _part(self, packet: bytes, copies: Copies | None) -> Part:
        """The end of the packets of copies; `copies` are those that share it, or None."""
        if copies is None or all(delivery == EXPRESS for delivery in copies.deliveries):
            return Part(0, packet)
        part = Part(self._services.ids.next_lookup_id(0), packet)
        self._parts.add(part)
        self._batch.insert_shared_part(part.id, packet)
        return part

    def _put(
        self,
        new: NewMessage,
        route: Route,
        delivery: int,
        number: int,
        packet: Packet,
        key: int,
        position: Position | None,
    ) -> None:
        batch = self._batch
        if isinstance(route, OutgoingQueue):
            if new is not self._times_of:
                self._reckon(new, packet)
            confirm_by_s, discard = (
                self._confirmation if delivery == TRANSACTIONAL else (None, False)
            )
            appended = self._outgoing.add(
                route, key, packet, batch, self._reach_by_s, confirm_by_s, discard=discard
            )
            kind = self._express if delivery == EXPRESS else self._to_send
            waiting = kind.get(route)
            if waiting is None:
                kind[route] = [appended]
            else:
                waiting.append(appended)
        else:
            held = enter(self._services, route, key, self._wall_ms, packet, batch)
            if delivery != EXPRESS:
                self._to_queues.setdefault(route, []).append(held)
        if new.dead_letter_queue:
            place = "outgoing" if isinstance(route, OutgoingQueue) else "message"
            self._keep_dead_letter(new, number, delivery, place, route.id << LOOKUP_BITS | key)
        if self._recording:
            told = self._told
            if self._in_copies:
                told = self._tell_of_copy(route, delivery)
            elif told is None or self._told_route is not route or self._told_delivery != delivery:
                told = self._tell_of(route, delivery)
            told.numbers.append(number)
            told.sizes.append(len(packet))
            told.places.append(key)
            if position is not None and position[0]:
                told.positions.append(position[1])
            if new.correlation_id:
                bear_correlation(told, new.correlation_id)
        if new.report_queue and isinstance(route, LocalQueue):
            self._reports.arrived(parse_user_message(whole(packet)), whole(packet), batch)
        if new.acknowledge & POSITIVE_ARRIVAL and isinstance(route, LocalQueue):
            # It has arrived: [MS-MQDMPR] 3.1.1.12.
            self._acknowledgments.to_application(
                parse_user_message(whole(packet)), MessageClass.ACK_REACH_QUEUE, batch
            )

    def _put_alike(
        self,
        new: NewMessage,
        targets: Sequence[tuple[Route, int]],
        delivery: int,
        heads: Heads,
        part: Part,
        *,
        shares: bool,
    ) -> None:
        """To each queue elsewhere its copy and number, which go the same way to the disk.

        `_position` and `_put` in one loop: 3 µs a copy, and 9 otherwise.
        """
        to_send = self._to_send
        is_transactional = delivery == TRANSACTIONAL
        level = PRIORITY_MAX - new.priority
        head_of_copy, next_lookup_id = heads.head, self._services.ids.next_lookup_id
        end, end_bytes = part.packet, len(part.packet)
        reach_by_s = self._reach_by_s
        confirm_by_s, discard = self._confirmation if is_transactional else (None, False)
        position: Position | None = None
        packet: Packet
        rows: list[tuple[int, bytes]] = []
        places: list[int] = []
        positions: list[int] = []
        sizes: list[int] = []
        queues: list[str] = []
        sequence_ids: list[int] = []
        for route, number in targets:
            assert isinstance(route, OutgoingQueue)
            if is_transactional:
                place, key = route.next_key()
                sequence_id = route.sequence.sequence_id
                position = sequence_id, place
                positions.append(place)
                sequence_ids.append(sequence_id)
                self._in_sequences[route] = None
            else:
                key = next_lookup_id(level)
                route.others += 1
            head = head_of_copy(route.address, number, position)
            if shares:
                packet = SharedPacket(head, part)
                rows.append((route.id << LOOKUP_BITS | key, head))
            else:
                packet = head + end
                rows.append((route.id << LOOKUP_BITS | key, packet))
            size = len(head) + end_bytes
            route.grow(size)
            waiting = to_send.get(route)
            if waiting is None:
                to_send[route] = [(key, packet, reach_by_s)]
            else:
                waiting.append((key, packet, reach_by_s))
            places.append(key)
            sizes.append(size)
            queues.append(route.destination)
        self._batch.outgoing.insert_copies(
            rows,
            reach_by_s,
            confirm_by_s,
            discard=discard,
            part=(part.id, end_bytes) if shares else None,
        )
        if self._recording:
            told = self._tell_of_copies(delivery, in_sequences=is_transactional)
            told.numbers += [number for _, number in targets]
            told.places += places
            told.positions += positions
            told.sizes += sizes
            told.queues += queues
            told.sequence_ids += sequence_ids if is_transactional else [0] * len(targets)
            if new.correlation_id:
                bear_correlation(told, new.correlation_id, messages=len(targets))

    def _put_alike_here(
        self,
        new: NewMessage,
        targets: Sequence[tuple[Route, int]],
        delivery: int,
        heads: Heads,
        part: Part,
        *,
        shares: bool,
    ) -> None:
        """The same for queues of this computer."""
        is_transactional = delivery == TRANSACTIONAL
        level = PRIORITY_MAX if is_transactional else PRIORITY_MAX - new.priority
        position = (0, 0) if is_transactional else None
        to_queues, wall_ms = self._to_queues, self._wall_ms
        expires_at_s: int | None = None
        held: Held
        heads_made: list[bytes] = []
        places: list[int] = []
        keys: list[int] = []
        sizes: list[int] = []
        queues: list[str] = []
        for route, number in targets:
            assert isinstance(route, LocalQueue)
            place = self._services.ids.next_lookup_id(level)
            head = heads.head(route.address, number, position)
            if not places:
                expires_at_s = self._services.clock.deadline_s(receive_time_s(head))
            size = len(head) + len(part.packet)
            if shares:
                held = SharedMessage(
                    StoredMessage(place, wall_ms, head, expires_at_s=expires_at_s),
                    SharedPacket(head, part),
                )
            else:
                head += part.packet
                held = StoredMessage(place, wall_ms, head, expires_at_s=expires_at_s)
            route.messages += 1
            route.grow(size)
            waiting = to_queues.get(route)
            if waiting is None:
                to_queues[route] = [held]
            else:
                waiting.append(held)
            heads_made.append(head)
            places.append(place)
            keys.append(route.id << LOOKUP_BITS | place)
            sizes.append(size)
            queues.append(route.name)
        self._batch.insert_message_copies(
            zip(keys, heads_made, strict=True),
            wall_ms,
            expires_at_s,
            part=(part.id, len(part.packet)) if shares else None,
        )
        if self._recording:
            told = self._tell_of_copies(delivery, in_sequences=False)
            told.numbers += [number for _, number in targets]
            told.places += places
            told.sizes += sizes
            told.queues += queues
            told.sequence_ids += [0] * len(queues)
            if new.correlation_id:
                bear_correlation(told, new.correlation_id, messages=len(queues))

    def _reckon(self, new: NewMessage, packet: Packet) -> None:
        """Times that are the same for all copies of a message."""
        self._times_of = new
        self._reach_by_s = self._services.clock.deadline_s(reach_time_s(head_of(packet)))
        self._confirmation = (
            self._confirmations.confirm_by_s(new),
            self._confirmations.discards(new),
        )

    def _tell_of(self, route: Route, delivery: int) -> Event:
        """What is told of the messages that go this way, until one goes another."""
        self._told = sent_to(self._recorder, self._services.id, route, delivery, self._transaction)
        self._told_route, self._told_delivery = route, delivery
        return self._told

    def _tell_of_copies(self, delivery: int, *, in_sequences: bool) -> Event:
        """What is told of copies that go in the same way to whichever queues."""
        told = self._told_copies.get((delivery, in_sequences))
        if told is None:
            told = self._told_copies[delivery, in_sequences] = self._recorder.of_copies(
                Kind.SENT,
                transaction=self._transaction,
                delivery=DELIVERIES[delivery],
                in_sequences=in_sequences,
            )
        return told

    def _tell_of_copy(self, route: Route, delivery: int) -> Event:
        """What its number is to be added to; its queue is there."""
        if isinstance(route, OutgoingQueue):
            in_sequence = delivery == TRANSACTIONAL
            told = self._tell_of_copies(delivery, in_sequences=in_sequence)
            told.queues.append(route.destination)
            told.sequence_ids.append(route.sequence.sequence_id if in_sequence else 0)
        else:
            told = self._tell_of_copies(delivery, in_sequences=False)
            told.queues.append(route.name)
            told.sequence_ids.append(0)
        return told

    def _refuse(self, new: NewMessage, route: Route, number: int, packet: bytes, key: int) -> None:
        """A transactional copy for a queue of ours that takes no such messages: it ends as it would
        in a queue elsewhere.  docs/decisions/0006"""
        assert isinstance(route, LocalQueue)
        if new.dead_letter_queue:
            place = route.id << LOOKUP_BITS | key
            self._keep_dead_letter(new, number, TRANSACTIONAL, "message", place)
        if self._recording:
            told = self._tell_of_copy(route, TRANSACTIONAL)
            told.numbers.append(number)
            told.sizes.append(len(packet))
            told.places.append(key)
        self._dead_letters.end(route, [(key, packet)], MessageClass.NACK_NOT_TRANSACTIONAL_QUEUE)

    def _keep_dead_letter(
        self, new: NewMessage, number: int, delivery: int, place: str, key: int
    ) -> None:
        """In the queue that its application has named, if it dies."""
        own = self._own_dead_letters
        try:
            queue = own.check(new.dead_letter_queue, delivery)
        except Refusal:
            return  # it was deleted since the transaction began: it will be in the system's queue
        own.add(number, queue, place, key, self._batch, express=delivery == EXPRESS)


def enter(
    services: Services,
    queue: LocalQueue,
    lookup_id: int,
    wall_ms: int,
    packet: Packet,
    batch: Batch,
) -> Held:
    """A message of our own for our own queue; an express one is there at once."""
    head = head_of(packet)
    expires_at_s = services.clock.deadline_s(receive_time_s(head))
    stored = StoredMessage(lookup_id, wall_ms, head, expires_at_s=expires_at_s)
    held: Held = SharedMessage(stored, packet) if isinstance(packet, SharedPacket) else stored
    queue.messages += 1
    queue.grow(len(packet))
    if is_express(head):
        queue.deliver_express(held)
    else:
        batch.insert_message(
            queue.id << LOOKUP_BITS | lookup_id,
            head,
            wall_ms,
            expires_at_s,
            part=part_of(packet),
        )
    return held


def sent_to(
    recorder: Recorder, own_id: bytes, route: Route, delivery: int, transaction: str = ""
) -> Event:
    """What is told of messages of ours that go one way."""
    return recorder.group(
        Kind.SENT,
        own_id,
        queue=route.destination if isinstance(route, OutgoingQueue) else route.name,
        sequence_id=route.sequence.sequence_id
        if isinstance(route, OutgoingQueue) and delivery == TRANSACTIONAL
        else 0,
        transaction=transaction,
        delivery=DELIVERIES[delivery],
    )
