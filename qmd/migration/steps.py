"""The steps of a plan, and their execution."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from qmd.migration.rights import Gap

if TYPE_CHECKING:
    from qmd.client import QueueManager


class Step(NamedTuple):
    """One change, and the function that makes it."""

    action: str
    about: str
    detail: str
    do: Callable[[QueueManager], Awaitable[object]]

    def facts(self) -> dict[str, str]:
        """Return the step for JSON."""
        return {"action": self.action, "object": self.about, "detail": self.detail}


class Plan(NamedTuple):
    """Steps in their order, and things without a counterpart."""

    steps: list[Step]
    gaps: list[Gap]
    unchanged: int  # queues that are as they were collected


async def carry_out(
    qm: QueueManager, steps: Sequence[Step], done: Callable[[Step], None] = lambda _: None
) -> int:
    """Make the changes of a plan, one after the other; return how many.

    Each is durable when `done` gets it.  An error ends the run; the next plan has the rest.
    """
    for step in steps:
        await step.do(qm)
        done(step)
    return len(steps)
