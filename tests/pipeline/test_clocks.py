"""Clocks of hosts, from bounds of the differences between them."""

from __future__ import annotations

import pytest

pytest.importorskip("pandas", reason="the extra qmd-msmq[spark] is not installed")

import numpy as np
import pandas as pd

from pipeline.jobs.clocks import BOUNDS, solve, solve_over_time

HOUR = 3_600_000


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
