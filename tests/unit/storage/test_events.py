"""Blocks of events: what goes in comes out, and the history of one message is found."""

import sqlite3

import pytest

from storage import events
from storage.events import Event

OWN, OTHER = bytes(range(16)), bytes(16)


def told(kind: str, numbers: list[int], *, source: bytes = OWN, at_ms: int = 1000, **more: object):
    return Event(kind=kind, at_ms=at_ms, source=source, numbers=numbers, **more)  # type: ignore[arg-type]


def test_events_come_back_as_they_were_told(db: sqlite3.Connection) -> None:
    sent = told(
        "sent",
        [7, 8, 9, 10],
        queue="orders",
        places=[70, 80, 90, 100],
        positions=[1, 2, 3, 4],
        sequence_id=(1 << 64) - 1,
        sizes=[5, 6, 7, 8],
    )
    events.insert(db, [sent, told("received", [12], at_ms=2000, reason="somebody did")])

    (block,) = events.page(db, 0, 10)
    assert (block.first_at_ms, block.last_at_ms) == (1000, 2000)
    first, second = block.events
    assert list(first.numbers) == [7, 8, 9, 10]
    assert list(first.places) == [70, 80, 90, 100]
    assert (first.sequence_id, second.reason) == ((1 << 64) - 1, "somebody did")
    assert events.page(db, block.id, 10) == []


@pytest.mark.parametrize(
    "numbers", [[5], [3, 4], [1, 2, 3], [9, 8, 7, 6], [1, 2, 2, 4], [4, 9, 11, 12]]
)
def test_any_list_of_numbers_is_kept(db: sqlite3.Connection, numbers: list[int]) -> None:
    events.insert(db, [told("sent", numbers)])
    (block,) = events.page(db, 0, 1)
    assert list(block.events[0].numbers) == numbers


def test_the_history_of_one_message_is_its_own_alone(db: sqlite3.Connection) -> None:
    events.insert(db, [told("sent", [1, 2, 3, 4], places=[10, 20, 30, 40], sizes=[1, 2, 3, 4])])
    events.insert(db, [told("sent", [3], source=OTHER), told("received", [1, 3])])
    events.insert(db, [told("received", [2, 4])])

    history = events.of_message(db, OWN, 3, 100)
    assert [(event.kind, list(event.numbers)) for event in history] == [
        ("sent", [3]),
        ("received", [3]),
    ]
    assert (list(history[0].places), history[0].bytes) == ([30], 3)
    assert len(events.of_message(db, OWN, 3, 1)) == 1
    assert events.of_message(db, OWN, 5, 100) == []
