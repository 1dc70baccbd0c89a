"""The usage of quotas, and the thresholds at which it is reported."""

from __future__ import annotations

from qmd.queues.usage import Gauge, Measured, Usage


def gauge(quota_bytes: int | None) -> tuple[Gauge, list[int]]:
    noticed: list[int] = []
    return Gauge(quota_bytes, lambda gauge: noticed.append(gauge.noticed_percent)), noticed


def test_each_threshold_is_noticed_once_on_the_way_up() -> None:
    full, noticed = gauge(1000)

    for _ in range(1000):
        full.grow(1)

    assert noticed == [70, 85, 95]
    assert full.used_percent == 100
    assert not full.has_room(1)


def test_it_is_noticed_at_the_very_byte() -> None:
    full, noticed = gauge(1000)

    full.grow(699)
    assert noticed == []
    full.grow(1)
    assert noticed == [70]


def test_a_jump_is_noticed_once_with_the_highest_that_was_reached() -> None:
    full, noticed = gauge(1000)

    full.grow(960)

    assert noticed == [95]


def test_swinging_around_a_threshold_is_not_noticed_again() -> None:
    full, noticed = gauge(1000)
    full.grow(700)

    for _ in range(10):
        full.shrink(49)
        full.grow(49)

    assert noticed == [70]
    assert full.noticed_percent == 70


def test_a_threshold_that_was_clearly_left_is_noticed_anew() -> None:
    full, noticed = gauge(1000)
    full.grow(950)
    full.shrink(51)  # 899: clearly below 95 percent, but not below 85 percent
    assert full.noticed_percent == 85
    full.grow(51)
    full.shrink(301)  # 649: clearly below all thresholds
    assert full.noticed_percent == 0
    full.grow(51)

    assert noticed == [95, 95, 70]


def test_another_quota_is_another_measure() -> None:
    full, noticed = gauge(1000)
    full.grow(800)

    full.set_quota(10_000)
    assert (full.noticed_percent, full.used_percent) == (0, 8)
    full.set_quota(800)
    full.set_quota(None)

    assert noticed == [70, 95]
    assert full.used_percent is None
    assert full.has_room(1 << 60)


def test_what_has_no_room_at_all_is_full_and_says_nothing() -> None:
    full, noticed = gauge(0)

    assert full.has_room(0)
    assert not full.has_room(1)
    assert full.used_percent == 100
    assert noticed == []


def test_a_queue_counts_towards_the_whole() -> None:
    usage = Usage(1000)
    queue, other = Measured(usage, 300), Measured(usage, 200)

    queue.grow(100)
    other.shrink(50)

    assert (queue.bytes, other.bytes, usage.bytes) == (400, 150, 550)
