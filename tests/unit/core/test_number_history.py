"""The history of message numbers, compared with a plain set; and the order of forgetting."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qmd.core.number_history import (
    KEPT_MESSAGES,
    SILENT_S,
    Bounds,
    History,
    Segment,
    fair_share,
)

HIGHEST = 0xFFFFFFFF
#: Some numbers near each other, so that runs meet and merge; others anywhere.
NUMBERS = st.one_of(st.integers(1, 60), st.integers(0, HIGHEST))


class Oracle:
    """Message numbers as they came, each with the segment that it was added to."""

    def __init__(self) -> None:
        self.segments: dict[int, set[int]] = {}

    def add(self, number: int, segment_id: int) -> None:
        self.segments.setdefault(segment_id, set()).add(number)

    def forget(self, gone: list[Segment]) -> None:
        for segment in gone:
            del self.segments[segment.id]

    @property
    def known(self) -> set[int]:
        return set().union(*self.segments.values())


def runs_of(numbers: set[int]) -> int:
    return sum(number - 1 not in numbers for number in numbers)


def take(history: History, oracle: Oracle, number: int, now_s: int, new_id: int) -> list[Segment]:
    """Add a received number as the queue manager does; return the forgotten segments."""
    segment, gone = history.segment_at(now_s, new_id)
    segment.add(number)
    history.highest = max(history.highest, number)
    oracle.forget(gone)
    oracle.add(number, segment.id)
    return gone


@given(st.lists(NUMBERS, max_size=200))
def test_a_segment_is_the_set_of_its_numbers(numbers: list[int]) -> None:
    segment = Segment(1, 0)
    runs = 0
    for number in numbers:
        runs += segment.add(number)
        assert runs == segment.runs

    known = set(numbers)
    assert segment.messages == len(known)
    assert segment.runs == runs_of(known)
    for number in known | {each + 1 for each in known} | {each - 1 for each in known if each}:
        if number <= HIGHEST:
            assert segment.has(number) == (number in known)


@given(st.lists(st.tuples(st.integers(0, 90), st.integers(0, 9)), max_size=40))
def test_a_run_of_numbers_is_added_as_single_ones(runs: list[tuple[int, int]]) -> None:
    one, other = History(Bounds(1000, 100)), History(Bounds(1000, 100))
    for history in (one, other):
        history.segment_at(0, 1)
    for first, more in runs:
        grown = sum(one.add(number) for number in range(first, first + more + 1))
        assert other.add_run(first, first + more) == grown

    assert other.highest == one.highest
    assert other.segments[0].messages == one.segments[0].messages
    assert other.segments[0].runs == one.segments[0].runs
    assert [other.has(each) for each in range(110)] == [one.has(each) for each in range(110)]


@given(st.lists(st.tuples(st.integers(0, 90), st.integers(0, 9)), max_size=40))
def test_a_stored_segment_is_read_back(runs: list[tuple[int, int]]) -> None:
    stored = [(first, first + length) for first, length in runs]
    segment = Segment(1, 0)
    segment.restore(stored)

    known = {number for first, last in stored for number in range(first, last + 1)}
    assert segment.messages == len(known)
    assert segment.runs == runs_of(known)
    assert {number for number in range(110) if segment.has(number)} == known


@given(
    st.lists(st.tuples(NUMBERS, st.integers(0, 500)), max_size=300),
    st.integers(1, 60),
    st.integers(10, 2000),
)
def test_a_history_has_exactly_the_received_numbers(
    steps: list[tuple[int, int]], runs_min: int, age_s: int
) -> None:
    history, oracle, now_s = History(Bounds(runs_min, age_s)), Oracle(), 0
    for new_id, (number, pause_s) in enumerate(steps, 1):
        now_s += pause_s
        gone = take(history, oracle, number, now_s, new_id)
        if gone:  # enough runs are left without them and without the newest segment
            left = [segment.runs for segment in history.segments[:-1]]
            assert sum(left) >= runs_min
        old = history.forget_old(now_s)
        oracle.forget(old)
        if old:
            assert all(segment.last_s < now_s - age_s for segment in old)
            assert sum(segment.messages for segment in history.segments) >= KEPT_MESSAGES
        known = oracle.known
        assert number in known
        assert {each for each, _ in steps if history.has(each)} == {
            each for each, _ in steps if each in known
        }


def test_a_busy_source_keeps_its_maximum_of_runs() -> None:
    history, oracle = History(Bounds(800, 1800)), Oracle()
    for number in range(0, 10_000, 2):  # every second message goes to another receiver
        take(history, oracle, number, 0, number + 1)

    runs = sum(segment.runs for segment in history.segments)
    assert 800 <= runs <= 1100
    assert all(history.has(number) for number in range(10_000 - 1600, 10_000, 2))
    assert not history.has(0)


def test_consecutive_numbers_need_no_memory() -> None:
    history, oracle = History(Bounds(100, 1800)), Oracle()
    for number in range(1, 50_001):
        take(history, oracle, number, 0, number)

    assert history.has(1)
    assert len(history.segments) == 1
    assert history.measured() < 2000


def test_the_latest_numbers_of_a_silent_source_are_kept() -> None:
    history, oracle = History(Bounds(10_000, 1800)), Oracle()
    for number in range(1, 5001):
        take(history, oracle, number, number, number)  # one message per second
    oracle.forget(history.forget_old(now_s=5000))
    oracle.forget(history.forget_old(now_s=SILENT_S))

    assert not history.has(1)
    assert all(history.has(number) for number in range(5001 - KEPT_MESSAGES, 5001))

    assert history.forget_old(now_s=5001 + SILENT_S)
    assert not history.segments


@pytest.mark.parametrize(
    ("amounts", "total", "share"),
    [
        ([], 10, 10),
        ([1, 2, 3], 6, 3),
        ([1, 2, 30], 10, 7),
        ([5, 5, 5], 6, 2),
        ([1, 1, 100, 100], 22, 10),
        ([7], 0, 0),
    ],
)
def test_a_source_below_its_fair_share_loses_nothing(
    amounts: list[int], total: int, share: int
) -> None:
    assert fair_share(amounts, total) == share


@given(st.lists(st.integers(0, 10_000), min_size=1, max_size=40), st.integers(0, 100_000))
def test_fair_shares_do_not_exceed_the_total(amounts: list[int], total: int) -> None:
    share = fair_share(amounts, total)

    kept = [min(amount, share) for amount in amounts]
    assert sum(kept) <= total
    assert kept == amounts or sum(kept) > total - len(amounts)


def test_runs_merge_when_the_gaps_are_filled() -> None:
    segment, numbers = Segment(1, 0), random.Random(1).sample(range(0, 10_000, 2), 5000)
    for number in numbers:
        segment.add(number)
    assert (segment.runs, segment.messages) == (5000, 5000)
    for number in range(1, 10_000, 2):
        segment.add(number)
    assert (segment.runs, segment.messages) == (1, 10_000)
