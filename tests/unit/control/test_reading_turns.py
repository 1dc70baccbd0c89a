"""Turns of a client: large requests and answers explain small requests of the same client."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from qmd.control.reading_turns import ReadingTurns
from qmd.control_protocol.messages import Done, Refused
from qmd.runtime.bulk_turns import EXPLAINED, LARGE_BYTES, LARGE_REQUEST_BYTES


def reading() -> ReadingTurns:
    turns: Any = SimpleNamespace(
        now=100.0, spend_reading=lambda seconds: None, has_time_to_read=lambda: True
    )
    return ReadingTurns(turns, lambda: 1.0, lambda: None)


def explained(turns: ReadingTurns) -> int:
    return sum(turns.large.explains(100.0) for _ in range(1000))


@pytest.mark.parametrize(
    ("messages", "size", "count"),
    [
        (1, LARGE_BYTES, 0),
        (1, LARGE_BYTES + 1, EXPLAINED),
        (3, 3 * LARGE_BYTES + 1, 3 * EXPLAINED),
        (100, 99 * LARGE_BYTES, 0),  # many small messages
    ],
)
def test_answers_with_large_messages_explain_requests(messages: int, size: int, count: int) -> None:
    turns = reading()

    assert turns.answered(Done(1, [None] * messages), (b"1234", bytes(size - 4))) == size

    assert explained(turns) == count


def test_other_answers_explain_nothing() -> None:
    turns = reading()

    turns.answered(Done(1, {"a": 1}), (bytes(2 * LARGE_BYTES),))
    turns.answered(Done(1), (b"answer",))
    turns.answered(Refused(1, "code", "text"), (b"answer",))

    assert explained(turns) == 0


def test_large_requests_explain_requests() -> None:
    turns = reading()

    turns.begin(LARGE_REQUEST_BYTES)
    turns.end(is_complete=True)
    assert explained(turns) == 0

    for _ in range(10):
        turns.begin(LARGE_REQUEST_BYTES + 1)
        turns.end(is_complete=False)
    assert explained(turns) == 0
    turns.begin(LARGE_REQUEST_BYTES + 1)
    turns.end(is_complete=True)
    assert explained(turns) == EXPLAINED
