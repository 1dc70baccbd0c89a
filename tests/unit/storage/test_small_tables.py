"""The small tables: sequences, history, outcomes, counters."""

import sqlite3

import pytest

from storage.tables import branches, counters, outcomes, owed, sequences, unaddressed
from storage.tables import message_id_history as history
from storage.tables.branches import BranchRow
from storage.tables.sequences import IncomingSequenceRow, encode_sequence_id
from tests.unit.storage.support import SOURCE


def test_a_sequence_begins_without_a_number_and_advances(db: sqlite3.Connection) -> None:
    sequences.add(
        db,
        [
            sequences.NewSequence(1, SOURCE, 16, b"", 100, "", ""),
            sequences.NewSequence(2, SOURCE, 17, b"\5q", 100, "", ""),
        ],
    )
    sequences.set_states(db, [(encode_sequence_id(2**64 - 1), 9, 200, 3, 4, 5, 6, 7, 8, 2)])

    assert sequences.list_all(db) == [
        IncomingSequenceRow(1, SOURCE, 16, 0, 0, 100, b""),
        IncomingSequenceRow(2, SOURCE, 17, 2**64 - 1, 9, 200, b"\5q", 3, 4, 5, "", "", 6, 7, 8),
    ]


def test_a_state_without_its_sequence_is_reported_as_a_bug(
    db: sqlite3.Connection,
) -> None:
    sequences.add(db, [sequences.NewSequence(1, SOURCE, 16, b"", 100, "", "")])

    with pytest.raises(AssertionError):
        sequences.set_states(db, [(encode_sequence_id(1), 1, 1, *[0] * 6, each) for each in (1, 2)])


def test_one_source_has_one_sequence_to_a_queue(db: sqlite3.Connection) -> None:
    sequences.add(db, [sequences.NewSequence(1, SOURCE, 16, b"", 100, "", "")])

    with pytest.raises(sqlite3.IntegrityError):
        sequences.add(db, [sequences.NewSequence(2, SOURCE, 16, b"", 100, "", "")])


def test_sequences_without_recent_use_are_deleted(db: sqlite3.Connection) -> None:
    sequences.add(
        db,
        [
            sequences.NewSequence(1, SOURCE, 16, b"", 99, "", ""),
            sequences.NewSequence(2, SOURCE, 17, b"", 100, "", ""),
        ],
    )

    assert sequences.forget(db, before_s=100) == [1]
    assert [row.id for row in sequences.list_all(db)] == [2]


def test_encoded_sequence_ids_sort_like_the_numbers() -> None:
    numbers = [0, 1, 255, 256, 2**63 - 1, 2**63, 2**64 - 1]

    assert sorted(map(encode_sequence_id, numbers)) == list(map(encode_sequence_id, numbers))


def test_a_segment_of_the_history_gets_new_numbers_and_a_new_time(db: sqlite3.Connection) -> None:
    segment = history.Segment(1, SOURCE, 50, "10.0.0.1", SOURCE)
    other = history.Segment(2, bytes(16), 60, "10.0.0.1", SOURCE)
    history.remember(db, [(segment, [7, 9, 1, 1]), (other, [5, 5])])
    history.remember(db, [(segment._replace(at_s=70), [2, 4, 0xFFFFFFFF, 0xFFFFFFFF])])
    history.remember(db, [(segment._replace(at_s=80), []), (other._replace(at_s=90), [4, 4])])

    assert history.entries(db) == [
        (segment._replace(at_s=70), [(7, 9), (1, 4), (0xFFFFFFFF, 0xFFFFFFFF)]),
        (other._replace(at_s=90), [(5, 5), (4, 4)]),
    ]


def test_segments_of_the_history_are_deleted_completely(db: sqlite3.Connection) -> None:
    for number in range(1, 4):
        segment = history.Segment(number, SOURCE, 50, "", SOURCE)
        history.remember(db, [(segment, [number, number])])

    history.forget(db, [1, 3, 5])

    assert [stored.segment.id for stored in history.entries(db)] == [2]


def test_a_row_of_an_older_version_keeps_its_number(db: sqlite3.Connection) -> None:
    db.execute(
        "INSERT INTO message_id_history (position, source, number, at_s) VALUES (4, ?, 9, 50)",
        (SOURCE,),
    )

    history.remember(db, [(history.Segment(4, SOURCE, 60, "", SOURCE), [10, 12])])

    assert history.entries(db) == [(history.Segment(4, SOURCE, 60, "", SOURCE), [(9, 12)])]


def test_an_outcome_is_found_by_its_token(db: sqlite3.Connection) -> None:
    outcomes.record(db, [(b"a", b"1", 5), (b"b", b"2", 6)])
    outcomes.record(db, [(b"a", b"3", 7)])

    assert outcomes.find(db, b"a") == b"3"
    assert outcomes.find(db, b"c") is None
    assert [row.token for row in outcomes.list_all(db)] == [b"b", b"a"]


def test_old_outcomes_are_deleted_in_steps(db: sqlite3.Connection) -> None:
    outcomes.record(db, [(b"%d" % n, b"", n) for n in range(10)])

    assert outcomes.forget(db, before_s=7, rows_max=5) == 5
    assert outcomes.forget(db, before_s=7, rows_max=5) == 2
    assert outcomes.forget(db, before_s=7, rows_max=5) == 0
    assert [row.at_s for row in outcomes.list_all(db)] == [7, 8, 9]


def test_an_outcome_stays_while_a_database_may_need_it(db: sqlite3.Connection) -> None:
    outcomes.record(db, [(b"a", b"", 1), (b"b", b"", 1)])
    branches.add(db, BranchRow(b"a", "shop", 1))

    assert outcomes.forget(db, before_s=7, rows_max=5) == 1
    assert [row.token for row in outcomes.list_all(db)] == [b"a"]

    branches.forget(db, b"a", "shop")
    assert outcomes.forget(db, before_s=7, rows_max=5) == 1


def test_reserved_blocks_follow_each_other(db: sqlite3.Connection) -> None:
    assert counters.reserve(db, "message_number", 1000) == 1
    assert counters.reserve(db, "message_number", 10) == 1001
    assert counters.reserve(db, "arrival", 5) == 1
    assert counters.following(db, "message_number") == 1011
    assert counters.following(db, "unknown") == 1


def test_acknowledgments_that_wait_for_the_directory_keep_their_order_and_are_checked(
    db: sqlite3.Connection,
) -> None:
    for number in (2, 1):
        unaddressed.add(db, unaddressed.Unaddressed(number, bytes(16), 7, b"packet"))
    db.execute("UPDATE unaddressed SET packet = x'00' WHERE id = 2")

    assert unaddressed.list_all(db) == [
        (unaddressed.Unaddressed(1, bytes(16), 7, b"packet"), True),
        (unaddressed.Unaddressed(2, bytes(16), 7, b"\0"), False),
    ]
    unaddressed.remove(db, [1, 5])
    assert [row.id for row, _ in unaddressed.list_all(db)] == [2]


def test_owed_acknowledgments_keep_their_order_and_are_checked(db: sqlite3.Connection) -> None:
    owed.add(
        db, [owed.Owed(2, 0x8004, True, b"packet"), owed.Owed(1, 0x8004, False, b"another one")]
    )
    db.execute("UPDATE owed SET packet = x'00' WHERE id = 2")

    assert owed.list_all(db) == [
        (owed.Owed(1, 0x8004, False, b"another one"), True),
        (owed.Owed(2, 0x8004, True, b"\0"), False),
    ]
    owed.remove(db, [1, 5])
    assert [row.id for row, _ in owed.list_all(db)] == [2]
