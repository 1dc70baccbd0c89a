"""Tables of delayed messages and of retries."""

from __future__ import annotations

import asyncio
import sqlite3
from functools import partial
from pathlib import Path

from storage.rescue.repair import Rescue
from storage.tables import delayed, retries
from storage.tables.delayed import OWN_CLOCK, WALL_CLOCK, DelayedRow, NextDue
from storage.tables.pages import Totals
from storage.tables.retries import PolicyRow, RetryRow
from tests.unit.storage.support import opened


def row(
    number: int, clock: int, due_ms: int, queue: str = "q", data: bytes = b"data"
) -> DelayedRow:
    return DelayedRow(number, clock, due_ms, queue, 10, "", 1, data)


def due(db: sqlite3.Connection, **changes: object) -> list[int]:
    values: dict[str, object] = {
        **{"wall_ms": 1000, "own_ms": 100, "without": (), "rows_max": 10, "bytes_max": 1000},
        **changes,
    }
    return [each.number for each in delayed.due(db, **values)]  # type: ignore[arg-type]


def test_due_messages_of_both_clocks_come_in_the_order_of_their_times(
    db: sqlite3.Connection,
) -> None:
    rows = [
        row(1, WALL_CLOCK, 990),
        row(2, OWN_CLOCK, 95),  # 995 by the wall clock
        row(3, WALL_CLOCK, 999),
        row(4, WALL_CLOCK, 990, "other"),
        row(5, WALL_CLOCK, 1001),
        row(6, OWN_CLOCK, 101),
    ]
    delayed.add(db, rows)
    assert due(db) == [1, 4, 2, 3]
    assert due(db, without=("q",)) == [4]
    assert due(db, rows_max=2) == [1, 4]
    assert due(db, bytes_max=5) == [1, 4]
    assert due(db, wall_ms=500, own_ms=0) == []
    assert delayed.next_due(db) == NextDue(990, 95)
    assert delayed.totals_by_queue(db) == {"q": Totals(5, 50), "other": Totals(1, 10)}
    assert delayed.delete(db, [1, 4, 77]) == 2
    assert due(db) == [2, 3]


def test_totals_follow_deletions_and_rows_that_vanish(db: sqlite3.Connection) -> None:
    delayed.add(db, [row(number, WALL_CLOCK, 1, "q" if number < 3 else "r") for number in range(4)])
    delayed.delete(db, [0, 3])
    assert delayed.totals_by_queue(db) == {"q": Totals(2, 20)}
    db.execute("DELETE FROM delayed WHERE number = 1")
    delayed.count_anew(db)
    assert delayed.totals_by_queue(db) == {"q": Totals(1, 10)}


def test_a_rescued_folder_has_the_totals(folder: Path) -> None:
    rescue = Rescue(folder)

    async def store() -> None:
        async with opened(folder) as storage:
            await storage.batch.run(partial(delayed.add, rows=[row(1, WALL_CLOCK, 5)]))

    async def look() -> None:
        async with opened(rescue.fresh) as storage:
            assert await storage.read(delayed.totals_by_queue) == {"q": Totals(1, 10)}

    asyncio.run(store())
    list(rescue.run(now_s=5, new_id=bytes(16)))
    asyncio.run(look())


def test_a_number_of_a_copy_finds_the_message_before_it(db: sqlite3.Connection) -> None:
    delayed.add(db, [row(10, WALL_CLOCK, 1), row(20, WALL_CLOCK, 2)])
    found = delayed.around(db, 12)
    assert found is not None
    assert found.number == 10
    assert delayed.around(db, 9) is None


def test_due_messages_are_found_by_the_index(db: sqlite3.Connection) -> None:
    plan = db.execute(
        "EXPLAIN QUERY PLAN SELECT due_ms + ?, number FROM delayed WHERE clock = ? AND due_ms <= ?"
        " AND queue NOT IN ('a') ORDER BY due_ms, number LIMIT 5",
        (0, 0, 0),
    ).fetchall()
    assert ["COVERING INDEX delayed_due" in each[3] for each in plan] == [True]
    plan = db.execute(
        "EXPLAIN QUERY PLAN SELECT queue, count(*), sum(bytes) FROM delayed GROUP BY queue"
    ).fetchall()
    assert ["COVERING INDEX delayed_queue" in each[3] for each in plan] == [True]


def test_a_later_time_of_a_retry_replaces_the_earlier_one(db: sqlite3.Connection) -> None:
    retries.add(db, [RetryRow(5, 100), RetryRow(6, 90)])
    assert retries.due(db, 95, 10) == [RetryRow(6, 90)]
    retries.add(db, [RetryRow(6, 200)])
    retries.remove(db, [RetryRow(6, 90)])  # by a release that has read the earlier one
    assert retries.find(db, 6) == 200
    retries.remove(db, [RetryRow(5, 100)])
    assert retries.next_due_ms(db) == 200


def test_a_queue_has_one_policy(db: sqlite3.Connection) -> None:
    policy = PolicyRow(16, 3, 0, 1000, 2.0, 60_000, 0.2, "poison")
    retries.set_policy(db, policy)
    retries.set_policy(db, policy._replace(attempts=5))
    assert retries.list_policies(db) == [policy._replace(attempts=5)]
    retries.remove_policy(db, 16)
    assert retries.list_policies(db) == []
