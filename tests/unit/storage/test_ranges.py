"""Reading ranges in columns, for messages without properties beside their packets."""

from __future__ import annotations

import sqlite3
from itertools import pairwise

import pytest

from storage.tables import messages, ranges, reservations
from storage.tables.keys import LOOKUP_MASK, message_key
from storage.tables.runs import runs_of
from storage.vault import vault_of

QUEUE = 16


def insert(db: sqlite3.Connection, *levels: int, bytes_each: int = 100) -> None:
    rows = [
        (message_key(QUEUE, level, at), 7 * at, None, None, bytes([at]) * bytes_each)
        for at, level in enumerate(levels, 1)
    ]
    messages.insert(db, rows)


def quick_page(db: sqlite3.Connection) -> ranges.QuickPage | None:
    scans = ranges.arrived(db, QUEUE, 0, 9)
    return ranges.quick_page(db, scans, rows_max=100, bytes_max=1 << 20)


@pytest.mark.parametrize("gone", [(), (3,), (1, 50, 51, 99), tuple(range(40, 70))])
@pytest.mark.parametrize("rows_max", [1, 16, 17, 99, 100, 101])
@pytest.mark.parametrize("bytes_max", [1, 1600, 1601, 9999, 10_000, 10_001])
def test_the_quick_page_equals_the_page(
    db: sqlite3.Connection, rows_max: int, bytes_max: int, gone: tuple[int, ...]
) -> None:
    insert(db, *[7] * 100)
    reader = 3
    keys = [message_key(QUEUE, 7, at) for at in range(1, 101)]
    db.execute(
        "INSERT INTO reader_queue (id, reader_id, queue_id, queue, shared, position, next_number,"
        " arrival, reserved_at_s, consumed_messages, consumed_bytes)"
        " VALUES (?, 1, ?, zeroblob(16), 0, 0, 1, 0, 0, 0, 0)",
        (reader, QUEUE),
    )
    for some in (keys[:60], keys[60:]):
        reservations.reserve(db, reader, runs_of(some), at_s=1, arrival=None)
    messages.delete(db, [message_key(QUEUE, 7, at) for at in gone])
    limits = {"rows_max": rows_max, "bytes_max": bytes_max}

    for scans in (ranges.arrived(db, QUEUE, 2, 99), ranges.reserved(reader, 2, 99)):
        found, may_be_more = ranges.page(db, scans, **limits)
        quick = ranges.quick_page(db, scans, **limits)
        assert quick is not None
        assert list(quick.positions) == [row[0] for row in found]
        assert list(quick.lookup_ids) == [row[1] & LOOKUP_MASK for row in found]
        assert list(quick.arrived_at_ms) == [row[2] for row in found]
        assert [quick.packets[a:b] for a, b in pairwise(quick.offsets)] == [
            row[-1] for row in found
        ]
        # `may_be_more` is not defined for a page that ends with its range.
        assert quick.may_be_more == may_be_more or found[-1][0] >= 98


def test_rare_properties_are_left_to_the_normal_page(db: sqlite3.Connection) -> None:
    for column, value in (
        ("abort_count", 1),
        ("move_count", 1),
        ("expires_at_s", 5),
        ("expires_at_s", 0),
        ("reason", "''"),
        ("part_id", 1),
        ("packet", "x'00'"),  # differs from the stored packet
        ("checksum", "NULL"),
    ):
        db.execute("DELETE FROM message")
        insert(db, 7, 7, 7)
        assert quick_page(db) is not None
        db.execute(f"UPDATE message SET {column} = {value} WHERE key & 15 = 2")
        # The tag of an encrypted packet proves more than a checksum.
        needs_none = column == "checksum" and vault_of(db) is not None
        assert (quick_page(db) is None) != needs_none, column
    db.execute("DELETE FROM message")
    insert(db, 7, 4, 7)
    assert quick_page(db) is None
