"""Acknowledgments of the arrival of many messages of one request here, made in parts.

    add (with the packets of a part) ──► acknowledgments ──► write: one turn, the same batch

To make one takes as long as to put twenty messages into their queue.  They are therefore made with
the packets that they acknowledge, and get their places as other messages of a request do.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from protocol import parse_user_message
from protocol.errors import InvalidName
from protocol.identifiers import NULL_GUID
from protocol.message_class import MessageClass
from protocol.names.format_name import PublicName
from protocol.patching import with_queue_manager
from qmd.bulk.message_shapes import MessageShape, NotUniform
from qmd.bulk.publication_batch import PacketGroup
from qmd.control_protocol.messages import RECOVERABLE, NewMessage
from qmd.core.acknowledgment import (
    POSITIVE_ARRIVAL,
    AckDestination,
    administration_queues,
    build_acknowledgment,
)
from qmd.core.packet_fields import reach_time_s, receive_time_s
from qmd.directory.resolver import MustAsk
from qmd.errors import Refusal
from qmd.events.header import EventHeader, Kind
from qmd.events.recorder import NO_LISTS
from qmd.message.template import Template
from qmd.outcomes.administration_names import administration_name
from qmd.queues.local_queue import LocalQueue
from qmd.queues.outgoing_queue import OutgoingQueue

if TYPE_CHECKING:
    from collections.abc import Sequence

    from protocol import UserMessage
    from protocol.names.format_name import FormatName
    from qmd.bulk.publication_batch import PublicationWriter
    from qmd.events.recorder import Recorder
    from qmd.naming.destinations import Destinations, Route
    from qmd.runtime.services import Services


@dataclass(slots=True)
class _Way:
    """The acknowledgments to one administration queue."""

    destination: AckDestination
    name: FormatName
    route: Route | None  # None: no queue takes them
    refusal: str = ""  # why not
    group: PacketGroup | None = None
    originals: list[int] = field(default_factory=list)  # the numbers of the acknowledged messages


class ArrivalAnswers:
    """The acknowledgments of one request; `new.acknowledge` asks for each."""

    def __init__(
        self,
        services: Services,
        destinations: Destinations,
        recorder: Recorder,
        writer: PublicationWriter,
    ) -> None:
        self._services = services
        self._destinations = destinations
        self._recorder = recorder
        self._writer = writer
        self._sent_s = int(services.environment.time())
        self._ways: dict[AckDestination, _Way] = {}

    @property
    def count(self) -> int:
        """The number of acknowledgments that are made."""
        groups = [way.group for way in self._ways.values() if way.group is not None]
        return sum(len(each.packets) for each in groups)

    @staticmethod
    def wants(new: NewMessage, route: object) -> bool:
        """Return whether a message to this queue is acknowledged when it is stored."""
        return bool(new.acknowledge & POSITIVE_ARRIVAL) and isinstance(route, LocalQueue)

    def add(self, packets: Sequence[bytes]) -> None:
        """Make the acknowledgments of packets; as many message numbers must be left.

        Raises NotUniform if they have to be made when their messages are stored: then none was
        made for the packet.
        """
        for packet in packets:
            original = parse_user_message(packet)
            ways = [
                self._ways.get(each) or self._find(each)
                for each in administration_queues(original, self._services.id)
            ]
            for way in ways:
                way.originals.append(original.user.message_number)
                if way.route is not None:
                    self._make(original, way, way.route)

    def _make(self, original: UserMessage, way: _Way, route: Route) -> None:
        number = self._services.ids.next_message_number()
        made = build_acknowledgment(
            original,
            MessageClass.ACK_REACH_QUEUE,
            destination=way.destination,
            own_id=self._services.id,
            message_number=number,
            sent_time=self._sent_s,
        )
        if isinstance(way.name, PublicName) and isinstance(route, OutgoingQueue):
            made = with_queue_manager(made, route.address.queue_manager)
        group = way.group
        if group is None:
            example = NewMessage(str(way.name), b"")
            reach_s, live_s = reach_time_s(made), receive_time_s(made)
            shape = MessageShape(example, route, RECOVERABLE, Template(made), reach_s, live_s, 0)
            group = way.group = PacketGroup(shape)
        group.numbers.append(number)
        group.packets.append(made)
        group.sizes.append(len(made))

    def _find(self, destination: AckDestination) -> _Way:
        """Return the way to an administration queue.  Raises NotUniform."""
        try:
            name = administration_name(destination)
        except InvalidName as error:
            raise NotUniform from error
        route, refusal = self._route(name)
        way = self._ways[destination] = _Way(destination, name, route, refusal)
        return way

    def _route(self, name: FormatName) -> tuple[Route | None, str]:
        """Return the queue that takes acknowledgments, or None and why there is none.

        Raises NotUniform.
        """
        names = self._destinations
        try:
            route = names.route_name(name, for_acknowledgments=True)
        except MustAsk as ask:
            raise NotUniform from ask
        except Refusal as refusal:
            return None, refusal.text
        if isinstance(route, OutgoingQueue):
            if not isinstance(name, PublicName):
                return route, ""
            target = names.known_target(name)
            if route.address.queue_manager == NULL_GUID or target is None or target.transactional:
                raise NotUniform
        elif route.transactional or route.is_read_only:
            raise NotUniform
        return route, ""

    def is_as_before(self) -> bool:
        """Return whether all of them still go the way that was found for them."""
        try:
            return all(self._route(way.name)[0] is way.route for way in self._ways.values())
        except NotUniform:
            return False

    def write(self) -> None:
        """Add them to the open batch, in the turn of the loop in which it gets their messages."""
        groups = [way.group for way in self._ways.values() if way.group is not None]
        if groups:
            self._writer.write(groups, self.count)
        for way in self._ways.values():
            if way.route is None:
                self._services.log_limited(
                    *("acknowledgment_not_sent", str(way.name)),
                    queue=str(way.name),
                    reason=way.refusal,
                )
        if not self._recorder.enabled:
            return
        for way in self._ways.values():
            header = EventHeader(
                Kind.ACKNOWLEDGED if way.route is not None else Kind.UNACKNOWLEDGED,
                message_class=MessageClass.ACK_REACH_QUEUE,
                to_queue=str(way.name),
                reason=way.refusal,
            )
            event = self._recorder.group(header, self._services.id, lists=NO_LISTS)
            event.numbers += way.originals
