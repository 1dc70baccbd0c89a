"""Large packets of peers: which of them are stored ahead."""

from __future__ import annotations

from typing import TYPE_CHECKING

from protocol import (
    MalformedPacket,
    PacketKind,
    packet_kind,
    parse_user_message,
)
from protocol.headers import SESSION_HEADER_BYTES
from protocol.message_class import MessageClass
from qmd.core.disposition import consequences
from qmd.core.packet_fields import is_express
from qmd.outcomes.nack import why_not
from qmd.queues.parts_ahead import LARGE_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable

    from protocol import UserMessage
    from qmd.peers.connection import PeerConnection
    from qmd.queues.parts_ahead import PartAhead, PartsAhead
    from qmd.queues.quotas import Admission
    from qmd.transfer.local_destinations import LocalDestinations
    from qmd.transfer.sender_access import SenderAccess
    from qmd.transfer.speakers import Speakers


class LargeArrivals:
    """Stores the ends of packets ahead that will probably be accepted into a queue of this host.

    It decides nothing: `Acceptance` does, when the end is stored.
    """

    def __init__(
        self,
        local_destinations: LocalDestinations,
        admission: Admission,
        senders: SenderAccess,
        speakers: Speakers,
        parts: PartsAhead,
    ) -> None:
        self._local_destinations = local_destinations
        self._admission = admission
        self._senders = senders
        self._speakers = speakers
        self._parts = parts

    def store_ahead(
        self, connection: PeerConnection, packet: bytes, on_end: Callable[[], None]
    ) -> PartAhead | None:
        """Begin to store the end of a packet; `on_end` is called when it is durable.

        Returns None if that would be in vain, as far as can be seen: nothing is stored.
        """
        if len(packet) <= LARGE_BYTES or packet_kind(packet) is not PacketKind.USER_MESSAGE:
            return None
        try:
            message = parse_user_message(packet)
        except MalformedPacket:
            return None  # the session finds it, and ends
        size = len(packet) - (0 if message.session is None else SESSION_HEADER_BYTES)
        if (
            is_express(packet)
            or self._admission.is_full(size) is not None
            or not self._speakers.speaks_for(connection, message.user.source_queue_manager)
        ):
            return None
        if not (self._has_queue(connection, message, size) or self._dies_here(message)):
            return None
        return self._parts.store(packet, size, connection.host, on_end)

    def _has_queue(self, connection: PeerConnection, message: UserMessage, size: int) -> bool:
        """Return whether there is a queue here that takes the message."""
        queue = self._local_destinations.find(message)
        return (
            queue is not None
            and why_not(queue, message) is None
            and queue.has_room(size)
            and (
                message.security is not None
                or self._senders.refusal(connection, message, queue, None) is None
            )
        )

    def _dies_here(self, message: UserMessage) -> bool:
        """Return whether a message that no queue takes becomes a dead letter of this host."""
        here = self._local_destinations
        ends = consequences(
            message, MessageClass.NACK_BAD_DESTINATION_QUEUE, at_source=False, insecure_nacks=False
        )
        return (
            ends.dead_letter is not None
            and here.is_addressed_here(message)
            and here.find_internal(message) is None
        )

    def forget(self, part: PartAhead) -> None:
        """Delete the stored end of a packet, unless it was used."""
        self._parts.forget(part)
