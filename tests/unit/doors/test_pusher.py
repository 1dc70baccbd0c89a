"""Pauses of pushes after failures."""

from __future__ import annotations

import pytest

from qmd.core.retry_policy import End, RetryPolicy
from qmd.doors.http.pushes import StoredPush
from qmd.doors.patience import pause_s

PUSH = StoredPush(
    name="hook", queue="q", url="http://x/", secret="", first_pause_s=2.0, last_pause_s=60.0
)


@pytest.mark.parametrize(
    ("policy", "failures", "retry_after_s", "expected"),
    [
        (RetryPolicy(5, delay_s=1, jitter=0), 3, 0.0, 4.0),
        (RetryPolicy(5, immediate=2, delay_s=1, jitter=0), 2, 0.0, 0.0),
        (RetryPolicy(5, immediate=2, delay_s=1, jitter=0), 3, 0.0, 1.0),
        (RetryPolicy(5, delay_s=0, jitter=0), 2, 0.0, 4.0),  # that of the push
        (RetryPolicy(5, delay_s=1, jitter=0), 5, 9.0, 0.0),  # it has ended
        (RetryPolicy(5, delay_s=1, jitter=0, end=End.STAY), 7, 0.0, 64.0),
        (RetryPolicy(0, delay_s=1, delay_max_s=8, jitter=0), 500, 0.0, 8.0),
        (RetryPolicy(5, delay_s=1, jitter=0), 1, 30.0, 30.0),
        (RetryPolicy(5, delay_s=1, jitter=0), 1, 900.0, 60.0),
    ],
)
def test_a_pause_is_that_of_the_policy(
    policy: RetryPolicy, failures: int, retry_after_s: float, expected: float
) -> None:
    assert pause_s(PUSH, policy, failures, retry_after_s) == expected
