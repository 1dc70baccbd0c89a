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
