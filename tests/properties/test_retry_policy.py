"""Retry policies: for all values, waits have bounds and attempts have an end."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from qmd.core.retry_policy import Again, End, Over, RetryPolicy, Wait, next_step, wait_s

POLICIES = st.builds(
    RetryPolicy,
    attempts=st.integers(0, 50),
    immediate=st.integers(0, 5),
    delay_s=st.floats(0, 1e6),
    factor=st.floats(1, 100),
    delay_max_s=st.floats(1e6, 3e7),
    jitter=st.floats(0, 1),
    end=st.sampled_from(End),
)
DRAWS = st.floats(0, 1, exclude_max=True)


@given(POLICIES, st.integers(1, 10**9), DRAWS)
def test_a_wait_is_never_longer_than_the_longest_one_with_its_jitter(
    policy: RetryPolicy, failures: int, draw: float
) -> None:
    step = next_step(policy, failures, draw)
    if isinstance(step, Wait):
        assert 0 <= step.seconds <= policy.delay_max_s * (1 + policy.jitter)
    if policy.attempts and failures >= policy.attempts:
        assert step == (Again() if policy.end is End.STAY else Over(policy.end))
    else:
        assert not isinstance(step, Over)


@given(POLICIES, st.integers(1, 10**6))
def test_waits_without_jitter_never_become_shorter(policy: RetryPolicy, cycle: int) -> None:
    assert policy.delay_s * 0.999 <= wait_s(policy, cycle) <= wait_s(policy, cycle + 1)


@given(POLICIES, DRAWS)
def test_immediate_attempts_follow_each_other(policy: RetryPolicy, draw: float) -> None:
    for failures in range(1, policy.immediate + 1):
        if not policy.attempts or failures < policy.attempts:
            assert next_step(policy, failures, draw) == Again()
