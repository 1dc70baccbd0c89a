"""Local destinations: the queue of this computer that a received packet addresses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from protocol import DirectQueueName, PrivateQueueName, UserMessage, plain_text
from protocol.identifiers import NULL_GUID
from protocol.names.multi_queue import MQF_DIRECT

if TYPE_CHECKING:
    from qmd.naming.destinations import Destinations
    from qmd.queues.local_queue import LocalQueue
    from qmd.queues.registry import LocalQueues
    from qmd.runtime.services import Services
    from qmd.transfer.internal_queues import InternalQueue

WIRE_NAMES_MAX = 10_000  # direct names as peers spell them, cached with their queues

_PRIVATE = 3  # the type of a private queue's name in UserHeader.Flags


class LocalDestinations:
    """Finds local queues by the names in packets."""

    def __init__(self, services: Services, queues: LocalQueues, destinations: Destinations) -> None:
        self._queues = queues
        self._destinations = destinations
        # Packets with direct names have no address, [MS-MQQB] 3.1.5.8.5.
        self._our_addresses = (NULL_GUID, services.id)
        self._queues_by_wire_name: dict[bytes, LocalQueue] = {}

    def connect(self, internal_queues: Sequence[InternalQueue]) -> None:
        """Name the collaborators that are made after it."""
        self._internal_queues = internal_queues

    def queues_changed(self) -> None:
        """Forget cached names: a queue was added or deleted."""
        self._queues_by_wire_name.clear()

    def is_addressed_here(self, message: UserMessage) -> bool:
        """Return whether the packet names this queue manager, or none."""
        return message.user.queue_manager_address in self._our_addresses

    def find_internal(self, message: UserMessage) -> InternalQueue | None:
        """Return the internal queue that a message is for."""
        for queue in self._internal_queues:
            if queue.is_meant(message):
                return queue
        return None

    def is_listed(self, message: UserMessage) -> bool:
        """Return whether the list of a message to several queues has the queue of its packet.

        The signature of such a message covers the list, and not the queue of each copy.
        """
        header, own = message.multi_queue, message.user.destination_queue
        if header is None:
            return True
        elements = header.destination.elements
        if type(own) is DirectQueueName:
            path = _path_of(own.name)
            return any(
                each.format_type == MQF_DIRECT
                and isinstance(each.name, bytes)
                and _path_of(each.name) == path
                for each in elements
            )
        wanted: object = own
        if message.user.flags >> 10 & 7 == _PRIVATE and isinstance(own, int):
            wanted = PrivateQueueName(message.user.queue_manager_address, own)
        return any(each.name == wanted for each in elements)

    def find(self, message: UserMessage) -> LocalQueue | None:
        """Return the queue that a message is for; None if peers cannot send to such a queue."""
        user = message.user
        if user.queue_manager_address not in self._our_addresses:
            return None  # only a relay takes messages for other computers
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
        if queue is not None:  # peers can make up any number of long names that stand for nothing
            if len(self._queues_by_wire_name) >= WIRE_NAMES_MAX:
                self._queues_by_wire_name.clear()
            self._queues_by_wire_name[wire_name] = queue
        return queue


def _path_of(wire_name: bytes) -> str:
    """Return the name of a queue in a direct name, without its computer: that may have several."""
    return plain_text(wire_name).partition("\\")[2].casefold()
