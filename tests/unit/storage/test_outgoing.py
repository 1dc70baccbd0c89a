import sqlite3
from zlib import crc32

import pytest

from storage import NoSuchQueue
from storage.tables import outgoing
from storage.tables.keys import level_range, lookup_id_of, message_key
from storage.tables.outgoing import OutgoingQueueRow, OutgoingRow
from storage.tables.pages import Totals
from storage.tables.sequences import encode_sequence_id

LEVEL = 8


def queue(outgoing_id: int, destination: str = "DIRECT=TCP:10.0.0.5\\q") -> OutgoingQueueRow:
    return OutgoingQueueRow(outgoing_id, destination, "10.0.0.5:1801", False, 2**64 - 1, 3, 4, 5)


def put(db: sqlite3.Connection, *keys: int) -> None:
    outgoing.insert(db, [(key, None, b"packet", None, False) for key in keys])


def keys_of(db: sqlite3.Connection) -> list[int]:
    return [key for (key,) in db.execute("SELECT key FROM outgoing ORDER BY key")]


def test_added_outgoing_queues_are_read_back(db: sqlite3.Connection) -> None:
    added = [queue(1), queue(7, "DIRECT=OS:hostb\\q")._replace(paused=True, sequence_id=0)]

    outgoing.add_queues(db, added)

    assert outgoing.list_queues(db) == added


def test_a_destination_has_one_outgoing_queue_by_any_spelling(db: sqlite3.Connection) -> None:
    outgoing.add_queues(db, [queue(1, "DIRECT=OS:hostb\\Orders")])

    with pytest.raises(sqlite3.IntegrityError):
        outgoing.add_queues(db, [queue(2, "DIRECT=OS:HOSTB\\orders")])


def test_a_pause_is_stored(db: sqlite3.Connection) -> None:
    outgoing.add_queues(db, [queue(1)])

    outgoing.set_paused(db, 1, True)

    assert outgoing.list_queues(db) == [queue(1)._replace(paused=True)]
    with pytest.raises(NoSuchQueue, match="9"):
        outgoing.set_paused(db, 9, True)


def test_a_sequence_state_is_stored_with_64_bits(db: sqlite3.Connection) -> None:
    outgoing.add_queues(db, [queue(1)])

    outgoing.set_sequences(db, [(encode_sequence_id(2**63 + 5), 17, 400, 1)])

    (kept,) = outgoing.list_queues(db)
    assert (kept.sequence_id, kept.base, kept.next_number) == (2**63 + 5, 17, 400)


def test_only_a_new_sequence_ends_the_wait_for_an_order_ack(db: sqlite3.Connection) -> None:
    outgoing.add_queues(db, [queue(1)])
    old, new = encode_sequence_id(5), encode_sequence_id(6)
    outgoing.set_sequences(db, [(old, 0, 9, 1)])
    outgoing.set_unproven(db, [(4, 1)])

    outgoing.set_sequences(db, [(old, 0, 12, 1)])
    (kept,) = outgoing.list_queues(db)
    assert kept.unproven_from == 4

    outgoing.set_sequences(db, [(new, 11, 2, 1)])
    (kept,) = outgoing.list_queues(db)
    assert kept.unproven_from == 0


def test_a_sequence_state_without_its_queue_is_reported_as_a_bug(
    db: sqlite3.Connection,
) -> None:
    with pytest.raises(AssertionError):
        outgoing.set_sequences(db, [(encode_sequence_id(1), 0, 1, 5)])


@pytest.mark.parametrize("count", [1, 100])
def test_storing_next_numbers_changes_only_these(db: sqlite3.Connection, count: int) -> None:
    outgoing.add_queues(db, [queue(id, f"DIRECT=OS:b\\q{id}") for id in range(1, 130)])
    before = outgoing.list_queues(db)
    numbers = {30 + id: 2**32 - id for id in range(count)}

    outgoing.set_next_numbers(db, numbers)

    assert outgoing.list_queues(db) == [
        row._replace(next_number=numbers.get(row.id, row.next_number)) for row in before
    ]
    with pytest.raises(AssertionError):
        outgoing.set_next_numbers(db, {130 + id: 5 for id in range(count)})


@pytest.mark.parametrize("by_release", [False, True])
def test_a_range_is_deleted_with_both_ends_and_without_its_neighbours(
    db: sqlite3.Connection, by_release: bool
) -> None:
    def key(arrival: int, outgoing_id: int = 3, level: int = LEVEL) -> int:
        return message_key(outgoing_id, level, arrival)

    inside = [key(5), key(6), key(9)]
    neighbours = [
        key(2**44 - 1, outgoing_id=2, level=15),
        key(7, level=LEVEL - 1),
        key(4),
        key(10),
        key(7, level=LEVEL + 1),
        key(0, outgoing_id=4, level=0),
    ]
    put(db, *inside, *neighbours)

    if by_release:
        assert outgoing.release(db, inside[0], inside[-1]) == Totals(3, 3 * len(b"packet"))
    else:
        outgoing.delete_ranges(db, [(inside[0], inside[-1])])

    assert keys_of(db) == sorted(neighbours)


def test_single_messages_are_deleted_without_their_neighbours(db: sqlite3.Connection) -> None:
    put(db, *range(10, 16))

    outgoing.delete(db, [14, 11, 99])

    assert keys_of(db) == [10, 12, 13, 15]


def test_a_page_is_in_the_order_of_sending_and_continues_after_the_last_one(
    db: sqlite3.Connection,
) -> None:
    expected = [message_key(3, level, arrival) for level in (0, 7, 8) for arrival in (1, 2)]
    put(db, *expected, message_key(2, 8, 1), message_key(4, 0, 0))

    read: list[OutgoingRow] = []
    while rows := outgoing.page(db, 3, lookup_id_of(read[-1].key) + 1 if read else 0, rows_max=4):
        read += rows

    assert [row.key for row in read] == expected
    assert read[0] == OutgoingRow(expected[0], None, crc32(b"packet"), False, None, None, b"packet")


def test_the_bounds_of_a_level_are_its_first_and_last_key(db: sqlite3.Connection) -> None:
    first, last = level_range(3, LEVEL)
    put(db, first - 1, first + 4, first + 7, last - 2, last + 1)

    assert outgoing.bounds(db, 3, LEVEL) == (first + 4, last - 2)
    assert outgoing.bounds(db, 5, LEVEL) is None


def test_totals_count_messages_and_bytes_of_packets(db: sqlite3.Connection) -> None:
    put(db, message_key(3, 7, 1), message_key(3, 8, 1), message_key(3, 8, 2), message_key(4, 0, 1))

    assert outgoing.totals(db, 3) == Totals(3, 18)


def test_a_message_is_found_by_its_key(db: sqlite3.Connection) -> None:
    put(db, 5)

    assert outgoing.find(db, 5) == OutgoingRow(
        5, None, crc32(b"packet"), False, None, None, b"packet"
    )
    assert outgoing.find(db, 6) is None
