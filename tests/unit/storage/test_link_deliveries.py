"""The deliveries of links, and their limits."""

from __future__ import annotations

import sqlite3

from storage.tables import link_deliveries
from storage.tables.link_deliveries import LinkRow

ANN, BOB = b"ann.....", b"bob....."


def _row(link: bytes, position: int, kept_from: int = 0, at_s: int = 1) -> LinkRow:
    return LinkRow(ANN, link, position, b"%d" % position, at_s, kept_from)


def test_rows_that_are_not_needed_any_more_end_with_the_next_one(db: sqlite3.Connection) -> None:
    link_deliveries.record(db, [_row(b"one", 0), _row(b"one", 10), _row(b"other", 0)])
    link_deliveries.record(db, [_row(b"one", 20, kept_from=10)])

    assert link_deliveries.find(db, b"one") == [(10, b"10"), (20, b"20")]
    assert link_deliveries.find(db, b"other") == [(0, b"0")]
    assert link_deliveries.delete(db, b"one") == 2
    assert link_deliveries.find(db, b"one") == []


def test_old_rows_and_the_oldest_of_a_client_with_many_are_forgotten(
    db: sqlite3.Connection,
) -> None:
    link_deliveries.record(db, [_row(b"l", number, at_s=number) for number in range(9)])
    link_deliveries.record(db, [_row(b"m", 0, at_s=9)._replace(owner=BOB)])

    assert link_deliveries.forget(db, before_s=2, rows_max=10) == 2
    assert link_deliveries.clients_with_many(db, 3) == [(ANN, 7)]
    assert link_deliveries.forget_oldest(db, ANN, 4) == 4
    assert [first for first, _ in link_deliveries.find(db, b"l")] == [6, 7, 8]
    assert len(link_deliveries.find(db, b"m")) == 1
