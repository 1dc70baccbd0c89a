"""The rules for a staged row."""

from __future__ import annotations

from qmd.control_protocol.messages import EXPRESS, NewMessage
from qmd.errors import Refusal
from qmd.message.limits import check


def check_row(row: NewMessage) -> None:
    """Raise Refusal if the row can never be published."""
    if row.delivery == EXPRESS:
        raise Refusal(
            "express_not_staged",
            "an express message cannot be published exactly once: it is stored in memory only,"
            " so a crash would lose it, or send it again after it was received",
            "Make it recoverable or transactional.",
        )
    check(row)
    if not row.destination:
        raise Refusal("name_not_understood", "a row names no destination", "Give each row a queue.")


def of_row(at: int, refusal: Refusal) -> Refusal:
    """Return a refusal that names the row with index `at`."""
    return Refusal(refusal.code, f"row {at}: {refusal.text}", refusal.remedy)
