"""The number of messages in the queues of one host, which is not counted for each question."""

from __future__ import annotations

import pytest

from qmd.queues.share import ASKED_MAX, Share, TotalBytes


@pytest.mark.parametrize("limit", [1, 10, ASKED_MAX, 3 * ASKED_MAX + 1])
def test_a_limit_of_messages_is_reached_exactly_and_left_again(limit: int) -> None:
    queues = dict.fromkeys("abc", 0)
    share = Share(TotalBytes(), "hostb")
    share.keys = dict.fromkeys(queues)

    def fill() -> int:
        added = 0
        while share.messages(queues.__getitem__, limit) < limit:
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

    for _ in range(10 * ASKED_MAX):
        share.messages(count, 1_000_000)
    assert len(counted) == 10
