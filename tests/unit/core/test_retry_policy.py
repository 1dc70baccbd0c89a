"""The next step of a message that failed."""

from __future__ import annotations

import pytest

from qmd.core.retry_policy import Again, End, Over, RetryPolicy, Wait, next_step, wait_s

EVEN = 0.5  # a draw that leaves a wait as it is


def steps(policy: RetryPolicy, failures: int) -> list[object]:
    return [next_step(policy, number, EVEN) for number in range(1, failures + 1)]


def test_waits_grow_to_the_longest_one() -> None:
    policy = RetryPolicy(attempts=6, delay_s=10, factor=3, delay_max_s=100)
    assert steps(policy, 6) == [
        Wait(10),
        Wait(30),
        Wait(90),
        Wait(100),
        Wait(100),
        Over(End.POISON),
    ]


def test_immediate_attempts_come_before_each_wait() -> None:
    policy = RetryPolicy(attempts=6, immediate=2, delay_s=10, factor=1)
    assert steps(policy, 6) == [
        *(Again(), Again(), Wait(10)),
        *(Again(), Again(), Over(End.POISON)),
    ]


def test_without_a_limit_a_message_never_ends() -> None:
    policy = RetryPolicy(attempts=0, delay_s=1, delay_max_s=8)
    assert next_step(policy, 10**9, EVEN) == Wait(8)
    assert wait_s(policy._replace(factor=100), 10**9) == 8


def test_without_a_delay_it_is_delivered_again_at_once() -> None:
    assert steps(RetryPolicy(attempts=3, delay_s=0), 3) == [Again(), Again(), Over(End.POISON)]


@pytest.mark.parametrize(("draw", "seconds"), [(0.0, 80.0), (EVEN, 100.0), (0.999999, 120.0)])
def test_jitter_spreads_the_waits(draw: float, seconds: float) -> None:
    step = next_step(RetryPolicy(attempts=9, delay_s=100, jitter=0.2), 1, draw)
    assert isinstance(step, Wait)
    assert step.seconds == pytest.approx(seconds, rel=1e-4)


def test_a_message_whose_application_ends_it_stays() -> None:
    policy = RetryPolicy(attempts=2, delay_s=5, end=End.STAY)
    assert steps(policy, 3) == [Wait(5), Again(), Again()]
