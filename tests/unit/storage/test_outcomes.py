"""Outcomes of requests in blocks of events: found, kept and forgotten as those in the table."""

import sqlite3

import pytest

from storage.tables import branches, events, outcomes
from storage.tables.branches import BranchRow
from storage.tables.event_index import GROUP_BLOCKS
from storage.tables.events import Event


def commit(db: sqlite3.Connection, number: int, *carried: tuple[bytes, bytes, int]) -> None:
    sent = Event(kind="sent", at_ms=number, source=bytes(16), numbers=[number])
    events.insert(db, [sent], carried)


def token(number: int) -> bytes:
    return b"token %d" % number


def fill(db: sqlite3.Connection, count: int, first: int = 1) -> None:
    for number in range(first, first + count):
        commit(db, number, (token(number), b"%d" % number, number))


@pytest.mark.parametrize("count", [1, GROUP_BLOCKS - 1, GROUP_BLOCKS, GROUP_BLOCKS + 1, 200])
@pytest.mark.parametrize("asked_before", [False, True])
def test_an_outcome_in_a_block_is_found_by_its_token(
    db: sqlite3.Connection, count: int, asked_before: bool
) -> None:
    if asked_before:
        assert outcomes.find(db, token(1)) is None
    fill(db, count)

    for number in range(1, count + 1):
        assert outcomes.find(db, token(number)) == b"%d" % number
    assert outcomes.find(db, token(count + 1)) is None
    assert [row.at_s for row in outcomes.list_all(db)] == list(range(1, count + 1))


def test_a_repeated_token_gets_the_later_result_wherever_it_is(db: sqlite3.Connection) -> None:
    commit(db, 1, (b"a", b"1", 1), (b"b", b"1", 1))
    outcomes.record(db, [(b"b", b"2", 2), (b"c", b"2", 2)])
    commit(db, 2, (b"c", b"3", 3), (b"a", b"3", 3), (b"a", b"4", 3))

    assert [outcomes.find(db, each) for each in (b"a", b"b", b"c")] == [b"4", b"2", b"3"]
    assert {row.token: row.result for row in outcomes.list_all(db)} == {
        **{b"a": b"4", b"b": b"2"},
        b"c": b"3",
    }
    fill(db, 2 * GROUP_BLOCKS)
    assert [outcomes.find(db, each) for each in (b"a", b"b", b"c")] == [b"4", b"2", b"3"]


@pytest.mark.parametrize("count", [GROUP_BLOCKS - 5, 2 * GROUP_BLOCKS, 3 * GROUP_BLOCKS + 5])
def test_outcomes_stay_when_their_blocks_are_deleted(db: sqlite3.Connection, count: int) -> None:
    fill(db, count)

    assert events.trim(db, size_max=0, before_ms=1 << 60, blocks_max=count) == count - 1

    assert [outcomes.find(db, token(number)) for number in range(1, count + 1)] == [
        b"%d" % number for number in range(1, count + 1)
    ]
    assert len(outcomes.list_all(db)) == count


def test_a_repeated_token_keeps_its_later_result_when_blocks_are_deleted(
    db: sqlite3.Connection,
) -> None:
    commit(db, 1, (b"a", b"1", 1), (b"b", b"1", 1))
    outcomes.record(db, [(b"b", b"2", 2)])
    commit(db, 2, (b"a", b"2", 2))
    commit(db, 3)

    events.trim(db, size_max=0, before_ms=1 << 60, blocks_max=9)

    assert [outcomes.find(db, each) for each in (b"a", b"b")] == [b"2", b"2"]


def test_old_groups_of_outcomes_are_forgotten(db: sqlite3.Connection) -> None:
    count = 3 * GROUP_BLOCKS + 7
    fill(db, count)
    assert outcomes.find(db, token(1)) == b"1"

    assert outcomes.forget(db, before_s=2 * GROUP_BLOCKS + 1, rows_max=1) == 1
    assert outcomes.forget(db, before_s=2 * GROUP_BLOCKS + 1, rows_max=9) == 1
    assert outcomes.forget(db, before_s=2 * GROUP_BLOCKS + 1, rows_max=9) == 0

    found = [number for number in range(1, count + 1) if outcomes.find(db, token(number))]
    assert found == list(range(2 * GROUP_BLOCKS + 1, count + 1))
    assert [row.at_s for row in outcomes.list_all(db)] == found
    # The deleted blocks of forgotten groups bring no outcome back.
    events.trim(db, size_max=0, before_ms=1 << 60, blocks_max=count)
    assert [number for number in range(1, count + 1) if outcomes.find(db, token(number))] == found


def test_a_group_is_kept_as_long_as_its_latest_outcome(db: sqlite3.Connection) -> None:
    fill(db, GROUP_BLOCKS)

    assert outcomes.forget(db, before_s=GROUP_BLOCKS, rows_max=9) == 0
    assert outcomes.find(db, token(1)) == b"1"


def test_an_outcome_in_a_block_stays_while_a_database_may_need_it(db: sqlite3.Connection) -> None:
    fill(db, GROUP_BLOCKS)
    branches.add(db, BranchRow(token(5), "shop", 1))
    branches.add(db, BranchRow(token(5), "stock", 1))
    branches.add(db, BranchRow(b"unknown", "shop", 1))

    assert outcomes.forget(db, before_s=1 << 40, rows_max=9) == 1

    assert [row.token for row in outcomes.list_all(db)] == [token(5)]
    assert outcomes.forget(db, before_s=1 << 40, rows_max=9) == 0
    branches.forget(db, token(5), "shop")
    branches.forget(db, token(5), "stock")
    assert outcomes.forget(db, before_s=1 << 40, rows_max=9) == 1
    assert outcomes.find(db, token(5)) is None


def test_outcomes_of_a_commit_that_was_undone_are_unknown(db: sqlite3.Connection) -> None:
    fill(db, GROUP_BLOCKS - 1)
    assert outcomes.find(db, b"x") is None
    db.execute("BEGIN")
    fill(db, 3, first=GROUP_BLOCKS)
    db.execute("ROLLBACK")

    assert outcomes.find(db, token(GROUP_BLOCKS)) is None
    fill(db, 3, first=1000)
    assert outcomes.find(db, token(GROUP_BLOCKS)) is None
    assert outcomes.find(db, token(1001)) == b"1001"


def test_a_former_shared_outcome_is_not_found_after_the_token_was_used_again(
    db: sqlite3.Connection,
) -> None:
    db.execute("INSERT INTO outcome (token, result, at_s, shared) VALUES (x'01', x'02', 1, 1)")
    assert outcomes.find(db, b"\1 and a mark", b"\1") == b"\2"

    commit(db, 1, (b"\1", b"\3", 2))

    assert outcomes.find(db, b"\1 and a mark", b"\1") is None
