"""Composing the packets of messages that applications send.

Most messages are like the one before them: the same destination and the same properties, in the
same second.  From the second like message on, packets are copies of a template (template.py).
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from qmd.control_protocol.messages import TRANSACTIONAL, NewMessage
from qmd.core.packet_fields import reach_time_s
from qmd.message.addresses import NO_ADDRESS, QueueAddress, multi_queue_size
from qmd.message.build import compose
from qmd.message.shared_packet import Packet, head_of
from qmd.message.template import Template
from qmd.naming.fan_out import Several, with_multi_queue_header
from qmd.transfer import confirmation_requests

if TYPE_CHECKING:
    from qmd.naming.reply_addresses import ReplyAddresses
    from qmd.runtime.services import Services

#: Index of the transaction, and whether the message is its first and its last.
Bounds = tuple[int, bool, bool]
#: Sequence id and number of a transactional message; zeros in a queue of this computer.
Position = tuple[int, int]


#: All that decides the packet of a message that is not rare, except for its own fields.
_Form = tuple[object, ...]
_LIKE_BYTES_MAX = 64 * 1024  # a larger packet is not kept as a model; its own bytes cost more


class Deadlines(NamedTuple):
    """Deadlines of a message to a queue elsewhere, in seconds of the queue manager's own clock."""

    reach_by_s: int | None  # to reach its queue
    confirm_by_s: int | None  # to be confirmed, if it is transactional
    discard: bool  # whether a message that is not confirmed in time is discarded


class PacketComposer:
    """Composer of packets, with the settings and the names of this queue manager."""

    def __init__(self, services: Services, replies: ReplyAddresses) -> None:
        self._services = services
        self._replies = replies
        self._form: _Form | None = None  # of the last message, and its packet
        self._model = b""
        self._template: Template | None = None  # made when the second message of a form comes

    def compose(
        self,
        new: NewMessage,
        sent_time_s: int,
        destination: QueueAddress,
        number: int,
        delivery: int,
        position: Position | None,
        bounds: Bounds,
        destinations: tuple[QueueAddress, ...] = (),
        signature_type: int = 0,
    ) -> bytes:
        """Return the packet of `new`, as `qmd.message.build.compose`."""
        index, is_first, is_last = bounds
        dead_letter = (
            confirmation_requests.asks(self._services, new)
            if delivery == TRANSACTIONAL
            else new.dead_letter is not False
        )
        reach_s = int(self._services.settings.delivery.time_to_reach_queue_s)
        form: _Form | None = None
        if not (destinations or signature_type or _is_rare(new)):
            form = (
                *(destination, sent_time_s, delivery, is_first, is_last, dead_letter, reach_s),
                *(new.priority, new.time_to_reach_queue_s, new.time_to_be_received_s),
                new.journal,
            )
            if form == self._form and (packet := self._like(new, number, position, index)):
                return packet
        admin, response = new.admin_queue, new.response_queue
        address = self._replies.address
        packet = compose(
            new,
            source=self._services.id,
            destination=destination,
            admin=address(admin) if admin else NO_ADDRESS,
            response=address(response) if response else NO_ADDRESS,
            message_number=number,
            sent_time_s=sent_time_s,
            delivery=delivery,
            position=None if position is None else (*position, index),
            dead_letter=dead_letter,
            is_first=is_first,
            is_last=is_last,
            time_to_reach_queue_s=reach_s,
            report_queue=(
                self._replies.report_queue(new.report_queue) if new.report_queue else None
            ),
            destinations=destinations,
            signature_type=signature_type,
        )
        if form is not None:
            self._form, self._model, self._template = form, packet, None
        return packet

    def _like(
        self, new: NewMessage, number: int, position: Position | None, index: int
    ) -> bytes | None:
        """Return the packet of a message with the form of the one before it."""
        template = self._template
        if template is None:
            template = self._template = Template(self._model)
            self._model = b""
        if position is None:
            return template.packet(new, number, index, None)
        sequence_id, place = position
        return template.packet(new, number, index, (sequence_id, place, max(place - 1, 0)))

    def compose_first(
        self,
        new: NewMessage,
        sent_time_s: int,
        several: Several,
        destination: QueueAddress,
        number: int,
        delivery: int,
        position: Position | None,
        bounds: Bounds,
    ) -> bytes:
        """Return the first packet of a message to several queues: it lists all of them."""
        packet_with = partial(
            self.compose, new, sent_time_s, destination, number, delivery, position, bounds
        )
        queues = new.admin_queue, new.response_queue
        if new.signature:  # it is in the header
            return packet_with(several.addresses)
        header = several.headers.get(queues)
        if header is not None:
            return with_multi_queue_header(packet_with(()), header)
        packet = packet_with(several.addresses)
        admin, response = map(self._replies.address, queues)
        if not (admin.several or response.several):  # such packets have the header in any case
            size = multi_queue_size(several.addresses, admin, response)
            several.keep(queues, packet[-size:])
        return packet

    def deadlines(self, new: NewMessage, packet: Packet) -> Deadlines:
        """Return the deadlines of a message, which are the same for all of its copies."""
        return Deadlines(
            self._services.clock.deadline_s(reach_time_s(head_of(packet))),
            confirmation_requests.confirm_by_s(self._services, new),
            confirmation_requests.discards(self._services, new),
        )


def _is_rare(new: NewMessage) -> bool:
    """Return whether a message has properties that belong to no form, or is large."""
    return bool(
        new.admin_queue
        or new.response_queue
        or new.acknowledge
        or new.report_queue
        or new.connector_type
        or new.message_class
        or new.sender_id
        or new.signature
        or new.certificate
        or new.encryption_key
        or new.hash_algorithm
        or new.privacy_level
        or new.encryption_algorithm
        or len(new.body) > _LIKE_BYTES_MAX
    )
