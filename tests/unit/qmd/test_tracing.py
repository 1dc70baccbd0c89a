"""The time in a report's label."""

import pytest

from qmd.tracing import time_date


@pytest.mark.parametrize(
    ("at_s", "text"),
    [
        (0, "12:00:00 AM Thu,Jan 01 70"),
        (1_700_000_000, "10:13:20 PM Tue,Nov 14 23"),
        (951_825_600, "12:00:00 PM Tue,Feb 29 00"),
        (1_709_211_599, "12:59:59 PM Thu,Feb 29 24"),
    ],
)
def test_it_is_that_of_the_grammar(at_s, text):
    assert time_date(at_s) == text
