"""Acknowledgments of ends that this queue manager finds itself, in its outgoing queues.

The unit of work that ends a message stores the acknowledgments that are owed for it
(`storage/tables/owed.py`). They are sent after its commit; those that a crash prevented are sent at
the next start.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from protocol import parse_user_message
from protocol.message_class import MessageClass
from qmd.core.disposition import consequences
from qmd.core.packet_fields import has_admin_queue, is_transactional
from storage.tables import owed as owed_rows

if TYPE_CHECKING:
    from qmd.outcomes.acknowledgments import Acknowledgments
    from qmd.runtime.services import Services

# Ends that this computer finds. Other ends are reported by the destination, which acknowledges
# them to the application itself.
_FOUND_HERE = frozenset({MessageClass.NACK_REACH_QUEUE_TIMEOUT, MessageClass.NACK_DELETED})


class SourceAcknowledgments:
    """Sends the acknowledgments of messages that ended in outgoing queues."""

    def __init__(self, services: Services, acknowledgments: Acknowledgments) -> None:
        self._services = services
        self._acknowledgments = acknowledgments

    async def send_owed(self) -> None:
        """Send the acknowledgments of ends that were committed before a crash of the process."""
        for row, is_whole in await self._services.storage.read(owed_rows.list_all):
            await self._services.ids.ensure(0)  # each message may name several queues
            if is_whole:
                self.send(row.packet, row.message_class, for_others=row.for_others)
            else:
                self._services.log_limited(
                    "acknowledgment_not_sent",
                    "owed",
                    count=1,
                    reason="it is not what was stored on the disk",
                )
            self._services.storage.batch.run(partial(owed_rows.remove, ids=[row.id]))

    def send(self, packet: bytes, message_class: int, *, for_others: bool) -> None:
        """Send the acknowledgment of a message with the open batch, if it asks for one.

        The source of a relayed transactional message gets a final ack instead.
        """
        batch = self._services.storage.batch
        if for_others and is_transactional(packet):
            self._acknowledgments.send_final_acks([packet], message_class, batch)
            return
        original = parse_user_message(packet)
        result = consequences(
            original,
            message_class,
            at_source=True,
            # An application here may learn which queues its messages have not reached.
            insecure_nacks=self._services.settings.delivery.insecure_nacks or not for_others,
        )
        if result.acknowledgment is not None:
            self._acknowledgments.to_application(original, result.acknowledgment, batch)


def is_owed(
    packet: bytes, message_class: int, *, for_others: bool, is_found_here: bool = False
) -> bool:
    """Return whether an acknowledgment of this end may be due that only this computer sends.

    `is_found_here`: the destination has not reported the end, whatever the class says.
    """
    if for_others and is_transactional(packet):
        # A message that expires here expires at its source as well, without an acknowledgment.
        return message_class != MessageClass.NACK_REACH_QUEUE_TIMEOUT
    is_found_here = is_found_here or message_class in _FOUND_HERE
    return is_found_here and has_admin_queue(packet)
