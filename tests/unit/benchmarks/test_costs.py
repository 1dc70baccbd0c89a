"""The comparison of counted costs with those of the file, and of two states by turns."""

from __future__ import annotations

import json

from benchmarks import costs
from benchmarks.compare import flat, ratio_line

BEFORE = {"single send": {"bytes": 1000.0, "writes": 10.0}}


def test_more_than_five_percent_is_reported() -> None:
    fewer = {"single send": {"bytes": 1049.0, "writes": 3.0}}
    assert costs.compare(fewer, BEFORE, costs.VERSION) == []
    (more,) = costs.compare({"single send": {"bytes": 1051.0}}, BEFORE, costs.VERSION)
    assert "single send, bytes" in more


def test_calls_are_compared_for_the_same_version_of_python() -> None:
    found = {"single send": {"calls": 400.0}}
    before = {"single send": {"calls": 300.0}}
    assert len(costs.compare(found, before, costs.VERSION)) == 1
    assert costs.compare(found, before, "2.7") == []


def test_pages_are_not_compared() -> None:
    found = {"single send": {"pages": 400.0}}
    assert costs.compare(found, {"single send": {"pages": 300.0}}, costs.VERSION) == []


def test_a_new_scenario_or_count_is_no_failure() -> None:
    found = {"single send": {"bytes": 1000.0, "calls": 5.0}, "another": {"bytes": 9.0}}
    assert costs.compare(found, BEFORE, costs.VERSION) == []


def test_the_file_has_every_count_of_every_scenario() -> None:
    stored = json.loads(costs.BASELINE.read_text())["costs"]
    assert set(stored) == {*costs.SCENARIOS, *costs.TRANSFERS}
    for name in costs.SCENARIOS:
        assert set(stored[name]) == {"writes", "bytes", "pages", "calls", "client calls"}
    for name in costs.TRANSFERS:
        assert set(stored[name]) == {"calls"}


def test_calls_of_transfers_may_differ_more() -> None:
    before = {"transfer, sender": {"calls": 100.0}}
    assert not costs.compare({"transfer, sender": {"calls": 109.0}}, before, costs.VERSION)
    assert costs.compare({"transfer, sender": {"calls": 111.0}}, before, costs.VERSION)


def test_a_ratio_is_commented_by_its_direction() -> None:
    assert ratio_line("messages_per_s", [0.8, 0.9, 1.5], more_is_better=True).endswith("WORSE")
    assert ratio_line("cpu", [0.8, 0.9, 1.5], more_is_better=False).endswith("better")
    near = ratio_line("cpu", [0.96], more_is_better=False)
    assert near.split() == ["cpu", "0.96", "0.96", "0.96"]
    assert flat(BEFORE) == {"single send, bytes": 1000.0, "single send, writes": 10.0}
