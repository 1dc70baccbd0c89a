"""Outcomes of messages in the batch that stores them: arrival here, refusal here, dead letters."""

from __future__ import annotations

from typing import TYPE_CHECKING

from protocol import parse_user_message
from protocol.message_class import MessageClass
from qmd.control_protocol.messages import EXPRESS, NewMessage
from qmd.core.acknowledgment import POSITIVE_ARRIVAL
from qmd.errors import Refusal
from qmd.message.shared_packet import Packet, whole
from qmd.queues.outgoing_queue import OutgoingQueue
from storage.tables.keys import LOOKUP_BITS

if TYPE_CHECKING:
    from qmd.naming.destinations import Route
    from qmd.outcomes.acknowledgments import Acknowledgments
    from qmd.outcomes.dead_letter import DeadLetters
    from qmd.outcomes.reports import Reports
    from qmd.queues.local_queue import LocalQueue
    from qmd.queues.named_dead_letter_queue import NamedDeadLetterQueues
    from storage.engine.batch import Batch


class SendOutcomes:
    """The outcomes that are known when a message is sent."""

    def __init__(
        self,
        acknowledgments: Acknowledgments,
        dead_letters: DeadLetters,
        own_dead_letters: NamedDeadLetterQueues,
        reports: Reports,
    ) -> None:
        self._acknowledgments = acknowledgments
        self._dead_letters = dead_letters
        self._own_dead_letters = own_dead_letters
        self._reports = reports

    def arrived(self, new: NewMessage, packet: Packet, batch: Batch) -> None:
        """Report and acknowledge the arrival of a message that reached a queue of this computer.
        [MS-MQDMPR] 3.1.1.12"""
        complete = whole(packet)
        if new.report_queue:
            self._reports.arrived(parse_user_message(complete), complete, batch)
        if new.acknowledge & POSITIVE_ARRIVAL:
            self._acknowledgments.to_application(
                parse_user_message(complete), MessageClass.ACK_REACH_QUEUE, batch
            )

    def refused(self, queue: LocalQueue, key: int, packet: bytes) -> None:
        """End a transactional copy in a queue of this computer that is not transactional: its
        outcome is that of such a message in a queue elsewhere.  docs/decisions/0006"""
        self._dead_letters.end(queue, [(key, packet)], MessageClass.NACK_NOT_TRANSACTIONAL_QUEUE)

    def name_dead_letter_queue(
        self, new: NewMessage, route: Route, number: int, delivery: int, key: int, batch: Batch
    ) -> None:
        """Store the dead-letter queue that the application named for a message."""
        own = self._own_dead_letters
        try:
            queue = own.check(new.dead_letter_queue, delivery)
        except Refusal:
            return  # deleted since its transaction began: the system's dead-letter queue serves
        place = "outgoing" if isinstance(route, OutgoingQueue) else "message"
        own.add(
            number,
            queue,
            place,
            route.id << LOOKUP_BITS | key,
            batch,
            express=delivery == EXPRESS,
        )
