"""The choice of the next messages: by arrival, within the limits, at least one."""

from __future__ import annotations

import pytest

from qmd.bulk.reserve_next import _first
from storage.tables.keys import ARRIVAL_MAX

LOW_PRIORITY = ARRIVAL_MAX + 1  # the level stands above the arrival number


@pytest.mark.parametrize(
    ("rows_max", "bytes_max", "expected"),
    [
        (9, 1000, [1, LOW_PRIORITY | 2, 3]),
        (2, 1000, [1, LOW_PRIORITY | 2]),
        (9, 30, [1, LOW_PRIORITY | 2]),
        (9, 1, [1]),
    ],
)
def test_messages_are_chosen_by_arrival(rows_max: int, bytes_max: int, expected: list[int]) -> None:
    sizes = {3: 30, 1: 10, LOW_PRIORITY | 2: 20}

    chosen = _first(sizes, rows_max, bytes_max)
    assert chosen.runs == [(each, each) for each in expected]
    assert chosen.messages == len(expected)
    assert chosen.bytes == sum(sizes[each] for each in expected)
