"""Copies of a message to several queues, in the batch of the request that sends it.

One packet is composed for each delivery; the copies have its end, and heads of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from qmd.control_protocol.messages import EXPRESS, TRANSACTIONAL, NewMessage, StoredMessage
from qmd.core.packet_fields import receive_time_s
from qmd.events.recorder import add_correlation, add_trace
from qmd.message.limits import PRIORITY_MAX
from qmd.message.prepared import UNPLACED
from qmd.message.shared_packet import (
    Held,
    Packet,
    Part,
    SharedMessage,
    SharedPacket,
    split,
    whole,
)
from qmd.naming.fan_out import SHARED_BYTES_MIN, Copies, Heads
from qmd.properties.trace import trace_of
from qmd.queues.local_queue import LocalQueue
from qmd.queues.outgoing_queue import OutgoingQueue
from storage.tables.keys import LOOKUP_BITS

if TYPE_CHECKING:
    from qmd.message.prepared import PreparedPackets
    from qmd.message.shared_packet import Parts
    from qmd.naming.destinations import Route
    from qmd.operations.packet_composer import Bounds, PacketComposer, Position
    from qmd.operations.send_batch import BatchSender
    from qmd.operations.send_outcomes import SendOutcomes
    from qmd.runtime.services import Services


class _PutCopies:
    """Copies that were put into their queues, as columns for their event."""

    __slots__ = ("places", "positions", "queues", "sequence_ids", "sizes")

    def __init__(self) -> None:
        self.places: list[int] = []
        self.positions: list[int] = []
        self.sizes: list[int] = []
        self.queues: list[str] = []
        self.sequence_ids: list[int] = []


class CopySender:
    """Sender of the copies of messages."""

    def __init__(
        self,
        services: Services,
        composer: PacketComposer,
        outcomes: SendOutcomes,
        parts: Parts,
    ) -> None:
        self._services = services
        self._composer = composer
        self._outcomes = outcomes
        self._parts = parts

    def send(
        self,
        sender: BatchSender,
        new: NewMessage,
        copies: Copies,
        numbers: Sequence[int],
        bounds: Bounds,
        prepared: PreparedPackets | None = None,
    ) -> None:
        """Put a copy into each of the queues, each with a number of its own.

        `prepared` are the packets that `prepare` has made.
        """
        heads: dict[int, Heads] = {}  # by delivery
        events = sender.events
        events.begin_copies()
        part: Part | None = None
        shares = False
        routes, alike = copies.routes, copies.alike
        for index in (*copies.others, *(each[0] for each in alike)):
            route, delivery, number = routes[index], copies.deliveries[index], numbers[index]
            key, position = sender.position(new, route, delivery)
            if delivery in heads:
                head = heads[delivery].head(route.address, number, position)
            else:
                packet = (
                    self._first(sender, new, copies, index, number, position, bounds)
                    if prepared is None
                    else prepared[delivery]
                )
                heads[delivery] = Heads(packet, route.address)
                head = packet[: split(packet)]
                if prepared is not None:
                    head = heads[delivery].head(route.address, number, position)
                if part is None:
                    size = len(packet) - len(head)
                    # Copies that are refused here become dead letters with the complete packet.
                    taken = len(numbers) - len(copies.misfits)
                    if new.signature:  # copies for queues of here are marked, each for itself
                        taken -= sum(isinstance(each, LocalQueue) for each in routes)
                    shares = taken > 1 and size >= SHARED_BYTES_MIN
                    part = self._part(sender, packet[len(head) :], copies if shares else None)
            assert part is not None
            copy: Packet = SharedPacket(head, part) if shares else head + part.packet
            if index in copies.misfits:
                self._refuse(sender, new, route, number, whole(copy), key)
            elif new.signature and isinstance(route, LocalQueue):
                marked = sender.marked(new, route, whole(copy))
                sender.put(new, route, delivery, number, marked, key, position, is_copy=True)
            else:
                sender.put(new, route, delivery, number, copy, key, position, is_copy=True)
        for first, *rest in alike:
            if rest:
                assert part is not None
                delivery = copies.deliveries[first]
                targets = [(routes[index], numbers[index]) for index in rest]
                is_here = isinstance(routes[first], LocalQueue)
                put = self._put_alike_here if is_here else self._put_alike
                done = put(sender, new, targets, delivery, heads[delivery], part, shares=shares)
                if events.enabled:
                    self._record_alike(sender, new, targets, delivery, done)
        events.end_copies()

    def prepare(
        self,
        sender: BatchSender,
        new: NewMessage,
        copies: Copies,
        numbers: Sequence[int],
        bounds: Bounds,
    ) -> PreparedPackets:
        """Return the packet of the first copy with each delivery; it gets its place later."""
        packets: PreparedPackets = {}
        for index in (*copies.others, *(each[0] for each in copies.alike)):
            delivery = copies.deliveries[index]
            if delivery not in packets:
                position: Position | None = None
                if delivery == TRANSACTIONAL:
                    is_here = isinstance(copies.routes[index], LocalQueue)
                    position = (0, 0) if is_here else UNPLACED
                packets[delivery] = self._first(
                    sender, new, copies, index, numbers[index], position, bounds
                )
        return packets

    def spread(
        self,
        sender: BatchSender,
        new: NewMessage,
        copies: Copies,
        numbers: Sequence[int],
        prepared: PreparedPackets,
    ) -> list[Packet]:
        """Return the packets of all copies, which get their places later.

        `prepared` are those that `prepare` has made.  Packets with a stored part share it.
        """
        heads: dict[int, Heads] = {}  # by delivery
        for index in (*copies.others, *(each[0] for each in copies.alike)):
            delivery = copies.deliveries[index]
            if delivery not in heads:
                heads[delivery] = Heads(prepared[delivery], copies.routes[index].address)
        first = next(iter(prepared.values()))
        end = first[split(first) :]
        part = self._common_part(new, copies, end)
        packets: list[Packet] = []
        for index, (route, delivery, number) in enumerate(
            zip(copies.routes, copies.deliveries, numbers, strict=True)
        ):
            is_here = isinstance(route, LocalQueue)
            position: Position | None = None
            if delivery == TRANSACTIONAL:
                position = (0, 0) if is_here else UNPLACED
            head = heads[delivery].head(route.address, number, position)
            if index in copies.misfits:
                packets.append(head + end)
            elif part is None or (new.signature and is_here):
                packets.append(sender.marked(new, route, head + end))
            else:
                packets.append(SharedPacket(head, part))
        return packets

    def _common_part(self, new: NewMessage, copies: Copies, end: bytes) -> Part | None:
        """Return the part that copies share; None if they store complete packets."""
        sharing = [
            copies.deliveries[index]
            for index, route in enumerate(copies.routes)
            if index not in copies.misfits
            # Copies for queues of here are marked, each for itself.
            and not (new.signature and isinstance(route, LocalQueue))
        ]
        if len(sharing) < 2 or len(end) < SHARED_BYTES_MIN:
            return None
        if all(delivery == EXPRESS for delivery in sharing):
            return Part(0, end)
        part = Part(self._services.ids.next_lookup_id(0), end)
        self._parts.add(part)
        return part

    def _first(
        self,
        sender: BatchSender,
        new: NewMessage,
        copies: Copies,
        index: int,
        number: int,
        position: Position | None,
        bounds: Bounds,
    ) -> bytes:
        return self._composer.compose_first(
            new,
            sender.wall_s,
            copies.several,
            copies.routes[index].address,
            number,
            copies.deliveries[index],
            position,
            bounds,
        )

    def _part(self, sender: BatchSender, packet: bytes, copies: Copies | None) -> Part:
        """Return the common end of the copies; `copies` are those that share it, or None."""
        if copies is None or all(delivery == EXPRESS for delivery in copies.deliveries):
            return Part(0, packet)
        part = Part(self._services.ids.next_lookup_id(0), packet)
        self._parts.add(part)
        sender.batch.insert_shared_part(part.id, packet)
        return part

    def _put_alike(
        self,
        sender: BatchSender,
        new: NewMessage,
        targets: Sequence[tuple[Route, int]],
        delivery: int,
        heads: Heads,
        part: Part,
        *,
        shares: bool,
    ) -> _PutCopies:
        """Put copies with the same delivery into queues elsewhere.

        This does the work of `BatchSender.position` and `put` in one loop: 3 µs for each copy
        instead of 9.
        """
        to_send, in_sequences = sender.to_send, sender.in_sequences
        is_transactional = delivery == TRANSACTIONAL
        level = PRIORITY_MAX - new.priority
        head_of_copy, next_lookup_id = heads.head, self._services.ids.next_lookup_id
        end, end_bytes = part.packet, len(part.packet)
        reach_by_s, confirm_by_s, discard = sender.deadlines
        if not is_transactional:
            confirm_by_s, discard = None, False
        position: Position | None = None
        packet: Packet
        rows: list[tuple[int, bytes]] = []
        done = _PutCopies()
        places, positions, sequence_ids = done.places, done.positions, done.sequence_ids
        sizes, queues = done.sizes, done.queues
        for route, number in targets:
            assert isinstance(route, OutgoingQueue)
            if is_transactional:
                place, key = route.next_key()
                sequence_id = route.sequence.sequence_id
                position = sequence_id, place
                positions.append(place)
                sequence_ids.append(sequence_id)
                in_sequences[route] = None
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
        sender.batch.outgoing.insert_copies(
            rows,
            reach_by_s,
            confirm_by_s,
            discard=discard,
            part=(part.id, end_bytes) if shares else None,
        )
        return done

    def _put_alike_here(
        self,
        sender: BatchSender,
        new: NewMessage,
        targets: Sequence[tuple[Route, int]],
        delivery: int,
        heads: Heads,
        part: Part,
        *,
        shares: bool,
    ) -> _PutCopies:
        """Put copies with the same delivery into queues of this computer, likewise."""
        is_transactional = delivery == TRANSACTIONAL
        level = PRIORITY_MAX if is_transactional else PRIORITY_MAX - new.priority
        position = (0, 0) if is_transactional else None
        to_queues, wall_ms = sender.to_queues, sender.wall_ms
        expires_at_s: int | None = None
        held: Held
        rows: list[tuple[int, bytes]] = []
        done = _PutCopies()
        for route, number in targets:
            assert isinstance(route, LocalQueue)
            place = self._services.ids.next_lookup_id(level)
            head = heads.head(route.address, number, position)
            if not rows:
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
            rows.append((route.id << LOOKUP_BITS | place, head))
            done.places.append(place)
            done.sizes.append(size)
            done.queues.append(route.name)
        size = sum([len(head) for _, head in rows])
        alike = wall_ms, expires_at_s, None
        if shares:
            part_of_all = part.id, len(part.packet)
            copies = [(key, *alike, head, part_of_all) for key, head in rows]
            sender.batch.insert_message_copies(copies, size)
        else:
            sender.batch.insert_messages([(key, *alike, packet) for key, packet in rows], size)
        return done

    def _record_alike(
        self,
        sender: BatchSender,
        new: NewMessage,
        targets: Sequence[tuple[Route, int]],
        delivery: int,
        done: _PutCopies,
    ) -> None:
        """Record that copies with the same delivery were sent."""
        event = sender.events.of_copies(delivery, in_sequences=bool(done.sequence_ids))
        event.numbers += [number for _, number in targets]
        event.places += done.places
        event.positions += done.positions
        event.sizes += done.sizes
        event.queues += done.queues
        event.sequence_ids += done.sequence_ids or [0] * len(targets)
        if new.correlation_id:
            add_correlation(event, new.correlation_id, messages=len(targets))
        if new.extension and (trace := trace_of(new.extension)):
            add_trace(event, trace, messages=len(targets))

    def _refuse(
        self,
        sender: BatchSender,
        new: NewMessage,
        route: Route,
        number: int,
        packet: bytes,
        key: int,
    ) -> None:
        """End a transactional copy for a queue of this computer that is not transactional."""
        assert isinstance(route, LocalQueue)
        if new.dead_letter_queue:
            self._outcomes.name_dead_letter_queue(
                new, route, number, TRANSACTIONAL, key, sender.batch
            )
        if sender.events.enabled:
            event = sender.events.of_copy(route, TRANSACTIONAL)
            event.numbers.append(number)
            event.sizes.append(len(packet))
            event.places.append(key)
        self._outcomes.refused(route, key, packet)
