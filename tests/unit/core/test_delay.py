"""Due times on two clocks."""

from __future__ import annotations

import pytest

from qmd.core.delay import OWN, WALL, Due, Now, due_of, wait_s

NOW = Now(wall_ms=1_000_000, own_ms=5_000)


def test_a_time_is_due_by_the_wall_clock_and_a_delay_by_our_own() -> None:
    assert due_of(1_000_100, 0, NOW) == Due(WALL, 1_000_100)
    assert due_of(0, 100, NOW) == Due(OWN, 5_100)


@pytest.mark.parametrize("deliver_at_ms", [0, 1, 999_999, 1_000_000])
def test_a_time_that_has_come_is_due_at_once(deliver_at_ms: int) -> None:
    assert due_of(deliver_at_ms, 0, NOW) is None


def test_due_times_are_shown_by_the_wall_clock_of_now() -> None:
    assert Due(WALL, 7).wall_ms(NOW) == 7
    assert Due(OWN, 5_100).wall_ms(NOW) == 1_000_100
    set_back = NOW._replace(wall_ms=NOW.wall_ms - 600)
    assert Due(OWN, 5_100).wall_ms(set_back) == 999_500


def test_the_first_of_both_clocks_ends_the_wait() -> None:
    assert wait_s(None, None, NOW) is None
    assert wait_s(1_002_000, None, NOW) == 2
    assert wait_s(1_002_000, 5_500, NOW) == 0.5
    assert wait_s(1, 9_000, NOW) == 0
