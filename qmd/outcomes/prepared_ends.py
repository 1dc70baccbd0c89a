"""Prepared ends: what follows the end of many messages, found and made before their commit."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from protocol import parse_user_message
from protocol.message_class import MessageClass
from qmd.core.packet_fields import may_want_word

if TYPE_CHECKING:
    from qmd.core.disposition import EndsAtDestination
    from qmd.outcomes.acknowledgment_columns import AcknowledgmentColumns


class PreparedEnd:
    """One end of messages of one queue: `add` takes them in parts, before they end.

    Nothing has changed until `write`, so that it may be forgotten at any time.
    """

    def __init__(
        self, message_class: int, ends: EndsAtDestination, columns: AcknowledgmentColumns
    ) -> None:
        self._is_receipt = message_class == MessageClass.ACK_RECEIVE
        self._ends = ends
        self._columns = columns
        self.lookup_ids: set[int] = set()
        #: The packets of messages whose end has other consequences than acknowledgments: those
        #: that become dead letters, and all others.
        self.dead_letters: list[bytes] = []
        self.others: list[bytes] = []

    def add(self, messages: Iterable[tuple[int, bytes]]) -> None:
        """Make the acknowledgments of messages, given as lookup ids and packets.

        Message numbers must be left for them.
        """
        for_final_ack: list[bytes] = []
        for lookup_id, packet in messages:
            self.lookup_ids.add(lookup_id)
            if self._is_receipt and not may_want_word(packet):
                continue
            result = self._ends.of(packet)
            if result.acknowledgment is not None:
                self._columns.add(parse_user_message(packet))
            if self._is_receipt and not result.journal:
                if result.final_ack is not None:
                    for_final_ack.append(packet)
            elif result.dead_letter is not None and self._ends.is_local(packet):
                self.dead_letters.append(packet)
            else:
                self.others.append(packet)
        if for_final_ack:
            self._columns.add_final_acks(for_final_ack)

    @property
    def acknowledgments(self) -> int:
        """The number of acknowledgments."""
        return self._columns.count

    def place(self, lookup_ids: Iterable[int]) -> None:
        """Set the lookup ids of all of its messages, which `add` did not get."""
        self.lookup_ids = set(lookup_ids)

    def is_for(self, lookup_ids: Iterable[int]) -> bool:
        """Return whether all of its messages are among these."""
        return self.lookup_ids.issubset(lookup_ids)

    def write(self) -> None:
        """Send the acknowledgments with the open batch, which ends the messages.

        As many lookup ids must be left.
        """
        self._columns.write()
