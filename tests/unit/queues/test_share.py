"""The number of messages in the queues of one host, which is not counted for each question."""

from __future__ import annotations

import pytest

from qmd.queues.share import ADDED_MAX, Share, TotalBytes


@pytest.mark.parametrize("limit", [1, 10, ADDED_MAX, 3 * ADDED_MAX + 1])
def test_a_limit_of_messages_is_reached_exactly_and_left_again(limit: int) -> None:
    queues = dict.fromkeys("abc", 0)
    share = Share(TotalBytes(), "hostb")
    share.keys = dict.fromkeys(queues)

    def fill() -> int:
        added = 0
        while share.messages(queues.__getitem__, 1, limit) < limit:
            queues["abc"[added % 3]] += 1
            added += 1
        return added

    assert fill() == limit
    queues["a"] -= 1
    assert fill() == 1


def test_counts_are_rare_far_from_the_limit() -> None:
    share = Share(TotalBytes(), "hostb")
    share.keys = {"a": None}
    counted: list[str] = []

    def count(key: str) -> int:
        counted.append(key)
        return 0

    for _ in range(10 * ADDED_MAX):
        share.messages(count, 1, 1_000_000)
    assert len(counted) == 10


def test_many_messages_at_once_are_counted_with_those_before() -> None:
    queues = {"a": 7}
    share = Share(TotalBytes(), "hostb")
    share.keys = dict.fromkeys(queues)

    assert share.messages(queues.__getitem__, 20_000, 10_000) == 7  # too many: none is added
    assert share.messages(queues.__getitem__, 9_993, 10_000) == 7
    queues["a"] = 10_000
    assert share.messages(queues.__getitem__, 1, 10_000) == 10_000
