"""The oracle of acknowledgments: senders get those that they asked for, and each one is true."""

from __future__ import annotations

import math
from collections.abc import Mapping

from tests.simulation.acknowledgments import RECEIVED, Acknowledgment, Acknowledgments
from tests.simulation.message_records import Place, Sent
from tests.simulation.oracle_state import OracleState


class AcknowledgmentOracle:
    """The acknowledgments that administration queues received, against the messages."""

    def __init__(self, state: OracleState) -> None:
        self._state = state
        self._acknowledgments = Acknowledgments(state.fail)
        self._requesting: list[Sent] = []  # messages that asked for acknowledgments
        # Messages that were acknowledged as received before an application reported it.
        self._unreported: dict[int, Sent] = {}
        # Host without administration queue -> messages up to this number may get none.
        self._unacknowledged_to: dict[str, float] = {}

    def attempted(self, message: Sent) -> None:
        """Record that a message that asks for acknowledgments is sent."""
        self._requesting.append(message)

    def confirmed(self, message: Sent, sent_id: str) -> None:
        """Record the id that the sender got for its message."""
        self._acknowledgments.sent(message.number, sent_id)
        self._check(message)

    def received(self, host: str, acknowledgment: Acknowledgment) -> None:
        """Record that an application on `host` received an acknowledgment.

        It may receive it again until it is `removed`.
        """
        number, _ = self._acknowledgments.received(acknowledgment)
        if number is not None:
            message = self._state.messages[number]
            self._check(message)
            if message.source != host:
                self._state.fail(f"message {number} was acknowledged to {host}")

    def removed(self, acknowledgment: Acknowledgment) -> None:
        """Record that an acknowledgment was removed for good."""
        self._acknowledgments.removed(acknowledgment)

    def lost_disk(self) -> None:
        """Record that a host has lost its acknowledgments with its disk."""
        self._acknowledgments.lost_disk()

    def queue_is_being_deleted(self, host: str) -> None:
        """Record that the administration queue of `host` is about to be deleted."""
        self._unacknowledged_to[host] = math.inf

    def queue_exists(self, host: str, last_number: int) -> None:
        """Record that `host` has an administration queue.

        Messages after `last_number` must be acknowledged again.
        """
        if host in self._unacknowledged_to:
            self._unacknowledged_to[host] = min(self._unacknowledged_to[host], last_number)

    def check_unreported(self) -> None:
        """Check messages that were acknowledged as received, and that no application reported."""
        for message in list(self._unreported.values()):
            if message.received:
                del self._unreported[message.number]
            else:
                self._check_receipt(message)

    def check_end(self, places: Mapping[int, list[Place]]) -> None:
        """Check that each message that asked for acknowledgments got them."""
        for message in self._requesting:
            self._check(message)
        if self._state.has_lost_disk:
            return
        for message in self._requesting:
            if (
                not message.confirmed
                or message.refused  # cancelled before it was sent
                or message.delivery == "express"
                or message.may_be_lost
                or message.number <= self._unacknowledged_to.get(message.source, 0)
                or any(place.kind == "queue" for place in places[message.number])
            ):
                continue
            was_received = bool(message.received)
            if was_received or not self._state.may_be_received(message):
                self._acknowledgments.check_end(message, was_received=was_received)

    def _check(self, message: Sent) -> None:
        """Check the acknowledgments of one message.

        Earlier ones stay true, except that an application may report the receipt later.
        """
        acknowledgments = self._acknowledgments
        acknowledgments.check(message, is_exact=not self._state.has_lost_disk)
        if not message.received and RECEIVED in acknowledgments.classes_of(message.number):
            self._unreported[message.number] = message
            self._check_receipt(message)

    def _check_receipt(self, message: Sent) -> None:
        if not self._state.may_be_received(message):
            self._state.fail(
                f"message {message.number} is acknowledged as received, and no reader has it"
            )
