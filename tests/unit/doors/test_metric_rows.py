"""The choice of the queues with series of their own, and the sums of all others."""

from __future__ import annotations

from qmd.doors.metrics.rows import Ages, Queue, Shown


def row(
    name: str, messages: int = 0, arrived: int = 0, left: int = 0, kind: str = "queue"
) -> Queue:
    return Queue(name, kind, messages, 10 * messages, arrived, left, 0, 0, None)


def names(rows: list[Queue]) -> list[str]:
    return sorted(each.name for each in rows)


def test_the_fullest_queues_are_shown_and_system_queues_always():
    shown: Shown[Queue] = Shown(2, lambda each: each.kind == "system")

    chosen, others, counters = shown.choose(
        [row("a", 1, 1), row("b", 3, 3), row("c", 2, 2), row("dead", kind="system")]
    )

    assert names(chosen) == ["b", "c", "dead"]
    assert names(others) == ["a"]
    assert counters == (1, 0)


def test_a_shown_queue_stays_until_another_has_twice_as_much():
    shown: Shown[Queue] = Shown(1)
    assert names(shown.choose([row("a", 10, 10), row("b", 9, 9)])[0]) == ["a"]

    assert names(shown.choose([row("a", 10, 10), row("b", 12, 12)])[0]) == ["a"]
    assert names(shown.choose([row("a", 10, 10), row("b", 40, 40)])[0]) == ["b"]


def test_the_counters_of_the_others_never_fall():
    shown: Shown[Queue] = Shown(1)
    steps = [
        [row("a", 10, 10), row("b", 9, 9)],
        [row("a", 10, 10), row("b", 50, 50)],  # b is shown now: its growth is not among the others
        [row("a", 0, 10, 10), row("b", 50, 50)],
        [row("b", 50, 50)],  # a was deleted
        [row("b", 1, 1), row("c", 0, 2, 2)],  # the daemon began anew
    ]

    sums = [shown.choose(each)[2] for each in steps]

    assert sums == [(9, 0), (9, 0), (9, 10), (9, 10), (11, 12)]


def test_ages_are_asked_of_all_shown_rows_and_of_the_others_in_turn():
    ages = Ages(3)

    first = ages.to_ask(["a"], ["b", "c", "d", "e"])
    ages.answered(first, [1000, 2000, 3000])
    second = ages.to_ask(["a"], ["b", "c", "d", "e"])
    ages.answered(second, [1000, 500, None])

    assert first == ["a", "b", "c"]
    assert second == ["a", "d", "e"]
    assert ages.age_s("a", 5.0) == 4.0
    assert ages.oldest_s(["b", "c", "d", "e"], 5.0) == 4.5

    ages.to_ask(["a"], ["b"])  # d has no message any more
    assert ages.oldest_s(["b", "c", "d", "e"], 5.0) == 3.0
