"""Numbers in runs against a counter of each number."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from qmd.core.number_set import NumberSet
from storage.tables.runs import runs_of

ENDS = (0, 1, 1022, 1023, 1024, 1025, 2047, 2048, 5000)


def drawn_run(draw: random.Random) -> tuple[int, int]:
    base = draw.choice([0, 0, 7 << 44])
    first = base + max(draw.choice(ENDS) + draw.randint(-3, 3), 0)
    return first, first + draw.choice([0, 0, 1, 5, 1023, 1024, 2500])


@pytest.mark.parametrize("seed", range(60))
def test_it_counts_the_holders_of_each_number(seed: int) -> None:
    draw = random.Random(seed)
    numbers, model = NumberSet(), Counter[int]()
    for _ in range(40):
        first, last = drawn_run(draw)
        each = range(first, last + 1)
        if draw.random() < 0.5:
            numbers.add(first, last)
            model.update(each)
        else:
            numbers.discard(first, last)
            model.subtract(number for number in each if model[number])
            model = +model

        some = runs_of(sorted({drawn_run(draw)[0] for _ in range(draw.choice([0, 1, 30]))}))
        each = [number for first, last in some for number in range(first, last + 1)]
        assert numbers.touches_any(some) == any(number in model for number in each)
        if draw.random() < 0.5:
            numbers.add_all(some)
            model.update(each)
        else:
            numbers.discard_all(some)
            model.subtract(number for number in each if model[number])
            model = +model

        assert len(numbers) == len(model)
        assert bool(numbers) == bool(model)
        first, last = drawn_run(draw)
        among = range(first, last + 1)
        assert numbers.touches(first, last) == any(number in model for number in among)
        assert numbers.free_runs(first, last) == runs_of(n for n in among if n not in model)
        for number in (first, last):
            assert (number in numbers) == (number in model)
            assert numbers.holders(number) == model[number]
            free = number
            while free in model:
                free += 1
            assert numbers.first_free(number) == free
    assert list(numbers) == sorted(model)
    assert list(numbers.runs()) == runs_of(sorted(model))


def test_a_copy_has_one_holder_of_each_number_and_stays_as_it_is() -> None:
    numbers = NumberSet([(1, 2000), (5, 7)])
    copy = numbers.copy()
    numbers.discard(1, 2000)
    assert list(numbers.runs()) == [(5, 7)]
    assert list(copy.runs()) == [(1, 2000)]
    assert copy.holders(6) == 1
    copy.discard(5, 7)
    assert list(copy.runs()) == [(1, 4), (8, 2000)]
    assert list(numbers.runs()) == [(5, 7)]


def test_a_run_of_a_million_numbers_is_a_thousand_blocks() -> None:
    numbers = NumberSet([(7 << 44, (7 << 44) + 999_999)])
    assert len(numbers) == 1_000_000
    assert len(numbers._layers[0]) == 977
    numbers.discard(7 << 44, (7 << 44) + 999_999)
    assert not numbers._layers[0]


def test_runs_follow_the_order_of_the_numbers() -> None:
    assert runs_of([]) == []
    assert runs_of([3, 4, 5, 1, 2, 9]) == [(3, 5), (1, 2), (9, 9)]
    assert runs_of([0, 1]) == [(0, 1)]
