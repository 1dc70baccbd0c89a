"""Times of retries, and their description for operators."""

import pytest

from qmd.core.connection_status import ConnectionStatus, hresult, status_of_end
from qmd.core.retry import HISTORY_ATTEMPTS_MAX, Attempt, QueueState, Retry

STATUS = ConnectionStatus


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


def test_a_host_that_does_not_answer_is_tried_again_sooner():
    retry = Retry(first_s=0.5, max_s=60.0)
    waits, now = [], 100.0
    for _ in range(6):
        retry.failed(now, "connection refused", pause_max_s=1.5)
        waits.append(retry.next_attempt - now)
        now = retry.next_attempt

    assert waits == [0.5, 1.0, 1.5, 1.5, 1.5, 1.5]
    retry.failed(now, "the peer refused the session")
    assert retry.next_attempt - now == 32.0


def test_no_attempt_comes_before_the_first_pause_that_an_operator_has_set():
    retry = Retry(first_s=1000.0, max_s=1000.0)
    retry.failed(0.0, "connection refused", pause_max_s=1.5)
    assert retry.next_attempt == 1000.0


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
    assert retry.history[-1] == Attempt(50.0, "connected", status=STATUS.ESTABLISHED, error=0)


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
        Attempt(1.0, "connected", "hostb:1801", status=STATUS.ESTABLISHED, error=0),
        Attempt(39.0, "connection refused", "hostb:1801", 30, 10.0),
        Attempt(50.0, "connection refused", "10.0.0.5:1801"),
    ]


def statuses(retry: Retry) -> list[ConnectionStatus]:
    return [attempt.status for attempt in retry.history]


def test_the_steps_to_a_session_are_entries_with_the_status_of_each():
    """[MS-MQQB] 3.1.5.2.3, 3.1.5.3.2, 3.1.5.4"""
    retry = Retry()
    retry.began(1.0, "hostb:1801")
    assert statuses(retry) == [STATUS.IN_PROCESS]
    assert retry.last is None, "no attempt has ended"
    retry.answered(2.0, "hostb:1801")
    retry.answered(2.5, "hostb:1801")
    retry.succeeded(3.0, "hostb:1801")

    assert statuses(retry) == [
        STATUS.IN_PROCESS,
        STATUS.ESTABLISH_PACKET_RECEIVED,
        STATUS.ESTABLISHED,
    ]
    assert [attempt.error for attempt in retry.history] == [0, 0, 0]


def test_attempts_that_fail_for_days_do_not_displace_the_earlier_history():
    retry = Retry()
    retry.began(0.0, "hostb")
    retry.succeeded(0.5, "hostb")
    for second in range(1, 100):
        retry.began(float(second), "hostb")
        retry.failed(second + 0.5, "no answer", "hostb", status=STATUS.SOCKET_CONNECT_FAILURE)
    retry.began(200.0, "hostb")

    assert statuses(retry) == [
        STATUS.IN_PROCESS,
        STATUS.ESTABLISHED,
        STATUS.SOCKET_CONNECT_FAILURE,
        STATUS.IN_PROCESS,
    ]
    assert retry.last is not None
    assert (retry.last.times, retry.last.result) == (99, "no answer")


def test_there_are_the_17_values_of_the_data_model():
    """[MS-MQDMPR] 3.1.1.3"""
    assert len(STATUS) == 17
    assert all(0 <= hresult(status) <= 0xFFFFFFFF for status in STATUS)
    fine = {STATUS.IN_PROCESS, STATUS.ESTABLISH_PACKET_RECEIVED, STATUS.ESTABLISHED}
    assert {status for status in STATUS if hresult(status) == 0} == fine


@pytest.mark.parametrize(
    ("reason", "was_open", "status"),
    [
        ("the peer refused the session", False, STATUS.CONNECTION_REFUSED),
        ("the peer closed the connection", False, STATUS.CONNECTION_REFUSED),
        ("the peer closed the connection", True, STATUS.SOCKET_SEND_FAILURE),
        ("the connection was lost: reset", True, STATUS.SOCKET_SEND_FAILURE),
        ("no session after 60 s: waiting", False, STATUS.CONNECTION_NOT_READY),
        ("refused: too many sessions", False, STATUS.CONNECTION_LIMIT_REACHED),
        ("the counts do not match", True, STATUS.UNKNOWN_FAILURE),
    ],
)
def test_the_end_of_a_session_has_the_status_that_describes_it(reason, was_open, status):
    assert status_of_end(reason, was_open=was_open) is status


def test_states_have_the_names_of_the_management_of_windows():
    """[MS-MQMQ] 2.3.12.11"""
    assert {state.windows_name for state in QueueState} == {
        "INACTIVE",
        "WAITING",
        "NEED VALIDATION",
        "ONHOLD",
        "CONNECTED",
        "DISCONNECTING",
        "DISCONNECTED",
        "LOCKED",
    }


def test_pauses_grow_on_over_sessions_of_no_use() -> None:
    retry = Retry(first_s=0.5, max_s=60.0)
    pauses = []
    for now in (0.0, 100.0, 200.0):
        retry.failed(now, "the peer closed the connection", pause_max_s=1.5)
        pauses.append(retry.next_attempt - now)
        retry.succeeded(now + 50, keeps_pause=True)
    assert pauses == [0.5, 1.0, 1.5]

    retry.proved_useful()
    retry.failed(300.0, "the peer closed the connection")
    assert retry.next_attempt == 300.5
