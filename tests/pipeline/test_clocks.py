"""Clocks of hosts, from bounds of the differences between them."""

from __future__ import annotations

import pytest

pytest.importorskip("pandas", reason="the extra qmd-msmq[spark] is not installed")

import numpy as np
import pandas as pd

from pipeline.jobs.audit.clock_spans import SLOT_BOUNDS, SLOT_MS, Spans
from pipeline.jobs.clocks import BOUNDS, solve, solve_over_time

HOUR, MINUTE = 3_600_000, 60_000


def bounds(*rows: tuple[int, int, int, int | None, int]) -> pd.DataFrame:
    return pd.DataFrame(rows, columns=BOUNDS).astype(dict.fromkeys(BOUNDS, "Int64"))


def test_a_clock_that_goes_wrong_after_it_was_right_is_found() -> None:
    right = [(1, 2, 10, -20, 20), (1, 3, 10, -20, 20), (2, 3, 10, -20, 20)]
    wrong_later = [(1, 2, 11, -20, 20), (1, 3, 11, HOUR - 20, HOUR + 20),
                   (2, 3, 11, HOUR - 20, HOUR + 20)]  # fmt: skip

    offset, wrong = solve_over_time(bounds(*right, *wrong_later), 1000)

    assert wrong == {3: 0}
    assert abs(offset[3] - HOUR) < 100
    assert solve_over_time(bounds(*right), 1000)[1] == {}


def test_an_offset_without_acknowledgments_is_finite() -> None:
    offset, wrong = solve(
        bounds((1, 2, 10, None, 20), (1, 3, 10, None, -HOUR), (2, 3, 10, None, -HOUR)), 1000
    )

    assert wrong == {3: 0}
    assert all(np.isfinite(each) for each in offset.values())
    assert abs(offset[3] + HOUR) < 100


def test_a_day_with_one_pair_accuses_no_right_clock() -> None:
    """On the second day host 4 only compares with host 3, which is wrong, as other pairs show."""
    right = [(1, 2, 10, -20, 20), (1, 4, 10, -20, 20), (2, 4, 10, -20, 20)]
    wrong = [(a, b, day, low, high) for day in (10, 11) for a, b, low, high in (
        (1, 3, HOUR - 20, HOUR + 20), (2, 3, HOUR - 20, HOUR + 20),
        (1, 5, -HOUR - 20, 20 - HOUR), (2, 5, -HOUR - 20, 20 - HOUR),
        (5, 3, 2 * HOUR - 20, 2 * HOUR + 20),
    )]  # fmt: skip
    alone = (3, 4, 11, -HOUR - 20, 20 - HOUR)
    one_sided = (2, 4, 11, None, -HOUR)

    _, found = solve_over_time(bounds(*right, *wrong, alone, one_sided), 1000)

    assert found == {3: 0, 5: 0}


def test_a_pair_in_doubt_gives_way_to_a_day_without_doubt() -> None:
    """Host 2 is wrong from the 11th; the 12th alone does not show whether it is 1 or 2."""
    days = [(1, 2, 10, -20, 20), (1, 3, 10, -20, 20), (3, 2, 10, -20, 20),
            (1, 2, 11, HOUR - 20, HOUR + 20), (3, 2, 11, HOUR - 20, HOUR + 20),
            (1, 3, 11, -20, 20), (1, 2, 12, HOUR - 20, HOUR + 20)]  # fmt: skip

    assert solve_over_time(bounds(*days), 1000)[1] == {2: 0}


def slots(*rows: tuple[int, int, int, int | None, int]) -> pd.DataFrame:
    """Return bounds of pairs at times in minutes."""
    listed = [(a, b, minutes * MINUTE // SLOT_MS, low, minutes * MINUTE, high, minutes * MINUTE)
              for a, b, minutes, low, high in rows]  # fmt: skip
    return pd.DataFrame(listed, columns=SLOT_BOUNDS).astype(dict.fromkeys(SLOT_BOUNDS, "Int64"))


def span(bounds: pd.DataFrame, one: int, other: int, minutes: int) -> tuple[float, float]:
    at = np.array([minutes * MINUTE], np.float64)
    least, most = Spans(bounds).of([one], other, at, at)
    return float(least[0]), float(most[0])


def test_bounds_are_looser_the_longer_ago_a_message_is() -> None:
    one = slots((1, 2, 60, -5, 5))

    assert span(one, 1, 2, 60) == (-5, 5)
    assert span(one, 1, 2, 70) == (-605, 605)
    assert span(one, 2, 1, 60) == pytest.approx((-5, 5), abs=0.01)
    assert span(slots((1, 2, 60, -5, 5), (1, 2, 75, -5, 5)), 1, 2, 74) == (-65, 65)
    loose = slots((1, 2, 60, -5, 5), (1, 2, 75, -5, 2_400_000))  # after an outage of 40 minutes
    assert span(loose, 1, 2, 75) == (-5, 905)


@pytest.mark.parametrize("ppm", [100, 900, 5000])
@pytest.mark.parametrize("sign", [1, -1])
def test_a_clock_that_drifts_is_within_its_bounds_at_any_time(ppm: int, sign: int) -> None:
    """Bounds of one day must not be those of another part of the day."""

    def offset(minutes: int) -> int:
        return sign * ppm * minutes * MINUTE // 1_000_000

    hourly = slots(*((1, 2, at, offset(at) - 8, offset(at) + 8) for at in range(0, 24 * 60, 60)))

    for minutes in range(0, 25 * 60, 7):
        least, most = span(hourly, 1, 2, minutes)
        assert least - 1 <= offset(minutes) <= most + 1
        assert most - least < HOUR // 10


def test_a_clock_that_was_set_may_have_had_both_offsets_between_two_messages() -> None:
    was_set = slots(
        (1, 2, 0, -5, 5), (1, 2, 60, HOUR - 5, HOUR + 5), (1, 2, 90, HOUR - 5, HOUR + 5)
    )

    least, most = span(was_set, 1, 2, 50)
    assert least < 0
    assert most > HOUR
    least, most = span(was_set, 1, 2, 75)
    assert HOUR - 1000 < least < most < HOUR + 1000


def test_hosts_between_connect_two_clocks_at_about_that_time() -> None:
    over_two = slots((1, 2, 60, -5, 5), (3, 2, 60, -5, 5))

    least, most = span(over_two, 1, 3, 60)

    assert -10_000 < least < -10
    assert 10 < most < 10_000
    assert span(over_two, 1, 4, 60) == (-86_400_000, 86_400_000)
