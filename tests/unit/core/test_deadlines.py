"""Deadlines of messages that are in memory only."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from qmd.core.deadlines import Deadlines


def test_a_lifetime_includes_its_last_second() -> None:
    deadlines = Deadlines()
    deadlines.add(1, 10)

    assert deadlines.pop_over(10, 9) == []
    assert deadlines.pop_over(11, 9) == [1]
    assert deadlines.pop_over(11, 9) == []


def test_a_discarded_deadline_is_never_returned() -> None:
    deadlines = Deadlines()
    for key in range(6):
        deadlines.add(key, 10)
    deadlines.discard(0)

    assert deadlines.pop_over(11, 2) == [1, 2]
    deadlines.discard(3)  # already found to be over, but not returned yet
    deadlines.discard(99)
    assert deadlines.pop_over(11, 9) == [4, 5]
    assert len(deadlines) == 0


@given(
    st.dictionaries(st.integers(0, 50), st.integers(0, 20)),
    st.lists(st.tuples(st.integers(0, 22), st.integers(1, 9), st.integers(0, 50))),
)
def test_each_deadline_is_returned_once_when_it_is_over(
    ends: dict[int, int], looks: list[tuple[int, int, int]]
) -> None:
    deadlines = Deadlines()
    for key, last_s in ends.items():
        deadlines.add(key, last_s)

    now_s = 0
    for later_s, keys_max, discarded in looks:
        now_s = max(now_s, later_s)
        over = {key for key, last_s in ends.items() if last_s < now_s}
        found = deadlines.pop_over(now_s, keys_max)
        assert len(found) == min(len(over), keys_max)
        assert set(found) <= over
        for key in [*found, discarded]:
            ends.pop(key, None)
        deadlines.discard(discarded)
        assert len(deadlines) == len(ends)
