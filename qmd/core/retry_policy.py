"""Retry policies: the next step for a message that its application failed to process.

    failure ─► again at once ─► ... ─► wait in `;retry`, longer each time ─► ... ─► end

The number of failures is the message's abort count, which is stored with it.  docs/retries.md
"""

from __future__ import annotations

import enum
from typing import NamedTuple


class End(enum.StrEnum):
    """The fate of a message that has failed too often."""

    POISON = "poison"  # it is moved to the subqueue `;poison`
    DEAD_LETTER = "dead-letter"  # it is rejected: its sender, or this computer, keeps it
    STAY = "stay"  # it stays in its queue: its application ends it


class RetryPolicy(NamedTuple):
    """The policy of a queue, or of the application that failed."""

    attempts: int  # deliveries until it ends; 0: no limit
    immediate: int = 0  # attempts that follow at once, before each wait
    delay_s: float = 1.0  # the first wait; 0: none
    factor: float = 2.0  # of each wait to the next
    delay_max_s: float = 3600.0
    jitter: float = 0.2  # the part by which a wait may be shorter or longer
    end: End = End.POISON


class Again(NamedTuple):
    """The message returns to its place, and is delivered again."""


class Wait(NamedTuple):
    """The message waits for so long, where it does not block others."""

    seconds: float


class Over(NamedTuple):
    """The message has failed too often."""

    end: End


def next_step(policy: RetryPolicy, failures: int, draw: float) -> Again | Wait | Over:
    """Return the step after a number of failures, at least 1; `draw` is random, in [0, 1)."""
    if policy.attempts and failures >= policy.attempts:
        return Again() if policy.end is End.STAY else Over(policy.end)
    cycle, rest = divmod(failures, policy.immediate + 1)
    if rest or policy.delay_s <= 0:
        return Again()
    return Wait(wait_s(policy, cycle) * (1 + policy.jitter * (2 * draw - 1)))


def wait_s(policy: RetryPolicy, cycle: int) -> float:
    """Return the length of a wait without jitter; the first cycle is 1."""
    try:
        grown = policy.delay_s * float(policy.factor) ** (cycle - 1)
    except OverflowError:
        return policy.delay_max_s
    return min(grown, policy.delay_max_s)
