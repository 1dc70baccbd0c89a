"""Reading the history of events: pages with cursors, filters, the last events, one message."""

import sqlite3

import pytest

from storage.tables import event_search, events
from storage.tables.events import Event

OWN, OTHER = bytes(range(16)), bytes(16)


def tell(db: sqlite3.Connection, *told: Event) -> None:
    events.insert(db, told)


def event(
    kind: str, *numbers: int, at_ms: int = 1000, queue: str = "q", source: bytes = OWN
) -> Event:
    return Event(
        kind=kind,
        at_ms=at_ms,
        source=source,
        numbers=list(numbers),
        queue=queue,
        places=[10 * number for number in numbers],
        sizes=[1 for _ in numbers],
    )


def everything(event: Event) -> bool:
    return True


def page(db: sqlite3.Connection, block: int, index: int, events_max: int, **more: object):
    return event_search.page(
        db, block, index, events_max=events_max, blocks_max=100, is_wanted=everything, **more
    )


def seen(found: list[event_search.FoundEvent]) -> list[tuple[str, int]]:
    return [(told.event.kind, told.event.numbers[0]) for told in found]


@pytest.mark.parametrize("events_max", [1, 2, 3, 4, 5, 7, 100])
def test_pages_of_any_size_have_every_event_once(db: sqlite3.Connection, events_max: int) -> None:
    tell(db, event("sent", 1, 2, 3), event("accepted", 9))
    tell(db, event("received", 1))
    tell(db, event("received", 2, 3))

    block, index, found = 0, 0, []
    for _ in range(20):
        part = page(db, block, index, events_max)
        assert len(part.found) <= events_max
        found += part.found
        block, index = part.block, part.at
        if part.is_end:
            break

    assert seen(found) == [
        *(("sent", 1), ("sent", 2), ("sent", 3), ("accepted", 9)),
        *(("received", 1), ("received", 2), ("received", 3)),
    ]
    assert len({(told.block, told.at) for told in found}) == len(found)
    tell(db, event("purged", 4))
    assert seen(page(db, block, index, 100).found) == [("purged", 4)]


def test_the_cursor_of_an_event_finds_the_event(db: sqlite3.Connection) -> None:
    tell(db, event("sent", 1, 2, 3))
    told = page(db, 0, 0, 100).found[1]

    assert seen(page(db, told.block, told.at, 1).found) == [("sent", 2)]


def test_a_filter_skips_events_and_the_cursor_continues(db: sqlite3.Connection) -> None:
    for number in range(10):
        tell(db, event("sent", number), event("received", number))

    found = event_search.page(
        db, 0, 0, events_max=3, blocks_max=100, is_wanted=lambda each: each.kind == "received"
    )
    assert seen(found.found) == [("received", 0), ("received", 1), ("received", 2)]
    rest = event_search.page(
        db,
        found.block,
        found.at,
        events_max=100,
        blocks_max=100,
        is_wanted=lambda each: each.kind == "received",
    )
    assert [number for _, number in seen(rest.found)] == [3, 4, 5, 6, 7, 8, 9]


def test_the_number_of_searched_blocks_is_limited(db: sqlite3.Connection) -> None:
    for number in range(10):
        tell(db, event("sent", number))

    found = event_search.page(db, 0, 0, events_max=100, blocks_max=4, is_wanted=lambda each: False)

    assert (found.found, found.is_end) == ([], False)
    assert seen(page(db, found.block, found.at, 1).found) == [("sent", 4)]


def test_deleted_events_are_counted(db: sqlite3.Connection) -> None:
    for number in range(10):
        tell(db, event("sent", number))
    first = page(db, 0, 0, 2)
    db.execute("DELETE FROM event_block WHERE id <= 5")

    rest = page(db, first.block, first.at, 100)

    assert rest.missing_blocks == 3
    assert [number for _, number in seen(rest.found)] == [5, 6, 7, 8, 9]
    assert page(db, 0, 0, 100).missing_blocks == 0


def test_a_search_has_a_first_and_a_last_time(db: sqlite3.Connection) -> None:
    for number in range(10):
        tell(db, event("sent", number, at_ms=1000 * number))

    block = event_search.since(db, 3500)
    found = page(db, block, 0, 100, until_ms=6000)

    assert [number for _, number in seen(found.found)] == [4, 5]
    assert found.is_end
    assert event_search.since(db, 99_000) == 11


def test_the_last_events_come_in_order(db: sqlite3.Connection) -> None:
    tell(db, event("sent", 1, 2, 3))
    tell(db, event("sent", 4), event("received", 5))

    found = event_search.last(db, events_max=3, blocks_max=10, is_wanted=everything)

    assert seen(found.found) == [("sent", 3), ("sent", 4), ("received", 5)]
    tell(db, event("sent", 6))
    assert seen(page(db, found.block, found.at, 10).found) == [("sent", 6)]


def test_a_long_history_keeps_its_beginning_and_its_end(db: sqlite3.Connection) -> None:
    tell(db, event("sent", 7))
    for _ in range(50):
        tell(db, event("retransmitted", 6, 7, 8))
    tell(db, event("received", 7))

    found, has_gap = event_search.of_message(db, OWN, 7, 10)
    assert len(found) == 10
    assert (found[0].event.kind, found[-1].event.kind, has_gap) == ("sent", "received", True)
    assert all(list(told.event.numbers) == [7] for told in found)

    found, has_gap = event_search.of_message(db, OWN, 7, 1000)
    assert (len(found), has_gap) == (52, False)
    assert event_search.of_message(db, OTHER, 7, 10) == ([], False)


def test_a_message_that_is_repeated_in_one_event_is_returned_repeatedly(
    db: sqlite3.Connection,
) -> None:
    tell(db, event("retransmitted", 7, 8, 7), event("received", 7))

    found, _ = event_search.of_message(db, OWN, 7, 10)

    assert [(told.at, told.event.kind) for told in found] == [
        *((0, "retransmitted"), (2, "retransmitted"), (3, "received"))
    ]


def test_an_event_of_no_message_has_a_cursor(db: sqlite3.Connection) -> None:
    tell(db, event("started"), event("sent", 1, 2))

    found = page(db, 0, 0, 100).found

    assert [(told.at, told.event.kind) for told in found] == [
        (0, "started"),
        (1, "sent"),
        (2, "sent"),
    ]
    assert [told.at for told in event_search.of_message(db, OWN, 2, 10)[0]] == [2]


def test_the_number_of_blocks_read_for_one_message_is_limited(db: sqlite3.Connection) -> None:
    tell(db, event("sent", 7))
    for _ in range(50):
        tell(db, event("accepted", 1, 9))  # blocks around 7, without an event of 7
    tell(db, event("received", 7))

    found, has_gap = event_search.of_message(db, OWN, 7, 1000, blocks_max=10)
    assert ([told.event.kind for told in found], has_gap) == (["sent", "received"], True)

    tell(db, event("purged", 7))
    for _ in range(50):
        tell(db, event("accepted", 1, 9))
    found, has_gap = event_search.of_message(db, OWN, 7, 1000, blocks_max=10)
    assert ([told.event.kind for told in found], has_gap) == (["sent"], True)
