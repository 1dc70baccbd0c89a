"""The speed of a host, from sums of durations since the start of its daemon."""

from qmd.console.speed import Speed, SpeedMeter


def host(commit_s: float, commits: int, lag_s: float = 0.0, lags: int = 1) -> dict:
    return {
        "commits": {"sum": commit_s, "counts": [0, commits]},
        "loop_lags": {"sum": lag_s, "counts": [lags]},
    }


def test_the_mean_is_that_of_the_time_between_two_samples():
    meter = SpeedMeter()

    assert meter.means(host(1.0, 100), 0.0) == (0.01, 0.0)
    assert meter.means(host(1.4, 101, 0.5, 2), 2.0)[0] > 0.39
    # A minute later the first sample does not count any more.
    assert meter.means(host(1.4, 101, 0.5, 3), 70.0) == (None, 0.0)


def test_a_restart_of_the_daemon_begins_anew():
    meter = SpeedMeter()
    meter.means(host(100.0, 100, lags=100), 0.0)

    assert meter.means(host(0.2, 10, lags=1), 2.0) == (0.02, 0.0)


def test_a_slow_host_has_reasons_and_a_fast_one_none():
    fast = Speed(0.004, 0.001, 0.05, "DIRECT=OS:b\\x", 2.0, "DIRECT=OS:b\\x")
    slow = fast._replace(commit_s=0.4, round_trip_s=5.0, backlog_s=900.0)

    assert fast.reasons(0.01) == []
    assert Speed().reasons(0.01) == []
    assert [each.split()[0] for each in slow.reasons(0.01)] == ["A", "DIRECT=OS:b\\x", "A"]
    assert "400 ms: the disk is slow" in slow.reasons(0.01)[0]
    assert fast.reasons(1.0) == ["It answers the console in 1,000 ms."]
