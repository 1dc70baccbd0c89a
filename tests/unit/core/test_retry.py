"""Times of retries, and their description for operators."""

import pytest

from qmd.core.retry import HISTORY_ATTEMPTS_MAX, Attempt, QueueState, Retry


def test_the_first_attempt_is_made_at_once():
    assert Retry().next_attempt <= 0.0


def test_each_failure_doubles_the_wait_up_to_the_limit():
    retry = Retry(first_s=5.0, max_s=60.0)
    waits, now = [], 100.0

    for _ in range(6):
        retry.failed(now, "connection refused")
        waits.append(retry.next_attempt - now)
        now = retry.next_attempt

    assert waits == [5.0, 10.0, 20.0, 40.0, 60.0, 60.0]
    assert retry.failures == 6


def test_a_success_resets_the_waits():
    retry = Retry(first_s=5.0, max_s=60.0)
    retry.failed(0.0, "connection refused")
    retry.failed(5.0, "connection refused")

    retry.succeeded(15.0)
    assert (retry.next_attempt, retry.failures) == (15.0, 0)

    retry.failed(20.0, "the peer closed the connection")
    assert retry.next_attempt == 25.0


def test_a_kick_allows_an_attempt_at_once_and_resets_the_waits():
    retry = Retry(first_s=5.0, max_s=60.0)
    for _ in range(5):
        retry.failed(0.0, "connection refused")

    retry.kick(1.0)
    assert retry.next_attempt == 1.0
    assert retry.failures == 5, "a wish is no success"

    retry.failed(2.0, "connection refused")
    assert retry.next_attempt == 7.0


def test_the_last_attempts_are_kept_for_operators():
    retry = Retry()
    for second in range(HISTORY_ATTEMPTS_MAX):
        retry.failed(float(second), f"failure {second}")

    retry.succeeded(50.0)

    assert len(retry.history) == HISTORY_ATTEMPTS_MAX == 20
    assert retry.history[0] == Attempt(1.0, "failure 1")
    assert retry.history[-1] == Attempt(50.0, "connected")


@pytest.mark.parametrize("state", QueueState)
def test_each_state_of_a_queue_is_described_in_one_sentence(state):
    assert state.value == state.name.lower()
    assert state.description.endswith(".")
    assert state.description.count(".") == 1


def test_repeated_results_are_one_entry_with_a_count():
    retry = Retry()
    retry.succeeded(1.0, "hostb:1801")
    for second in range(10, 40):
        retry.failed(float(second), "connection refused", "hostb:1801")
    retry.failed(50.0, "connection refused", "10.0.0.5:1801")

    assert list(retry.history) == [
        Attempt(1.0, "connected", "hostb:1801"),
        Attempt(39.0, "connection refused", "hostb:1801", 30, 10.0),
        Attempt(50.0, "connection refused", "10.0.0.5:1801"),
    ]
