"""The usage of quotas, and the thresholds at which it is reported."""

from __future__ import annotations

from qmd.queues.usage import Gauge, Measured, Usage


def gauge(quota_bytes: int | None) -> tuple[Gauge, list[int]]:
    noticed: list[int] = []
    return Gauge(quota_bytes, lambda gauge: noticed.append(gauge.noticed_percent)), noticed


def test_each_threshold_is_reported_once_while_the_usage_grows() -> None:
    full, noticed = gauge(1000)

    for _ in range(1000):
        full.grow(1)

    assert noticed == [70, 85, 95]
    assert full.used_percent == 100
    assert not full.has_room(1)


def test_a_threshold_is_exact_to_the_byte() -> None:
    full, noticed = gauge(1000)

    full.grow(699)
    assert noticed == []
    full.grow(1)
    assert noticed == [70]


def test_a_jump_over_thresholds_reports_the_highest_once() -> None:
    full, noticed = gauge(1000)

    full.grow(960)

    assert noticed == [95]


def test_small_changes_around_a_threshold_are_not_reported_again() -> None:
    full, noticed = gauge(1000)
    full.grow(700)

    for _ in range(10):
        full.shrink(49)
        full.grow(49)

    assert noticed == [70]
    assert full.noticed_percent == 70


def test_a_threshold_is_reported_again_after_the_usage_was_clearly_below_it() -> None:
    full, noticed = gauge(1000)
    full.grow(950)
    full.shrink(51)  # 899: clearly below 95 percent, but not below 85 percent
    assert full.noticed_percent == 85
    full.grow(51)
    full.shrink(301)  # 649: clearly below all thresholds
    assert full.noticed_percent == 0
    full.grow(51)

    assert noticed == [95, 95, 70]


def test_a_changed_quota_changes_the_thresholds() -> None:
    full, noticed = gauge(1000)
    full.grow(800)

    full.set_quota(10_000)
    assert (full.noticed_percent, full.used_percent) == (0, 8)
    full.set_quota(800)
    full.set_quota(None)

    assert noticed == [70, 95]
    assert full.used_percent is None
    assert full.has_room(1 << 60)


def test_a_quota_of_zero_is_full_and_reports_no_threshold() -> None:
    full, noticed = gauge(0)

    assert full.has_room(0)
    assert not full.has_room(1)
    assert full.used_percent == 100
    assert noticed == []


def test_the_usage_of_a_queue_counts_towards_the_total() -> None:
    usage = Usage(1000)
    queue, other = Measured(usage, 300), Measured(usage, 200)

    queue.grow(100)
    other.shrink(50)

    assert (queue.bytes, other.bytes, usage.bytes) == (400, 150, 550)
