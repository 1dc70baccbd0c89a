"""Properties of a new transactional message that decide whether its receipt is to be confirmed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from qmd.core.confirmation import extended_interval_s
from qmd.core.packet_fields import INFINITE_S
from storage.tables import awaiting as awaiting_rows

if TYPE_CHECKING:
    from qmd.control_protocol.messages import NewMessage
    from qmd.runtime.services import Services


def asks(services: Services, new: NewMessage) -> bool:
    """Return whether a transactional message asks for dead-lettering, and so for confirmation.

    Confirmation costs both computers a packet and a commit.
    """
    if services.settings.delivery.xact_dead_letter_always:
        return True
    if new.dead_letter is None:
        return new.time_to_be_received_s not in (None, INFINITE_S)
    return new.dead_letter


def discards(services: Services, new: NewMessage) -> bool:
    """Return whether the application wants no dead letter of a message in any case."""
    return new.dead_letter is False and not asks(services, new)


def confirm_by_s(services: Services, new: NewMessage) -> int | None:
    """Return the end of the wait for a final ack, in seconds since 1970, as its row has it.

    None if the message needs no confirmation.
    """
    if not (new.journal or asks(services, new)):
        return None
    delay_s = services.settings.delivery.xact_delay_receive_nack_s
    interval_s = extended_interval_s(
        new.time_to_be_received_s,
        new.time_to_reach_queue_s,
        None if delay_s is None else int(delay_s),
    )
    return awaiting_rows.confirm_by(services.clock.deadline_s(interval_s))
