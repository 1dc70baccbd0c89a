"""Sending of packets that the queue manager makes itself: acknowledgments and reports."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from protocol.identifiers import NULL_GUID
from protocol.names.format_name import FormatName, PublicName
from protocol.patching import with_queue_manager
from qmd.control_protocol.messages import EXPRESS, RECOVERABLE, StoredMessage
from qmd.core.packet_fields import is_express, message_number, receive_time_s
from qmd.errors import Refusal
from qmd.message.limits import PRIORITY_MAX
from qmd.message.shared_packet import Packet, Part, SharedEnd, SharedPacket, split
from qmd.naming.fan_out import SHARED_BYTES_MIN
from qmd.operations.sent_events import sent_to
from qmd.queues.outgoing_queue import OutgoingQueue
from qmd.queues.put import put, put_express

if TYPE_CHECKING:
    from collections.abc import Sequence

    from qmd.events.recorder import Recorder
    from qmd.message.shared_packet import Parts
    from qmd.naming.destinations import Destinations, Route
    from qmd.queues.answer_limits import AnswerLimits, AskedFor
    from qmd.queues.outgoing_queues import OutgoingQueues
    from qmd.runtime.services import Services
    from storage.engine.batch import Batch


class PacketSender:
    """Sender of packets to queues here or elsewhere: the `Post` of the package `outcomes`."""

    def __init__(
        self,
        services: Services,
        destinations: Destinations,
        outgoing: OutgoingQueues,
        recorder: Recorder,
        answer_limits: AnswerLimits,
        parts: Parts,
    ) -> None:
        self._parts = parts
        self._services = services
        self._answer_limits = answer_limits
        self._destinations = destinations
        self._outgoing = outgoing
        self._recorder = recorder

    def send_packet(
        self,
        name: FormatName,
        packet: bytes,
        batch: Batch,
        *,
        via: bytes | None = None,
        asked: AskedFor | None = None,
        shared: SharedEnd | None = None,
    ) -> str:
        """Send a packet to a local queue or to a queue elsewhere, with the open batch.

        Returns "", or why the packet cannot be sent and was dropped.  With `via`, it goes over a
        session with the queue manager of that GUID, if there is one.  `asked` is set if a message
        of another host asks for the packet: it then counts in the limits of that host.
        Packets with the same `shared` are stored with one common end, if that is long.
        """
        route = self.route_of(name, via=via, asked=asked)
        if isinstance(route, str):
            return self._not_sent(name, route, asked)
        priority = packet[2] & 7
        key = self._services.ids.next_lookup_id(PRIORITY_MAX - priority)
        if isinstance(route, OutgoingQueue):
            deadline_s = None
            if asked is not None:
                reason = self._answer_limits.no_room(route, len(packet))
                if reason:
                    return self._not_sent(name, reason, asked)
                age_s = int(self._services.settings.consequences.age_s)
                deadline_s = self._services.clock.deadline_s(age_s)
            if isinstance(name, PublicName) and route.address.queue_manager != NULL_GUID:
                packet = with_queue_manager(packet, route.address.queue_manager)
            kept = self._kept(packet, batch, shared)
            appended = [self._outgoing.append(route, key, kept, batch, deadline_s=deadline_s)]
            self.record_sent(route, packet, key)
            if key in route.express:
                self._outgoing.appended(route, appended)
            else:
                batch.when_durable(partial(self._outgoing.appended, route, appended))
            return ""
        if asked is not None and not route.has_room(len(packet)):
            return self._not_sent(name, f"{route.name} is full", asked)
        wall_ms = int(self._services.environment.time() * 1000)
        expires_at_s = self._services.clock.deadline_s(receive_time_s(packet))
        stored = StoredMessage(key, wall_ms, packet, expires_at_s=expires_at_s)
        if is_express(packet):
            put_express(route, stored)
            self.record_sent(route, packet, key)
        else:
            put(route, stored, batch)
            self.record_sent(route, packet, key)
            batch.when_durable(partial(route.deliver, [stored]))
        return ""

    def route_of(
        self, name: FormatName, *, via: bytes | None = None, asked: AskedFor | None = None
    ) -> Route | str:
        """Return the queue that takes a packet of this queue manager, or why none does.

        `via` and `asked` are as in `send_packet`.
        """
        try:
            route = self._destinations.route_name(
                name, for_acknowledgments=True, via=via, asked=asked
            )
        except Refusal as refusal:
            return refusal.text
        if isinstance(route, OutgoingQueue):
            target = self._destinations.known_target(name)
            if isinstance(name, PublicName) and target is not None and target.transactional:
                reason = f"{name} accepts no acknowledgments: it is transactional, as the directory"
                return f"{reason} says"
        elif route.transactional or route.is_read_only:
            return f"{route.name} accepts no acknowledgments: it is " + (
                "transactional" if route.transactional else "one of the queue manager's own"
            )
        return route

    def _kept(self, packet: bytes, batch: Batch, shared: SharedEnd | None) -> Packet:
        """Return the form in which a packet is stored, with its end in common with others."""
        if shared is None or is_express(packet):
            return packet
        at = split(packet)
        if len(packet) - at < SHARED_BYTES_MIN:
            return packet
        if shared.part is None:
            shared.part = Part(self._services.ids.next_lookup_id(0), packet[at:])
            self._parts.add(shared.part)
            batch.insert_shared_part(shared.part.id, shared.part.packet)
        elif shared.part.packet != packet[at:]:
            return packet  # one of them brings the body of the original, the other does not
        return SharedPacket(packet[:at], shared.part)

    def _not_sent(self, name: FormatName, reason: str, asked: AskedFor | None) -> str:
        """Log that a packet was dropped; return the reason."""
        # A peer can make up names, but not the host that it is known by.
        about = str(name) if asked is None else asked.by
        self._services.log_limited("acknowledgment_not_sent", about, queue=str(name), reason=reason)
        return reason

    def record_sent(self, route: Route, packet: bytes, place: int) -> None:
        """Record that a packet of this queue manager was sent."""
        if self._recorder.enabled:
            delivery = EXPRESS if is_express(packet) else RECOVERABLE
            event = sent_to(self._recorder, self._services.id, route, delivery)
            event.numbers.append(message_number(packet))
            event.sizes.append(len(packet))
            event.places.append(place)

    def record_all_sent(
        self, route: Route, packets: Sequence[bytes], places: Sequence[int]
    ) -> None:
        """Record that packets of this queue manager, all of one delivery, were sent to a queue."""
        if self._recorder.enabled:
            delivery = EXPRESS if is_express(packets[0]) else RECOVERABLE
            event = sent_to(self._recorder, self._services.id, route, delivery)
            event.numbers += map(message_number, packets)
            event.sizes += map(len, packets)
            event.places += places
