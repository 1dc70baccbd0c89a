"""Shapes of messages: the common properties of messages that differ only in their contents."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from protocol import transaction_offset
from qmd.control_protocol.messages import EXPRESS, TRANSACTIONAL, NewMessage
from qmd.core.acknowledgment import POSITIVE_ARRIVAL
from qmd.core.packet_fields import reach_time_s, receive_time_s
from qmd.directory.resolver import MustAsk
from qmd.errors import Refusal
from qmd.message.addresses import NO_ADDRESS
from qmd.message.build import compose
from qmd.message.limits import PRIORITY_MAX
from qmd.message.template import Template
from qmd.queues.local_queue import LocalQueue
from qmd.queues.outgoing_queue import OutgoingQueue
from qmd.transfer import confirmation_requests

if TYPE_CHECKING:
    from qmd.naming.destinations import Destinations, Route
    from qmd.operations.send_checks import SendChecks
    from qmd.runtime.services import Services


class NotUniform(Exception):
    """These rows cannot be published together: `MessageSender` has to send them."""


@dataclass(slots=True)
class MessageShape:
    """The common properties of messages."""

    example: NewMessage  # the first message of this shape
    queue: Route
    delivery: int
    template: Template
    reach_s: int | None  # the time to reach their queue
    live_s: int | None  # the time to be received
    transaction_at: int  # the offset of the position in a sequence, if they have one

    @property
    def in_sequence(self) -> bool:
        """Whether these messages belong to an outgoing sequence."""
        return self.delivery == TRANSACTIONAL and isinstance(self.queue, OutgoingQueue)

    @property
    def level(self) -> int:
        """The level of their lookup ids, which orders messages by priority."""
        if self.delivery == TRANSACTIONAL:
            return PRIORITY_MAX
        return PRIORITY_MAX - self.example.priority


class ShapeBuilder:
    """The part that makes shapes and finds the routes of their messages."""

    def __init__(
        self,
        services: Services,
        destinations: Destinations,
        checks: SendChecks,
        *,
        in_transaction: bool = False,
    ) -> None:
        self._in_transaction = in_transaction
        #: Whether acknowledgments of arrival here are made beside the messages.
        self.acknowledges = False
        self._services = services
        self._destinations = destinations
        self._checks = checks

    def build(self, new: NewMessage, sent_s: int) -> MessageShape:
        """Return the shape of messages like `new` that are sent at `sent_s`.

        Raises NotUniform if they have to be sent one by one, and MustAsk.
        """
        queue, delivery = self.route_of(new)
        names = self._destinations
        is_transactional = delivery == TRANSACTIONAL
        model = compose(
            new,
            source=self._services.id,
            destination=queue.address,
            admin=names.replies.address(new.admin_queue) if new.admin_queue else NO_ADDRESS,
            response=names.replies.address(new.response_queue)
            if new.response_queue
            else NO_ADDRESS,
            message_number=0,
            sent_time_s=sent_s,
            delivery=delivery,
            position=(0, 0, 0) if is_transactional else None,
            dead_letter=confirmation_requests.asks(self._services, new)
            if is_transactional
            else new.dead_letter is not False,
            time_to_reach_queue_s=int(self._services.settings.delivery.time_to_reach_queue_s),
        )
        template = Template(model)
        if not template.fits:
            raise NotUniform
        return MessageShape(
            new,
            queue,
            delivery,
            template,
            reach_time_s(model),
            receive_time_s(model),
            transaction_offset(model) or 0,
        )

    def is_accepted(self, new: NewMessage) -> bool:
        """Return whether a message passes all checks now, such as that of its protection."""
        try:
            self._checks.check([new], in_transaction=self._in_transaction, is_part=True)
        except Refusal:
            return False
        return True

    def route_of(self, new: NewMessage) -> tuple[Route, int]:
        """Return the queue and the delivery of a message.

        Raises NotUniform, also if the message is refused, and MustAsk.
        """
        if new.report_queue or new.dead_letter_queue or self._services.lifecycle.stopping:
            raise NotUniform
        try:
            way = self._checks.way_of(new, in_transaction=self._in_transaction)
        except MustAsk:
            raise
        except Refusal as refusal:
            raise NotUniform from refusal
        if way is None or way[1] == EXPRESS:
            raise NotUniform
        causes_another = new.acknowledge & POSITIVE_ARRIVAL and isinstance(way[0], LocalQueue)
        if causes_another and not self.acknowledges:
            raise NotUniform
        return way
