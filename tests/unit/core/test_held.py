"""The set of message numbers that a relay holds."""

from hypothesis import given
from hypothesis import strategies as st

from qmd.core.number_ranges import HeldNumbers


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 12))))
def test_held_numbers_behave_like_a_set(changes):
    held, model = HeldNumbers(), set()

    for is_added, number in changes:
        if is_added:
            assert held.add(number) is (number not in model)
            model.add(number)
        else:
            held.discard(number)
            model.discard(number)

        assert [each for each in range(15) if each in held] == sorted(model)
        assert bool(held) is bool(model)


def test_a_sequence_in_order_is_stored_as_one_range():
    held = HeldNumbers()
    for number in range(1, 100_000):
        held.add(number)
    for number in range(1, 50_000):
        held.discard(number)

    assert len(held._firsts) == 1
    assert 49_999 not in held
    assert 50_000 in held
