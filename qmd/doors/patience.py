"""Attempts and pauses of deliveries by a process beside the daemon: pushes and triggers.

The policy of a queue comes before that of the push or trigger.  Where the order matters the message
waits at its place, and the process pauses in front of it; the daemon counts the attempts.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any, Protocol

from qmd.core import retry_policy
from qmd.core.retry_policy import End, RetryPolicy, Wait

JITTER = 0.2  # the part by which pauses differ


class Patience(Protocol):
    """The attempts and pauses that a definition states."""

    @property
    def attempts(self) -> int: ...
    @property
    def first_pause_s(self) -> float: ...
    @property
    def last_pause_s(self) -> float: ...


def policy_of(own: Patience, queue: Mapping[str, Any]) -> RetryPolicy:
    """Return the policy in the facts of a queue, or that of the definition if it has none."""
    if (stored := queue.get("retry")) is not None:
        return RetryPolicy(**{**stored, "end": End(stored["end"])})
    return RetryPolicy(
        own.attempts,
        delay_s=own.first_pause_s,
        delay_max_s=own.last_pause_s,
        jitter=JITTER,
        end=End.DEAD_LETTER,
    )


def pause_s(own: Patience, policy: RetryPolicy, failures: int, retry_after_s: float = 0.0) -> float:
    """Return how long to wait in front of a message after so many failures of it.

    A policy without waits has those of the definition.
    """
    if policy.attempts and failures >= policy.attempts and policy.end is not End.STAY:
        return 0.0  # another message follows
    if policy.delay_s <= 0:
        policy = policy._replace(delay_s=own.first_pause_s, delay_max_s=own.last_pause_s)
    step = retry_policy.next_step(policy._replace(attempts=0), failures, random.random())  # nosec B311: jitter
    own_s = step.seconds if isinstance(step, Wait) else 0.0
    return max(own_s, min(retry_after_s, own.last_pause_s))
