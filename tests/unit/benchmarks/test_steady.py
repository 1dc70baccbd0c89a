"""The verdict over a day of steady work, and latencies in classes."""

import random
import statistics

import pytest

from benchmarks import steady


def curve(**last_quarter):
    """Return eight points of a flat day; figures of the last two may differ."""
    flat = {
        "messages/s": 10_000,
        "memory of A, MB": 60.0,
        "memory of B, MB": 61.0,
        "files of A, MB": 400.0,
        "files of B, MB": 401.0,
    }
    # The log of events fills up in the first quarter.
    first = flat | {"files of A, MB": 90.0, "memory of B, MB": 50.0}
    last = flat | {name.replace("_", " "): value for name, value in last_quarter.items()}
    return [first] * 2 + [flat] * 4 + [last] * 2


def test_a_flat_day_has_no_failed_figure():
    assert steady.grown(curve(), 10_000) == []


@pytest.mark.parametrize("figure", ["memory of A, MB", "files of B, MB"])
def test_a_figure_that_grows_by_more_than_a_tenth_is_named(figure):
    found = steady.grown(curve(**{figure: 1.11 * curve()[2][figure]}), 10_000)

    assert [each.split(":")[0] for each in found] == [figure]
    assert steady.grown(curve(**{figure: 1.09 * curve()[2][figure]}), 10_000) == []


def test_a_rate_that_is_not_kept_is_named():
    found = steady.grown(curve(**{"messages/s": 9_400}), 10_000)

    assert found == ["messages/s: 9,400 in the last quarter, 10,000 were due"]


def test_classes_of_latencies_give_quantiles_within_two_per_cent():
    drawn = random.Random(5)
    took_ms = [drawn.lognormvariate(1, 1) for _ in range(20_000)]
    found = steady.Latencies()
    for each in took_ms:
        found.add(each)

    cuts = statistics.quantiles(took_ms, n=100)
    assert found.quantile(0.5) == pytest.approx(cuts[49], rel=0.025)
    assert found.quantile(0.99) == pytest.approx(cuts[98], rel=0.03)
