"""Blocks of events: encoding and decoding, and the search for one message."""

import sqlite3

import pytest

from storage.tables import events
from storage.tables.event_index import GROUP_BLOCKS
from storage.tables.events import Event
from storage.tables.keys import OUTGOING_TRANSACTIONAL_LEVEL, message_key

OWN, OTHER = bytes(range(16)), bytes(16)


def told(kind: str, numbers: list[int], *, source: bytes = OWN, at_ms: int = 1000, **more: object):
    return Event(kind=kind, at_ms=at_ms, source=source, numbers=numbers, **more)  # type: ignore[arg-type]


def test_recorded_events_are_read_back(db: sqlite3.Connection) -> None:
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
def test_any_list_of_numbers_is_read_back(db: sqlite3.Connection, numbers: list[int]) -> None:
    events.insert(db, [told("sent", numbers)])
    (block,) = events.page(db, 0, 1)
    assert list(block.events[0].numbers) == numbers


def test_the_history_of_a_message_has_only_its_own_events(db: sqlite3.Connection) -> None:
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


@pytest.mark.parametrize("count", [1, GROUP_BLOCKS - 1, GROUP_BLOCKS, GROUP_BLOCKS + 1, 200])
def test_every_message_is_found_before_and_after_its_blocks_are_indexed(
    db: sqlite3.Connection, count: int
) -> None:
    for number in range(1, count + 1):
        events.insert(db, [told("sent", [number], places=[1000 + number])])
    events.insert(db, [told("received", list(range(1, count + 1)))])

    for number in range(1, count + 1):
        history = events.of_message(db, OWN, number)
        assert [event.kind for event in history] == ["sent", "received"]
        assert events.of_place(db, None, 1000 + number) == (OWN, number)
    assert events.of_message(db, OWN, count + 1) == []


def test_a_block_that_an_older_version_indexed_is_found_once(db: sqlite3.Connection) -> None:
    events.insert(db, [told("sent", [1])])
    db.execute("INSERT INTO event_range VALUES (?, 1, 1, 1)", (OWN,))
    db.execute("UPDATE event_block SET ranges = NULL")
    for number in range(2, GROUP_BLOCKS + 2):
        events.insert(db, [told("sent", [number])])

    assert [each.kind for each in events.of_message(db, OWN, 1)] == ["sent"]
    assert [each.kind for each in events.of_message(db, OWN, GROUP_BLOCKS)] == ["sent"]


def test_a_message_is_found_by_its_lookup_id_at_any_priority(db: sqlite3.Connection) -> None:
    high, low = message_key(0, 2, 11), message_key(0, 7, 5)
    in_order = message_key(0, OUTGOING_TRANSACTIONAL_LEVEL, 1)
    events.insert(db, [told("sent", [1, 2], queue="orders", places=[high, low])])
    events.insert(db, [told("sent", [3], queue="DIRECT=OS:b\\q", places=[in_order])])
    events.insert(db, [told("moved", [1], queue="orders", to_queue="orders;late", places=[high])])
    events.insert(db, [told("received", [9], queue="orders", places=[high])])

    assert events.of_place(db, "orders", high) == (OWN, 1)
    assert events.of_place(db, "orders;late", high) == (OWN, 1)
    assert events.of_place(db, "orders", low) == (OWN, 2)
    assert events.of_place(db, "DIRECT=OS:b\\q", in_order) == (OWN, 3)
    assert events.of_place(db, None, low) == (OWN, 2)
    assert events.of_place(db, "elsewhere", low) is None
    assert events.of_place(db, "orders", message_key(0, 7, 6)) is None


def test_a_deleted_block_leaves_no_rows(db: sqlite3.Connection) -> None:
    for number in range(1, 11):
        events.insert(db, [told("sent", [number], places=[number], at_ms=number)])
    size = events.size_bytes(db)

    assert events.trim(db, size_max=1 << 40, before_ms=4, blocks_max=2) == 2
    assert events.trim(db, size_max=1 << 40, before_ms=4, blocks_max=2) == 1
    assert events.trim(db, size_max=size // 3, before_ms=0, blocks_max=100) > 0
    assert events.size_bytes(db) <= size // 3
    (oldest,) = events.page(db, 0, 1)
    assert events.of_message(db, OWN, oldest.id - 1) == []
    events.trim(db, size_max=0, before_ms=1 << 60, blocks_max=100)
    assert [block.id for block in events.page(db, 0, 9)] == [10]
    assert events.of_message(db, OWN, 3) == []


@pytest.mark.parametrize("trimmed_at", [GROUP_BLOCKS - 3, GROUP_BLOCKS, 2 * GROUP_BLOCKS + 5])
def test_the_index_of_messages_has_no_deleted_block(
    db: sqlite3.Connection, trimmed_at: int
) -> None:
    count, kept = 2 * GROUP_BLOCKS + 9, trimmed_at - 5
    for number in range(1, count + 1):
        events.insert(db, [told("sent", [number], places=[number], at_ms=number)])
        if number == trimmed_at:
            assert events.trim(db, size_max=1 << 40, before_ms=kept, blocks_max=count) == kept - 1

    for number in range(1, count + 1):
        assert len(events.of_message(db, OWN, number)) == (number >= kept)
        assert events.of_place(db, None, number) == ((OWN, number) if number >= kept else None)
    ranges = db.execute("SELECT min(block), max(block), count(*) FROM event_range").fetchone()
    assert ranges == (kept, 2 * GROUP_BLOCKS, 2 * (2 * GROUP_BLOCKS - kept + 1))


@pytest.mark.parametrize("in_sequences", [True, False])
def test_a_common_event_of_copies_is_read_as_one_event_per_queue(
    db: sqlite3.Connection, in_sequences: bool
) -> None:
    level = OUTGOING_TRANSACTIONAL_LEVEL if in_sequences else 4
    places = [message_key(0, level, arrival) for arrival in (7, 5, 9)]
    copies = told(
        "sent",
        [1, 2, 4],
        places=places,
        positions=[3, 1, 8] if in_sequences else [],
        sizes=[100, 101, 102],
        delivery="recoverable",
        queues=["x", "y", "x"],
        sequence_ids=[6, (1 << 64) - 1, 6] if in_sequences else [0, 0, 0],
        correlations=[b"c", b"c"],
    )
    events.insert(db, [copies, told("received", [1], queue="x")])

    (block,) = events.page(db, 0, 9)
    assert block.events[:3] == [
        told(
            "sent",
            [number],
            queue=queue,
            places=[place],
            positions=[position] if in_sequences else [],
            sequence_id=sequence_id if in_sequences else 0,
            sizes=[size],
            bytes=size,
            delivery="recoverable",
            correlations=[b"c"] if number < 4 else [],
        )
        for number, queue, place, position, sequence_id, size in (
            (1, "x", places[0], 3, 6, 100),
            (2, "y", places[1], 1, (1 << 64) - 1, 101),
            (4, "x", places[2], 8, 6, 102),
        )
    ]
    assert [each.queue for each in events.of_message(db, OWN, 2)] == ["y"]
    assert [each.kind for each in events.of_message(db, OWN, 1)] == ["sent", "received"]
    assert events.of_place(db, "y", places[1]) == (OWN, 2)
    assert events.of_place(db, "x", places[1]) is None
    events.insert(db, [told("received", [4], queue="x")])
    assert events.trim(db, size_max=0, before_ms=1 << 60, blocks_max=9) == 1
    assert events.of_message(db, OWN, 1) == []
    assert [each.kind for each in events.of_message(db, OWN, 4)] == ["received"]


def test_events_without_a_message_make_a_block_and_no_events_make_none(
    db: sqlite3.Connection,
) -> None:
    events.insert(db, [])
    assert events.page(db, 0, 1) == []
    events.insert(db, [told("started", [], reason="after a stop")])
    assert events.page(db, 0, 1)[0].events[0].reason == "after a stop"
