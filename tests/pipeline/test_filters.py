"""Pushed-down filters: they accept all rows that Spark's own filters accept."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("pyspark", reason="the extra qmd-msmq[spark] is not installed")

from pyspark.sql.datasource import (
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
    StringEndsWith,
    StringStartsWith,
)

from pipeline.source.filters import pushed

COMPARISONS = {
    EqualTo: lambda one, other: one == other,
    GreaterThan: lambda one, other: one > other,
    GreaterThanOrEqual: lambda one, other: one >= other,
    LessThan: lambda one, other: one < other,
    LessThanOrEqual: lambda one, other: one <= other,
}
comparisons = st.sampled_from(list(COMPARISONS))
START = datetime(2026, 1, 1, tzinfo=UTC)


@given(st.lists(st.tuples(comparisons, st.integers(-3, 12)), max_size=4), st.integers(1, 9))
def test_a_selected_position_is_within_the_bounds(filters, position):
    found = pushed([kind(("position",), value) for kind, value in filters])

    wanted = all(COMPARISONS[kind](position, value) for kind, value in filters)
    within = found.after < position <= found.until and not found.nothing
    assert within == wanted


@given(st.lists(st.tuples(comparisons, st.integers(-3000, 3000)), max_size=4), st.integers(-3, 3))
def test_a_selected_time_is_within_the_bounds(filters, arrived_ms):
    """Arrivals are whole milliseconds; filters are not."""
    filters = [(kind, START + timedelta(microseconds=value)) for kind, value in filters]
    arrived = START + timedelta(milliseconds=arrived_ms)
    at_ms = round(arrived.timestamp() * 1000)

    for column in ("arrived_at", "time"):
        found = pushed([kind((column,), value) for kind, value in filters])
        choice = found.wanted.choice
        after, before = choice.arrived_after_ms, choice.arrived_before_ms
        within = (after is None or at_ms > after) and (before is None or at_ms < before)
        if column == "time":
            within = found.moments[0] <= at_ms <= found.moments[1]
        if all(COMPARISONS[kind](arrived, value) for kind, value in filters):
            assert within


def test_of_several_texts_the_longest_is_pushed_down():
    found = pushed(
        [
            StringStartsWith(("label",), "or"),
            StringContains(("label",), "order"),
            StringEndsWith(("label",), "17"),
            EqualTo(("reason",), "full"),
            EqualTo(("class",), "nack_queue_exceed_quota"),
        ]
    )

    choice = found.wanted.choice
    assert (choice.label, choice.reason) == ("order", "full")
    assert choice.message_class == "nack_queue_exceed_quota"


def test_a_message_is_found_by_its_id():
    message_id = "0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0\\17"

    found = pushed([In(("id",), (message_id, "nonsense"))])

    assert [len(raw) for raw in found.wanted.choice.message_ids] == [20]
    assert pushed([EqualTo(("id",), "nonsense")]).nothing


def test_a_position_in_a_sequence_is_pushed_down():
    found = pushed(
        [
            EqualTo(("sequence", "id"), 1 << 40),
            GreaterThan(("sequence", "number"), 7),
            LessThanOrEqual(("sequence", "number"), 9),
        ]
    )

    wanted = found.wanted
    assert (wanted.sequence_id, wanted.sequence_from, wanted.sequence_until) == (1 << 40, 8, 9)


def test_places_are_narrowed_by_each_filter():
    found = pushed([In(("host",), ("hosta", "hostb")), EqualTo(("host",), "hostb")])

    assert not found.has("host", "hosta")
    assert found.has("host", "hostb")
    assert found.has("queue", "anything")


@pytest.mark.parametrize(
    "left",
    [
        Not(EqualTo(("label",), "x")),
        IsNotNull(("label",)),
        EqualTo(("body",), b"x"),
        EqualTo(("priority",), 3),
        EqualTo(("class",), "no such class"),
    ],
)
def test_unsupported_filters_are_left_to_spark(left):
    assert pushed([left]) == pushed([])


def test_only_some_columns_of_events_are_left_to_the_queue_manager():
    """An event without a correlation id has an empty one."""
    left = [EqualTo(("correlation_id",), ""), EqualTo(("lookup_id",), 3)]

    assert pushed([*left, EqualTo(("kind",), "sent")], "events") == pushed(
        [EqualTo(("kind",), "sent")], "events"
    )
